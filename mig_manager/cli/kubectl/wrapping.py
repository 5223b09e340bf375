"""Text on a terminal that is not wide enough for it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from rich.text import Text

from mig_manager.cli.output import Screen

_LEAST = 30
"""Columns below which text is left to the terminal."""


def limit(screen: Screen) -> int | None:
    """Columns to keep to; None where there is no terminal, and lines are as long as they are."""
    return screen.width if screen.moving is not None else None


def clipped(line: Text, width: int) -> Text:
    """A line that is no longer than that; dots stand for what is missing."""
    if line.cell_len > width:
        line.truncate(width - 3)
        line.append("...")
    return line


def comma_lines(words: str, width: int) -> list[str]:
    """A list in words on as many lines as it takes, broken behind commas and semicolons only, if they allow it."""
    whole = re.sub(r"(?<![,;]) ", "\N{NO-BREAK SPACE}", words)
    lines = textwrap.wrap(whole, width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def hanging(head: Text, words: str, width: int | None) -> Iterator[Text]:
    """A head and words behind it, on as many lines as they take; those after the first begin below the words.

    What has no spaces, such as a name, is never broken.
    """
    at = head.cell_len
    if width is None or width - at < _LEAST:
        yield head.append(words)
        return
    first, *others = textwrap.wrap(words, width - at, break_long_words=False, break_on_hyphens=False) or [""]
    yield head.append(first)
    yield from (Text(" " * at + line) for line in others)
