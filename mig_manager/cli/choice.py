"""From the options of a command to a plan: which layouts there are, and what the chosen one would change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mig_manager.layouts.book import LayoutBook, resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.layouts.layout import Layout, NodeTarget
from mig_manager.layouts.schema import read_layouts
from mig_manager.planning.offers import offers
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout held against GPUs, with the plan that leads there."""

    layout: Layout
    target: NodeTarget
    plan: NodePlan


def read_book(file: Path | None) -> LayoutBook | None:
    """The layouts of the file that the user names, if any; read before any GPU is looked at.

    Raises:
        LayoutFileError: it cannot be read, or says something that is not allowed.
    """
    return read_layouts(file) if file is not None else None


def all_layouts(book: LayoutBook | None, inventory: Inventory) -> LayoutBook:
    """The layouts of the file over those generated from the hardware."""
    generated = generate_layouts(offers(inventory))
    return book.merged_over(generated) if book is not None else generated


def choose(book: LayoutBook, name: str, inventory: Inventory) -> Choice:
    """Find a layout and plan it.

    Raises:
        MigManagerError: there is no such layout, or these GPUs cannot take it.
    """
    layout = book.get(name)
    target = resolve(layout, [state.gpu for state in inventory.gpus])
    return Choice(layout, target, plan_node(target, inventory))
