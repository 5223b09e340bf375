"""What is wrong with a layout file, each finding with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import Source

MOST_FINDINGS = 100
"""A reader stops looking after as many."""
_SHOWN_LETTERS = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `str()` gives `config.yaml:12: mig-configs.NAME[0].devices: ...`."""

    source: Source
    path: str
    """Where in the structure, such as `mig-configs.NAME[0].devices`; empty for the file as a whole."""
    text: str
    """What was found, what is allowed, and the nearest valid choice."""

    def __str__(self) -> str:
        return f"{self.source}: {self.path}: {self.text}" if self.path else f"{self.source}: {self.text}"


class LayoutFileError(MigManagerError):
    """A layout file, or a layout of one, that cannot be used. The message holds one line a finding, by file line."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(sorted(findings, key=lambda finding: finding.source.line))
        lines = [str(finding) for finding in self.findings]
        if len(lines) >= MOST_FINDINGS:
            lines.append("there may be more")
        super().__init__(Reason.INVALID_LAYOUT, "\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.findings,))


class NothingSelectedError(LayoutFileError):
    """A layout none of whose entries selects a GPU of the node that it is held against."""


def clipped(text: str) -> str:
    """A text from the file, fit to stand in a message: on one line, printable, not too long."""
    short = text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 3] + "..."
    return short if short.isprintable() and short else repr(short)


def hint(near: Iterable[str]) -> str:
    """The tail of a message that offers near misses; empty where there are none."""
    choices = list(near)
    if not choices:
        return ""
    *most, last = choices
    return f"; did you mean {', '.join(most)} or {last}?" if most else f"; did you mean {last}?"
