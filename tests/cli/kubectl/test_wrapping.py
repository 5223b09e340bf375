"""Text on a terminal that is not wide enough for it."""

from __future__ import annotations

import pytest
from rich.text import Text

from mig_manager.cli.kubectl.wrapping import clipped, comma_lines, hanging


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, ["- gpu-node-1 has room for 1 nvidia.com/mig-1g.10gb"]),
        (80, ["- gpu-node-1 has room for 1 nvidia.com/mig-1g.10gb"]),
        (40, ["- gpu-node-1 has room for 1", "  nvidia.com/mig-1g.10gb"]),
        (20, ["- gpu-node-1 has room for 1 nvidia.com/mig-1g.10gb"]),
    ],
    ids=["no terminal", "wide enough", "narrow", "too narrow for anything"],
)
def test_words_hang_below_where_they_began(width: int | None, lines: list[str]) -> None:
    told = hanging(Text("- "), "gpu-node-1 has room for 1 nvidia.com/mig-1g.10gb", width)
    assert [line.plain for line in told] == lines


def test_lists_break_behind_commas_and_messages_end_in_dots() -> None:
    assert comma_lines("2 x mig-1g.10gb, 1 x gpu; cordoned by the run", 22) == [
        "2 x mig-1g.10gb,",
        "1 x gpu;",
        "cordoned by the run",
    ]
    assert comma_lines("", 20) == []
    assert [clipped(Text("0123456789"), width).plain for width in (10, 9)] == ["0123456789", "012345..."]
