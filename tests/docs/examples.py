"""The commands that the documentation shows, and what it says that they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for at in ("config", "deploy", "docs") for page in (ROOT / at).rglob("*.md"))]
)
DATA = frozenset({"yaml", "json", "text"})
"""Languages of fenced blocks that hold no commands. `console` and `sh` do, and so does every indented block."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
_PROMPT = re.compile(r"^\w*\$ +")
_COMMENT = re.compile(r"\s+# .*")


@dataclass(frozen=True, slots=True)
class Example:
    """One command line."""

    command: str
    """Without prompt and comment, continuations joined."""
    shown: str = ""
    """What stands below it, up to the next command; empty where the page shows nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    page: str
    """Its file, from docs/ or from the top."""
    section: str
    """The heading above it."""
    language: str
    """Of the fence; empty for an indented block, and for a fence that does not say."""
    fenced: bool
    text: str
    """Without fence or indentation."""

    @property
    def is_data(self) -> bool:
        """Whether it holds no commands."""
        return self.language in DATA

    @property
    def examples(self) -> list[Example]:
        """Its commands: where there are prompts, the lines with one; else every line."""
        text = re.sub(r"\\\n\s*", "", self.text)
        if not re.search(_PROMPT.pattern, text, re.MULTILINE):
            return [Example(_COMMENT.sub("", line)) for line in text.splitlines() if line.strip()]
        found: list[tuple[str, list[str]]] = []
        for line in text.splitlines():
            if _PROMPT.match(line):
                found.append((_COMMENT.sub("", _PROMPT.sub("", line)), []))
            else:
                assert found, f"{self.page}: {line!r} stands above the first prompt"
                found[-1][1].append(line)
        return [Example(command, "\n".join(lines).strip("\n")) for command, lines in found]


def name_of(page: Path) -> str:
    """As a `Block` names it."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(_FENCE.findall(text)), (
        f"{page}: fences begin at the margin, with ``` and a word of letters or nothing behind it"
    )
    without = _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    headings = [(found.start(), found[1]) for found in re.finditer(r"^#+ (.*)$", without, re.MULTILINE)]
    found = [(each.start(), each[1], True, each[2]) for each in _FENCE.finditer(text)]
    found += [
        (each.start(), "", False, re.sub(r"^ {4}", "", each[0], flags=re.MULTILINE))
        for each in _INDENTED.finditer(_FENCE.sub(lambda fenced: "-" * len(fenced[0]), text))
    ]
    for start, language, fenced, body in sorted(found):
        heading = [words for at, words in headings if at < start][-1]
        yield Block(name_of(page), heading, language, fenced, body)


def inline(page: Path) -> Iterator[str]:
    """What stands in the text between backticks."""
    yield from re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text()))
