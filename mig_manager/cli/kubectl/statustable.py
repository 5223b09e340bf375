"""Standings of nodes as a table, one row a node."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mig_manager.cli.kubectl.durations import age
from mig_manager.cli.kubectl.narrowtable import narrow_lines
from mig_manager.cli.kubectl.standing import Standing
from mig_manager.cli.kubectl.statuswords import (
    NONE,
    aligned,
    layout_in_words,
    models_in_words,
    phase_in_words,
    progress_in_words,
    state_style,
    used_in_words,
)
from mig_manager.cli.kubectl.wrapping import clipped

_GAP = "   "
_LEAST_MESSAGE = 20
"""Letters of a message that there has to be room for beside the other columns."""
_HEAD = ("NODE", "GPUS", "LAYOUT", "STATE", "PHASE", "SINCE", "USED", "CORDON")
_MORE = ("CHANGES", "ATTEMPT", "NEXT", "HASH")
_LAST = "MESSAGE"
_STATE = _HEAD.index("STATE")


class StatusTable:
    """The columns of the table. They grow with what stands in them, and never get narrower."""

    def __init__(self, *, wide: bool, width: int | None) -> None:
        """`width`: columns of the terminal, which `lines` keeps to; None for as long as they are."""
        self._wide = wide
        self._width = None if wide else width
        self._head = (*_HEAD, *_MORE) if wide else _HEAD
        self._widths = [len(title) for title in self._head]

    def lines(self, standings: Sequence[Standing]) -> list[Text]:
        """The head, and a row for each node; on a narrow terminal what has no room there stands below it."""
        for each in standings:
            self._make_room(each)
        if self._width is not None and self._left(standings, self._width) < 0:
            return narrow_lines(standings, self._width)
        return [self._line(self._head, _LAST), *(self.row(each) for each in standings)]

    def row(self, standing: Standing) -> Text:
        """One node, below those before."""
        self._make_room(standing)
        return self._line(self._cells(standing), standing.message, state_style(standing))

    def _make_room(self, standing: Standing) -> None:
        cells = zip(self._widths, self._cells(standing), strict=True)
        self._widths = [max(width, len(cell)) for width, cell in cells]

    def _left(self, standings: Sequence[Standing], width: int) -> int:
        """Columns that are left once each message has the least that it needs; negative where some are missing."""
        longest = max((len(each.message) for each in standings), default=0)
        message = max(len(_LAST), min(_LEAST_MESSAGE, longest))
        return width - sum(self._widths) - len(self._widths) * len(_GAP) - message

    def key(self, standing: Standing) -> object:
        """What is worth another line when it changes; not that time passes."""
        cells = self._cells(standing)
        return (*cells[: self._head.index("SINCE")], *cells[self._head.index("USED") :], standing.message)

    def _cells(self, standing: Standing) -> tuple[str, ...]:
        progress = progress_in_words(standing)
        cells = (
            standing.name,
            models_in_words(standing),
            layout_in_words(standing),
            standing.state or NONE,
            phase_in_words(standing) + (f" ({progress})" if progress else ""),
            age(standing.since),
            used_in_words(standing.resources),
            standing.cordon,
        )
        return (*cells, *_more(standing)) if self._wide else cells

    def _line(self, cells: Sequence[str], last: str, style: str = "") -> Text:
        line = aligned(cells, self._widths, _GAP, _STATE, style)
        line.append(last)
        line.rstrip()
        return line if self._width is None else clipped(line, self._width)


def _more(standing: Standing) -> tuple[str, ...]:
    said = standing.said
    if said is None:
        return (NONE,) * len(_MORE)
    changes = ",".join(map(str, said.gpus)) or NONE
    return changes, str(said.attempt), said.nextRetryAt or NONE, said.hash or NONE
