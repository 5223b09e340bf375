"""Standings of nodes as a table, one row a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from mig_manager.cli.kubectl.durations import age
from mig_manager.cli.kubectl.standing import Standing, Use
from mig_manager.daemon.status import State

_NONE = "-"
_GAP = "   "
_LEAST_MESSAGE = 20
"""Letters of a message that are shown however narrow the terminal is."""
_STYLES = {
    State.SUCCESS: "green",
    State.FAILED: "bold red",
    State.PENDING: "yellow",
    State.REBOOTING: "magenta",
}
_HEAD = ("NODE", "GPUS", "LAYOUT", "STATE", "PHASE", "SINCE", "USED", "CORDON")
_MORE = ("CHANGES", "ATTEMPT", "NEXT", "HASH")
_LAST = "MESSAGE"
_STATE = _HEAD.index("STATE")


class StatusTable:
    """The columns of the table. They grow with what stands in them, and never get narrower."""

    def __init__(self, *, wide: bool, width: int | None) -> None:
        """`width`: columns of the terminal, to which messages are clipped; None for as long as they are."""
        self._wide = wide
        self._width = None if wide else width
        self._head = (*_HEAD, *_MORE) if wide else _HEAD
        self._widths = [len(title) for title in self._head]

    def lines(self, standings: Sequence[Standing]) -> list[Text]:
        """The head, and a row for each node."""
        for each in standings:
            self._make_room(each)
        return [self._line(self._head, _LAST), *(self.row(each) for each in standings)]

    def row(self, standing: Standing) -> Text:
        """One node, below those before."""
        self._make_room(standing)
        return self._line(self._cells(standing), standing.message, _style(standing))

    def _make_room(self, standing: Standing) -> None:
        cells = zip(self._widths, self._cells(standing), strict=True)
        self._widths = [max(width, len(cell)) for width, cell in cells]

    def key(self, standing: Standing) -> object:
        """What is worth another line when it changes; not that time passes."""
        cells = self._cells(standing)
        return (*cells[: self._head.index("SINCE")], *cells[self._head.index("USED") :], standing.message)

    def _cells(self, standing: Standing) -> tuple[str, ...]:
        models = standing.models.items()
        cells = (
            standing.name,
            ", ".join(f"{count} x {_short(model)}" for model, count in models) or _NONE,
            _layout(standing),
            standing.state or _NONE,
            _phase(standing),
            age(standing.since),
            used_in_words(standing.resources) or _NONE,
            standing.cordon,
        )
        return (*cells, *_more(standing)) if self._wide else cells

    def _line(self, cells: Sequence[str], last: str, style: str = "") -> Text:
        line = Text()
        for number, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            line.append(f"{cell:<{width}}", style if number == _STATE else "")
            line.append(_GAP)
        room = None if self._width is None else max(_LEAST_MESSAGE, self._width - line.cell_len)
        line.append(last if room is None or len(last) <= room else f"{last[: room - 3]}...")
        line.rstrip()
        return line


def used_in_words(resources: Mapping[str, Use]) -> str:
    """`mig-1g.10gb 3/14, gpu 0/1`: used and allocatable, without the `nvidia.com/` before each."""
    return ", ".join(
        f"{name.removeprefix('nvidia.com/')} {'?' if use.used is None else use.used}/{use.allocatable}"
        for name, use in resources.items()
    )


def _short(model: str) -> str:
    """A product name without its brand, as NVML or as feature discovery writes it."""
    return model.removeprefix("NVIDIA").lstrip(" -")


def _layout(standing: Standing) -> str:
    wanted = standing.node.wanted
    says = standing.said.layout if standing.said is not None else wanted
    if says == wanted:
        return wanted or _NONE
    return f"{wanted or 'none'} (says {says})"


def _phase(standing: Standing) -> str:
    said = standing.said
    if said is None or said.state is State.SUCCESS:
        return _NONE
    return f"{said.phase} ({standing.progress})" if standing.progress else str(said.phase)


def _more(standing: Standing) -> tuple[str, ...]:
    said = standing.said
    if said is None:
        return (_NONE,) * len(_MORE)
    changes = ",".join(map(str, said.gpus)) or _NONE
    return changes, str(said.attempt), said.nextRetryAt or _NONE, said.hash or _NONE


def _style(standing: Standing) -> str:
    return next((style for state, style in _STYLES.items() if state == standing.state), "")
