"""What a layout would mean for one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mig_manager.cli.choice import Choice, all_layouts, choose
from mig_manager.cli.kubectl.departures import Certainty, Departure, at_least, departures
from mig_manager.cli.kubectl.showing import Shown
from mig_manager.cli.kubectl.use import with_use
from mig_manager.cluster.budgets import Budget
from mig_manager.daemon.advertised import expected_resources, shapes_now, shapes_wanted
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook
from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Forecast:
    """A layout on a node where it fits."""

    node: str
    inventory: Inventory
    """Before; busy is what pods use for certain."""
    choice: Choice
    before: Mapping[str, int]
    """What the device plugin offers of the GPUs; empty where it would offer nothing."""
    after: Mapping[str, int]
    departures: tuple[Departure, ...]
    at_least: int
    """How many devices in use go at least, whoever has them."""
    remarks: tuple[str, ...]
    """What else to know, in sentences."""

    @property
    def certain(self) -> tuple[Departure, ...]:
        """Pods that have to go."""
        return tuple(one for one in self.departures if one.certainty is Certainty.CERTAIN)

    @property
    def possible(self) -> tuple[Departure, ...]:
        """Pods that may have to."""
        return tuple(one for one in self.departures if one.certainty is Certainty.POSSIBLE)

    @property
    def obstacles(self) -> tuple[Departure, ...]:
        """Those of both that would not go now."""
        return tuple(one for one in self.departures if one.obstacle)


@dataclass(frozen=True, slots=True)
class NoForecast:
    """A node where the layout cannot be had, or of which too little is known."""

    node: str
    error: Exception
    """A MigManagerError or InputError."""


def forecast(
    shown: Shown,
    layout: str,
    book: LayoutBook | None,
    budgets: Sequence[Budget],
    *,
    known_there: bool,
    remarks: Sequence[str] = (),
) -> Forecast:
    """Plan a layout on a node.

    `known_there`: the daemon of the node lists a layout of that name.

    Raises:
        MigManagerError: there is no such layout, or the node cannot take it.
    """
    inventory = with_use(shown.inventory, shown.strategy, shown.use)
    try:
        choice = choose(all_layouts(book, inventory), layout, inventory)
    except MigManagerError as error:
        if error.reason is not Reason.UNKNOWN_LAYOUT or not known_there:
            raise
        raise MigManagerError(
            error.reason,
            f"{error.message}\nThe daemon on {shown.name} lists it, from a file that cannot be seen from here: give "
            "that by --config-file, or its ConfigMap by --config-map.",
        ) from error
    after = expected_resources(shapes_wanted(choice.target, inventory), shown.strategy)
    try:
        before = expected_resources(shapes_now(inventory), shown.strategy)
    except MigManagerError:  # What is there does not suit the strategy either.
        before = {}
    found = departures(choice.plan, inventory, shown.strategy, shown.use, budgets)
    least = at_least(choice.plan, inventory, shown.strategy, shown.use)
    said = [*remarks, *(f"Not told by the node: {words}." for words in shown.missing)]
    return Forecast(shown.name, inventory, choice, before, after, found, least, tuple(said))
