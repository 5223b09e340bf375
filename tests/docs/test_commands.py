"""The command lines that the documentation shows can be typed, and what they are shown to print is what they print."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from mig_manager.cli.kubectl.main import app as kubectl_mig
from mig_manager.cli.main import app as mig_manager
from mig_manager.cli.main import command_line

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "config").glob("*.md")])
PROMPT = re.compile(r"^(?:\w*\$ +)?")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLES = [
    pytest.param(block, id=f"{page.name}: {block.splitlines()[0]}")
    for page in PAGES
    for kind, block in FENCE.findall(page.read_text())
    if kind == "console"
]
PROGRAMS = {"mig-manager": mig_manager, "kubectl mig": kubectl_mig, "kubectl-mig": kubectl_mig}


def lines(page: Path) -> Iterator[str]:
    """The lines of all code blocks, fenced or indented, with their continuations."""
    text = page.read_text()
    blocks = [block for kind, block in FENCE.findall(text) if kind in ("console", "sh", "bash")]
    indented = re.findall(r"^ {4,}\S.*$", FENCE.sub("", text), re.MULTILINE)
    for block in [*blocks, "\n".join(indented)]:
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands of ours in it: the program, and its arguments without pipes and redirections."""
    for line in lines(page):
        for part in re.split(r"\s(?:\||&&|;)\s", PROMPT.sub("", line.strip())):
            for program in PROGRAMS:
                if part.startswith(f"{program} ") and "..." not in part and not part.endswith("--help"):
                    words = shlex.split(part.removeprefix(program), comments=True)
                    yield program, words[: words.index(">")] if ">" in words else words


SHOWN = [
    pytest.param(program, arguments, id=f"{page.name}: {program} {' '.join(arguments)}")
    for page in PAGES
    for program, arguments in commands(page)
]


def test_there_are_commands_on_many_pages() -> None:
    assert len({str(case.id).partition(":")[0] for case in SHOWN}) >= 5
    assert len(SHOWN) >= 20


@pytest.mark.parametrize(("program", "arguments"), SHOWN)
def test_a_command_line_that_is_shown_can_be_typed(program: str, arguments: list[str]) -> None:
    group = typer.main.get_command(PROGRAMS[program])
    name, *rest = arguments
    command = group.commands[name]  # type: ignore[attr-defined]
    if rest and hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, list(rest))


@pytest.mark.parametrize("block", CONSOLES)
def test_what_a_command_is_shown_to_print_is_what_it_prints(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line `...` stands for any lines."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        program, *arguments = shlex.split(command, comments=True)
        assert program == "mig-manager", "others belong into a block of another kind"
        capsys.readouterr()
        command_line(arguments)
        printed = capsys.readouterr().out
        shape = "".join(
            r"(?:.*\n)*" if line == "..." else re.escape(line) + " *\n" for line in expected.splitlines()
        )
        assert re.fullmatch(shape + r"\n*", printed), printed
