"""What the Node's label asks for, held against the layout files and the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mig_manager.daemon.books import BookSource, find_layout
from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import LayoutBook, content_hash, resolve
from mig_manager.layouts.generate import GeneratorInput, generate_layouts
from mig_manager.layouts.layout import NodeTarget
from mig_manager.planning.offers import offers
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Wish:
    """A layout name, and what it means on this node. Two wishes are equal when they mean the same."""

    layout: str
    hash: str | None
    """Hash of the target; None where there is none."""
    problem: str | None
    """Why there is no target, in words."""
    target: NodeTarget | None = field(default=None, compare=False)
    error: MigManagerError | None = field(default=None, compare=False)

    def must(self) -> NodeTarget:
        """The target. Raises the MigManagerError that stands in its way."""
        if self.target is None:
            assert self.error is not None
            raise self.error
        return self.target


class Wishes:
    """Turns label values into wishes. Knows the GPUs as the last run read them."""

    def __init__(self, user: BookSource, default: BookSource | None = None) -> None:
        self._user = user
        self._default = default
        self._inventory: Inventory | None = None
        self._offered: tuple[GeneratorInput, ...] | None = None
        self._generated: LayoutBook | None = None

    @property
    def know_hardware(self) -> bool:
        """Whether the GPUs have been read at least once; before that no wish has a meaning."""
        return self._inventory is not None

    def learn(self, inventory: Inventory) -> None:
        """Take note of the GPUs of this node."""
        self._inventory = inventory
        offered = offers(inventory)
        if offered != self._offered:
            self._offered = offered
            self._generated = generate_layouts(offered)

    def of(self, layout: str) -> Wish:
        """What that label value means now. Needs the hardware to be known."""
        assert self._inventory is not None
        try:
            found = find_layout(layout, self._user.read(), self._fallbacks())
            target = resolve(found, [state.gpu for state in self._inventory.gpus])
        except MigManagerError as error:
            return Wish(layout, None, error.message, error=error)
        return Wish(layout, content_hash(target), None, target=target)

    def feasible(self) -> list[str]:
        """The names that this node can take now, sorted; empty while the user's file is unusable."""
        assert self._inventory is not None
        state = self._user.read()
        books = [*([state.book] if state.book is not None else []), *self._fallbacks()]
        names = {name for book in books for name in book.layouts} if state.problem is None else set()
        return sorted(name for name in names if self._possible(name, self._inventory))

    def _possible(self, name: str, inventory: Inventory) -> bool:
        try:
            plan_node(self.of(name).must(), inventory)
        except MigManagerError:
            return False
        return True

    def _fallbacks(self) -> Sequence[LayoutBook]:
        default = self._default.read().book if self._default is not None else None
        return [book for book in (default, self._generated) if book is not None]
