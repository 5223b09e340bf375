"""Runs command lines as a shell does: our own programs in this process, others as they are."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mig_manager.cli.kubectl.main import app as kubectl_mig_app
from mig_manager.cli.kubectl.main import command_line as kubectl_mig
from mig_manager.cli.main import app as mig_manager_app
from mig_manager.cli.main import command_line as mig_manager
from tests.cli.conftest import Ended
from tests.docs.chart import ChartError, helm
from tests.requirements import need

OURS: dict[str, Mapping[str, Any]] = {
    program: typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for program, app in (("mig-manager", mig_manager_app), ("kubectl mig", kubectl_mig_app))
}
"""The commands of our own programs, by name."""
FOREIGN = frozenset({"kubectl", "grep", "sed", "jq", "date", "echo"})
KNOWN = frozenset({*OURS, *FOREIGN, "helm"})
"""Programs that can be run here. `helm` is Helm's engine, and only renders."""
CTRL_C = 130
GPUS = "this-machine.json"
"""The GPUs of the machine: this file of simulated ones in the working directory."""
_LONGEST_S = 120
_OPERATORS = frozenset({"|", "||", "&&", ">"})


@dataclass(frozen=True, slots=True)
class Part:
    """One command of a line, or the file that its output goes to."""

    operator: str
    """What stands in front of it; empty for the first."""
    program: str
    words: tuple[str, ...]
    """What comes after the program."""


def parts(line: str) -> list[Part]:
    """The commands of a line, without comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in lexer:
        if word in _OPERATORS:
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return [_part(operator, words) for operator, words in found if words]


def _part(operator: str, words: Sequence[str]) -> Part:
    for length in (2, 1):
        program = " ".join(words[:length])
        if length == 1 or program in OURS:
            break
    return Part(operator, program, tuple(words[length:]))


@dataclass(slots=True)
class Shell:
    """A shell in a directory of its own, with access to a cluster."""

    home: Path
    kubeconfig: Path
    patch: pytest.MonkeyPatch
    cues: list[tuple[str, Callable[[], None] | None]] = field(default_factory=list)
    """Regular expressions, and what happens when a command has printed that, one after the other; None: Ctrl-C."""

    def run(self, line: str) -> Ended:
        """Run a line. A pipe fails where any of its commands does, and `||` runs what comes after it in any case."""
        line = re.sub(r"\$\((.*?)\)", lambda inner: self.run(inner[1]).out.strip(), line)
        code, out, err, last = 0, "", "", ""
        for part in parts(line):
            if part.operator == ">":
                Path(self.home, part.program).write_text(last)
                last = ""
                continue
            if part.operator != "|":
                out, last = out + last, ""
            ended = self._command(part, stdin=last)
            last, err = ended.out, err + ended.err
            code = ended.code if part.operator == "||" else code or ended.code
            if code and "||" not in line:
                break
        return Ended(code, out + last, err)

    def _command(self, part: Part, stdin: str) -> Ended:
        if part.program == "mig-manager":
            return self._ours(mig_manager, on_these_gpus(part.words), stdin)
        if part.program == "kubectl mig":
            return self._ours(kubectl_mig, part.words, stdin)
        if part.program == "helm":
            try:
                return Ended(0, helm(part.words, self.home), "")
            except ChartError as error:
                return Ended(1, "", f"{error}\n")
        assert part.program in FOREIGN, part.program
        return self._foreign(part, stdin)

    def _ours(self, program: Callable[[Sequence[str]], int], words: Sequence[str], stdin: str) -> Ended:
        self.patch.setattr("sys.stdin", io.StringIO(stdin))
        out, err = _Screen(self.cues), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), _signals_of_a_terminal():
            code = program(words)
        return Ended(code, out.getvalue(), err.getvalue())

    def _foreign(self, part: Part, stdin: str) -> Ended:
        beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        program = shutil.which(part.program, path=beside)
        need(part.program, program)
        screen = _Screen(self.cues)
        with subprocess.Popen(
            [str(program), *part.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env={
                "PATH": beside,
                "HOME": str(self.kubeconfig.parent),
                "KUBECONFIG": str(self.kubeconfig),
                "GOMAXPROCS": "1",
                "GOGC": "off",  # kubectl ends before it pays to collect anything.
            },
        ) as process:
            if not self.cues:
                out, err = process.communicate(stdin, timeout=_LONGEST_S)
                return Ended(process.returncode, out, err)
            assert process.stdout is not None
            try:
                for text in process.stdout:
                    screen.write(text)
            except KeyboardInterrupt:
                process.terminate()
                return Ended(CTRL_C, screen.getvalue(), "")
        return Ended(process.returncode, screen.getvalue(), "")


def on_these_gpus(words: Sequence[str]) -> list[str]:
    """The arguments of a command of mig-manager, with the file of GPUs where it works on those of the machine."""
    takes = {option for parameter in OURS["mig-manager"][words[0]].params for option in parameter.opts}
    elsewhere = {"--simulate", "--simulate-state", "--current"} & set(words)
    if "--simulate-state" in takes and not elsewhere:
        return [*words, "--simulate-state", GPUS]
    return list(words)


class _Screen(io.StringIO):
    """What a command has printed. Cues that it gives are followed at once."""

    def __init__(self, cues: list[tuple[str, Callable[[], None] | None]]) -> None:
        super().__init__()
        self._cues = cues
        self._from = 0

    def write(self, text: str) -> int:
        written = super().write(text)
        while self._cues and (found := re.search(self._cues[0][0], self.getvalue()[self._from :])):
            self._from += found.end()
            _, act = self._cues.pop(0)
            if act is None:
                signal.raise_signal(signal.SIGINT)
            else:
                act()
        return written


@contextmanager
def _signals_of_a_terminal() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests run in the background, and what a command makes of it ends with it.

    It comes by itself where a command waits for what the scene never does.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    signal.alarm(_LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
