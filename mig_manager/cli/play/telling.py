"""How the demo looks: headings, a time line, pictures, and bars; plain text where there is no terminal."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from rich.text import Text

from mig_manager.cli.output import Screen
from mig_manager.cli.play.chronicle import Kind
from mig_manager.cli.render import Row, change_picture, change_rows, legend
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.state import GpuState, Inventory

_WIDEST = 100
_WORD = 19
_LABEL = 8
_BAR = 70
_CONTEXT = 8

_STYLE = {
    Kind.PHASE: "cyan",
    Kind.GOOD: "bold green",
    Kind.BAD: "bold red",
    Kind.EVENT: "blue",
    Kind.WARNING: "yellow",
    Kind.SEEN: "dim",
}
_DETAIL = {Kind.BAD: "red", Kind.SEEN: "dim"}
_LEVELS = {"SUCCESS": "green", "WARNING": "yellow", "ERROR": "red"}
_SEGMENTS = ("cyan", "blue", "yellow", "magenta", "red", "green", "bright_blue", "bright_magenta")


class Teller:
    """Writes the story on stdout."""

    def __init__(self) -> None:
        self._screen = Screen()
        self.width = min(self._screen.width, _WIDEST)
        self._explained = False

    def heading(self, number: str, title: str) -> None:
        """Begin a new part."""
        unicode = self._screen.look.unicode
        line = Text("\n" + ("━━ " if unicode else "== "), "dim")
        line.append(f"{number}  " if number else "", "bold cyan")
        line.append(title, "bold")
        rest = self.width - line.cell_len - 1
        line.append(" " + ("━" if unicode else "=") * max(rest, 0), "dim")
        self._lines([line])

    def command(self, *commands: str) -> None:
        """What a user would type."""
        self._lines([Text()])
        for command in commands:
            for number, part in enumerate(command.splitlines()):
                line = Text("  $ " if number == 0 else "    ", "dim")
                line.append(part, "bold")
                self._lines([line])
        self._lines([Text()])

    def moment(self, at: float, kind: Kind, word: str, detail: str) -> None:
        """One line of the time line (more where it is long)."""
        start = f"{at:6.2f} s  {word:<{_WORD}}  "
        parts = self._wrapped(detail, len(start)) or [""]
        line = Text(start[: len(start) - _WORD - 2], "dim")
        line.append(f"{word:<{_WORD}}  ", _STYLE[kind])
        style = _DETAIL.get(kind, "")
        line.append(parts[0], style)
        line.rstrip()
        self._lines([line, *(Text(" " * len(start) + part, style) for part in parts[1:])])

    def fact(self, word: str, detail: str) -> None:
        """A result, with a short word before it."""
        parts = self._wrapped(detail, _LABEL)
        self._lines(
            Text.assemble((f"{word if number == 0 else '':<{_LABEL}}", "bold"), part)
            for number, part in enumerate(parts)
        )

    def text(self, text: str, style: str = "") -> None:
        """A paragraph."""
        self._lines(Text("  " + part, style) for part in self._wrapped(text, 2))

    def block(self, lines: Iterable[str]) -> None:
        """Lines as they are, such as a piece of YAML."""
        self._lines(Text("    " + line) for line in lines)

    def difference(self, old: Sequence[str], new: Sequence[str]) -> None:
        """What an edit changes, as diff prints it."""
        colours = {"+": "green", "-": "red"}
        lines = list(difflib.unified_diff(old, new, n=_CONTEXT, lineterm=""))[3:]
        self._lines(Text("   " + line, colours.get(line[:1], "")) for line in lines)

    def commands(self, commands: Mapping[str, str]) -> None:
        """What a user may type, ready to be copied, with a word on each."""
        for command, remark in commands.items():
            line = Text(f"  {command}", "bold")
            line.append(f"   # {remark}" if remark else "", "not bold dim")
            self._lines([line])

    def log(self, line: str) -> None:
        """A line of the daemon's log."""
        level = next((word for word in _LEVELS if f" {word} " in line), "")
        self._lines([Text(line, _LEVELS.get(level, ""))])

    def gap(self) -> None:
        """An empty line."""
        self._lines([Text()])

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Show on a terminal that something goes on, for the length of a block."""
        return self._screen.busy(f"  {text}")

    def phases(self, phases: Sequence[tuple[str, float]]) -> None:
        """How the time was spent: a bar on a terminal, and the seconds of each phase."""
        total = sum(seconds for _, seconds in phases)
        block, square = ("█", "■ ") if self._screen.look.unicode else ("#", "# ")
        coloured = self._screen.look.colour
        styles = {name: _SEGMENTS[number % len(_SEGMENTS)] for number, (name, _) in enumerate(phases)}
        if coloured and total > 0:
            bar = Text(" " * _LABEL)
            done = 0.0
            drawn = 0
            for name, seconds in phases:
                done += seconds
                width = round(done / total * _BAR) - drawn
                drawn += width
                bar.append(block * width, styles[name])
            self._lines([bar])
        line = Text.assemble((f"{'time':<{_LABEL}}", "bold"))
        for name, seconds in phases:
            part = Text.assemble((square if coloured else "", styles[name]), f"{name} {seconds:.1f} s")
            if line.cell_len + part.cell_len > self.width:
                line.rstrip()
                self._lines([line])
                line = Text(" " * _LABEL)
            line.append_text(part).append("  ")
        line.rstrip()
        self._lines([line])

    def change(self, before: Inventory, after: Inventory) -> None:
        """A picture of every GPU before and after; GPUs that look alike share one."""
        groups: dict[tuple[str, tuple[Row, ...] | None], list[tuple[GpuState, GpuState]]] = {}
        for old, new in zip(before.gpus, after.gpus, strict=True):
            look = change_rows(old, new) if _changed(old, new) else None
            groups.setdefault((old.gpu.model, look), []).append((old, new))
        for (_, look), alike in groups.items():
            old, new = alike[0]
            head = Text.assemble((gpu_numbers([state.gpu.index for state, _ in alike]), "bold"))
            head.append(f"  {old.gpu.model}")
            if look is None:
                head.append("  stays as it is" if old.geometry else "  has no MIG", "dim")
            picture = change_picture(old, new, self._screen.look) if look else []
            self._lines([head, *picture, Text()])
        if not self._explained and any(look for _, look in groups):
            self._explained = True
            self._lines([legend(self._screen.look), Text()])

    def _wrapped(self, text: str, indent: int) -> list[str]:
        width = max(self.width - indent, 30)
        return [
            part
            for line in text.splitlines()
            for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        ]

    def _lines(self, lines: Iterable[Text]) -> None:
        self._screen.lines(lines)


def _changed(old: GpuState, new: GpuState) -> bool:
    def shape(state: GpuState) -> object:
        return state.mig_current, [
            (item.profile, item.placement, [one.uuid for one in item.compute]) for item in state.instances
        ]

    return shape(old) != shape(new)
