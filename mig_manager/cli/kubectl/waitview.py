"""What is shown while nodes are waited for: bars on a terminal, else a line for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from mig_manager.cli.kubectl.standing import Standing
from mig_manager.cli.kubectl.waiting import Verdict
from mig_manager.cli.output import write
from mig_manager.daemon.status import Phase

_ROOMY = 120
"""Columns of a terminal from which on there is room for everything beside a bar."""
_ORDER = {phase: number for number, phase in enumerate(Phase, 1)}


class Lines:
    """A line for each step of each node."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def show(self, standings: Mapping[str, Standing], verdicts: Mapping[str, Verdict]) -> None:
        """Say what is new."""
        for name, standing in standings.items():
            words = in_words(standing)
            if name not in verdicts and self._said.get(name) != words:
                self._said[name] = words
                write(f"{name}: {words}\n")


class Bars:
    """A bar for each node."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._brief = console.width < _ROOMY
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10 if self._brief else 20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=len(_ORDER), words="") for name in names
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, standings: Mapping[str, Standing], verdicts: Mapping[str, Verdict]) -> None:
        """Move the bars."""
        for name, task in self._tasks.items():
            standing, verdict = standings.get(name), verdicts.get(name)
            words = (
                verdict.words if verdict is not None else standing and in_words(standing, brief=self._brief)
            )
            ended = verdict is not None and verdict.done
            done = len(_ORDER) if ended else _steps(standing)
            self._progress.update(task, completed=done, words=words or "")
            if verdict is not None:
                self._progress.stop_task(task)


def in_words(standing: Standing, *, brief: bool = False) -> str:
    """How a node stands, in a line; briefly for beside a bar: what is in the way is worth more than the numbers."""
    said = standing.said
    if said is None or said.layout != standing.node.wanted:
        return f"not taken up yet (is asked for {standing.node.wanted or 'nothing'})"
    if brief and standing.under_way:
        return ", ".join(filter(None, (str(said.phase), standing.message or standing.progress)))
    words = [str(said.state), *([str(said.phase)] if standing.under_way else [])]
    words += [word for word in (standing.progress, standing.message) if word]
    return ", ".join(words)


def _steps(standing: Standing | None) -> int:
    if standing is None or standing.said is None or not standing.under_way:
        return 0
    return _ORDER[standing.said.phase] - 1
