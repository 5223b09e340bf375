"""What a layout would mean for one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mig_manager.cli.choice import Choice, all_layouts, choose
from mig_manager.cli.kubectl.departures import Certainty, Departure, at_least, departures
from mig_manager.cli.kubectl.meaning import Written
from mig_manager.cli.kubectl.showing import Shown
from mig_manager.cli.kubectl.use import with_use
from mig_manager.cluster.budgets import Budget
from mig_manager.daemon.advertised import expected_resources, shapes_now, shapes_wanted
from mig_manager.errors import MigManagerError, Reason
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
    layouts_from: str
    """Where the layouts are written, or why they cannot be read."""

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
    written: Written,
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
        choice = choose(all_layouts(written.book, inventory), layout, inventory)
    except MigManagerError as error:
        if error.reason is not Reason.UNKNOWN_LAYOUT:
            raise
        raise MigManagerError(
            error.reason, _unknown(error.message, shown.name, written, known_there)
        ) from error
    after = expected_resources(shapes_wanted(choice.target, inventory), shown.strategy)
    try:
        before = expected_resources(shapes_now(inventory), shown.strategy)
    except MigManagerError:  # What is there does not suit the strategy either.
        before = {}
    found = departures(choice.plan, inventory, shown.strategy, shown.use, budgets)
    least = at_least(choice.plan, inventory, shown.strategy, shown.use)
    said = [*remarks, *(f"Not told by the node: {words}." for words in shown.missing)]
    if written.unread and choice.layout.generated:
        said.append(
            f"Planned as the hardware has it; {written.unread}, not readable from here, may define {layout}."
        )
    return Forecast(shown.name, inventory, choice, before, after, found, least, tuple(said), written.words)


def _unknown(message: str, node: str, written: Written, known_there: bool) -> str:
    if known_there:
        return (
            f"{message}\nThe daemon on {node} lists it, from elsewhere: give its file by --config-file, or its "
            f"ConfigMap by --config-map. Here is known: {written.words}"
        )
    return message if written.book is not None else f"{message}\nlayouts: {written.words}"
