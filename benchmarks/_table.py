"""Results as Markdown tables, ready for the README."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [header, *cells]) for at in range(len(header))]
    right = [all(row[at][:1].isdigit() or not row[at] for row in cells) for at in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    print()
    print(line(header))
    print(
        line(["-" * (width - 1) + ":" if r else "-" * width for width, r in zip(widths, right, strict=True)])
    )
    for row in cells:
        print(line(row))
    print()


def print_machine() -> None:
    """Print how busy this machine is: times measured on a busy one are too long."""
    one, five, _ = os.getloadavg()
    print(f"{os.cpu_count()} CPUs, load average {one:.1f} (1 min), {five:.1f} (5 min)")
