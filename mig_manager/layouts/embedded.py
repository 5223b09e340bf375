"""Text inside a YAML file, such as the layout file in a ConfigMap: the line of the file for each of its lines."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line in YAML 1.1."""
_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_HEADER = re.compile(r"[|>][-+0-9]*[ \t]*(?:#.*)?$")
_ODD_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\$")


@dataclass(frozen=True, slots=True)
class Written:
    """How and where a scalar stands in its file, quotes, anchor and block indicator included."""

    style: str
    """`|`, `>`, a quote, or nothing for a plain scalar."""
    start: tuple[int, int]
    """Line and column, from 0."""
    end: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands that is a part of a file."""

    lines: Sequence[int]
    """The line of the file, from 1, of each line of the text."""
    indent: int | None
    """By how many columns the text is moved to the right; None where that differs from line to line."""

    def line(self, line: int) -> int:
        """The line of the file of a line of the text, both from 1."""
        return self.lines[min(line, len(self.lines)) - 1]

    def column(self, column: int) -> int | None:
        """The column of the file of a column of the text, both from 1; None where it cannot be told."""
        return column + self.indent if self.indent is not None else None


def place_of(text: str, written: Written, file_lines: Sequence[str]) -> Place:
    """Where the text of a scalar stands in the lines of its file."""
    own_lines = LINE_BREAK.split(text)
    if written.style == "|":
        first = _header(written, file_lines) + 2
        return Place(range(first, first + len(own_lines)), _indent(own_lines, file_lines[first - 1 :]))
    starts = [0, *(found.end() for found in LINE_BREAK.finditer(text))]
    words = [at + len(line) - len(line.lstrip(" ")) for at, line in zip(starts, own_lines, strict=True)]
    parts = list(
        _escaped(written, file_lines) if written.style == '"' else _folded(text, written, file_lines)
    )
    offsets = [offset for offset, _ in parts]
    lines = [parts[max(bisect_right(offsets, at) - 1, 0)][1] for at in words]
    return Place(lines, None)


def _header(written: Written, file_lines: Sequence[str]) -> int:
    """The line, from 0, of the indicator of a block scalar; an anchor or tag may stand on one before it."""
    first, last = written.start[0], written.end[0]
    return next((at for at in range(first, last) if _HEADER.search(file_lines[at])), first)


def _indent(own_lines: Sequence[str], file_lines: Sequence[str]) -> int | None:
    for own, line in zip(own_lines, file_lines, strict=False):
        if own.strip():
            return len(line) - len(line.lstrip(" ")) - (len(own) - len(own.lstrip(" ")))
    return None


def _source(written: Written, file_lines: Sequence[str]) -> list[str]:
    """The lines of the file that hold the scalar, cut to it."""
    lines = list(file_lines[written.start[0] : written.end[0] + 1])
    if len(lines) == written.end[0] - written.start[0] + 1:
        lines[-1] = lines[-1][: written.end[1]]
    lines[0] = lines[0][written.start[1] :]
    return lines


def _folded(text: str, written: Written, file_lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Offsets in the text, each with the line of the file from which on it comes; found by what stands there."""
    first, lines = written.start[0], _source(written, file_lines)
    if written.style == ">":
        skipped = _header(written, file_lines) - first + 1
        first, lines = first + skipped, lines[skipped:]
    elif written.style == "'":
        lines[0] = lines[0].partition("'")[2]
        lines[-1] = lines[-1].removesuffix("'")
        lines = [line.replace("''", "'") for line in lines]
    yield 0, first + 1
    offset = 0
    for number, line in enumerate(lines, first + 1):
        found = text.find(line.strip(), offset)
        if line.strip() and found >= 0:
            yield found - (len(text[offset:found]) - len(text[offset:found].rstrip(" \t"))), number
            offset = found + len(line.strip())


def _escaped(written: Written, file_lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The same for double quotes; found by counting what each line of the file stands for."""
    lines = _source(written, file_lines)
    lines[0] = lines[0].partition('"')[2]
    lines[-1] = lines[-1].removesuffix('"')
    offset, blank, joined = 0, 0, True
    for number, line in enumerate(lines):
        content = line.lstrip(" \t") if number else line
        last = number == len(lines) - 1
        if number and not last and not content.strip():
            blank += 1
            continue
        offset += blank or (0 if joined else 1)
        yield offset, written.start[0] + 1 + number
        joined = not last and _ODD_BACKSLASH.search(content) is not None
        content = content[:-1] if joined else content if last else content.rstrip(" \t")
        offset += len(_ESCAPE.sub("x", content))
        blank = 0
