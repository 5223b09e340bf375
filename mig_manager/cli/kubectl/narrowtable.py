"""Standings of nodes on a terminal that is too narrow for the whole table: what has no room stands below its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from mig_manager.cli.kubectl.durations import age
from mig_manager.cli.kubectl.standing import Standing
from mig_manager.cli.kubectl.statuswords import (
    NONE,
    aligned,
    layout_in_words,
    phase_in_words,
    progress_in_words,
    state_style,
    used_in_words,
)
from mig_manager.cli.kubectl.wrapping import clipped, comma_lines

_HEAD = ("NODE", "LAYOUT", "STATE", "SINCE", "PHASE", "USED")
"""The last ones go below the row first."""
_ALWAYS = _HEAD.index("PHASE")
_STATE = _HEAD.index("STATE")
_GAP = "  "
_BELOW = "    "
_CORDONS = {"yes": "cordoned", "run": "cordoned by the run"}


def narrow_lines(standings: Sequence[Standing], width: int) -> list[Text]:
    """The head, a row for each node, and what else there is to say below it, in `width` columns.

    GPU models are left out. Only a name that is as long as the terminal is wide makes a longer line.
    """
    rows = [_cells(each) for each in standings]
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    count = len(_HEAD)
    while count > _ALWAYS and sum(widths[:count]) + len(_GAP) * (count - 1) > width:
        count -= 1
    lines = [_line(_HEAD, widths[:count])]
    for standing, cells in zip(standings, rows, strict=True):
        lines.append(_line(cells, widths[:count], state_style(standing)))
        lines += _below(standing, cells, count, width)
    return lines


def _cells(standing: Standing) -> tuple[str, ...]:
    return (
        standing.name,
        layout_in_words(standing),
        standing.state or NONE,
        age(standing.since),
        phase_in_words(standing),
        used_in_words(standing.resources),
    )


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = aligned(cells[: len(widths)], widths, _GAP, _STATE, style)
    line.rstrip()
    return line


def _below(standing: Standing, cells: Sequence[str], shown: int, width: int) -> Iterator[Text]:
    phase, used = (
        cell if number >= shown and cell != NONE else ""
        for number, cell in enumerate(cells[_ALWAYS:], _ALWAYS)
    )
    facts = (
        phase,
        progress_in_words(standing),
        used and f"used: {used}",
        _CORDONS.get(standing.cordon, ""),
    )
    for line in comma_lines("; ".join(filter(None, facts)), width - len(_BELOW)):
        yield Text(_BELOW + line)
    if standing.message:
        yield clipped(Text(_BELOW + standing.message), width)
