"""YAML text as nodes that know their lines.

Scalars stay text: whether `on`, `1` or `0x20B010DE` is a name, a number or a truth is for the reader of the
node to say. Nothing is expanded: an alias is the very node of its anchor, so no short text can grow large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from mig_manager.layouts.embedded import LINE_BREAK, Place, Written
from mig_manager.layouts.findings import Finding, LayoutFileError, clipped, hint
from mig_manager.layouts.layout import Source
from mig_manager.layouts.suggest import nearest

_DEEPEST = 20
_LARGEST = 1 << 20
"""Bytes. A ConfigMap takes no more."""
_DEEPEST_MANIFEST = 200
_LARGEST_STREAM = 1 << 25
_NOT_YAML = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset({None, *(_TAG + kind for kind in ("null", "bool", "int", "float", "merge"))})
_TEXT_TAGS = frozenset({"!", _TAG + "str"})


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNode:
    """A scalar as written."""

    text: str
    line: int
    plain: bool
    """Written without quotes and not tagged as text, so that YAML may take it for a number or a truth."""
    written: Written


@dataclass(frozen=True, slots=True, eq=False)
class ListNode:
    """A list."""

    items: list[Node]
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class MappingNode:
    """A mapping, in the order of the text, duplicates and merge keys included."""

    pairs: list[tuple[ScalarNode, Node]]
    line: int


Node: TypeAlias = ScalarNode | ListNode | MappingNode


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        LayoutFileError: it cannot be read, or is not UTF-8 text.
    """
    file = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _fault(file, 0, f"cannot be read: {error.strerror or error}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _fault(
            file, line, f"not UTF-8 text: byte 0x{data[error.start]:02X} cannot stand here"
        ) from None


def compose(text: str, file: str, place: Place | None = None) -> Node | None:
    """The only document of a YAML text; None where there is none. `place`: where the text stands in its file.

    Raises:
        LayoutFileError: the text is not YAML, or uses what these files have no use for.
    """
    if len(text) > _LARGEST or len(text.encode("utf-8", "surrogatepass")) > _LARGEST:
        line = place.line(1) if place is not None else 1
        raise _fault(file, line, f"the file is larger than {_LARGEST // 1024} KiB; a ConfigMap takes no more")
    composer = _Composer(file, place, _DEEPEST)
    _compose(text, composer)
    return composer.roots[0] if composer.roots else None


def compose_all(text: str, file: str) -> list[Node]:
    """The documents of a YAML stream of Kubernetes manifests, those that are empty left out.

    Raises:
        LayoutFileError: the text is not YAML, or uses what manifests have no use for.
    """
    if len(text) > _LARGEST_STREAM:
        raise _fault(file, 1, f"the file is larger than {_LARGEST_STREAM >> 20} MiB")
    composer = _Composer(file, None, _DEEPEST_MANIFEST, several=True)
    _compose(text, composer)
    return composer.roots


def _compose(text: str, composer: _Composer) -> None:
    strange = _NOT_YAML.search(text)
    if strange is not None:
        line, column = _position(text, strange.start())
        code = f"U+{ord(strange[0]):04X}"
        raise composer.fault(line, f"the character {code} cannot stand in YAML; is this text?", column)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(error, text, composer) from None


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not complete yet."""

    node: ListNode | MappingNode
    key: ScalarNode | None = None


@dataclass(slots=True)
class _Composer:
    file: str
    place: Place | None
    """Where the text stands in the file; None: it is the whole file."""
    deepest: int
    several: bool = False
    """Whether there may be several documents."""
    roots: list[Node] = field(default_factory=list)
    documents: int = 0
    open: list[_Open] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)

    def line(self, line: int) -> int:
        return self.place.line(line) if self.place is not None else line

    def fault(self, line: int, text: str, column: int | None = None) -> LayoutFileError:
        """What is wrong at a line and column of the text."""
        if column is not None and self.place is not None:
            column = self.place.column(column)
        return _fault(self.file, self.line(line), f"column {column}: {text}" if column is not None else text)

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            self.anchors = {}
            if self.documents > 1 and not self.several:
                raise self.fault(line, "a second document starts here; the file may hold one")
        elif isinstance(event, yaml.AliasEvent):
            self.add(self.target(event.anchor or "", line), line)
        elif isinstance(event, yaml.ScalarEvent):
            text_tag = event.tag in _TEXT_TAGS
            if not text_tag and event.tag not in _PLAIN_TAGS:
                raise self.tag_fault(event.tag, line)
            plain = not text_tag and (event.style or "") == ""
            self.register(
                event.anchor, ScalarNode(event.value, self.line(line), plain, _written(event)), line
            )
        elif isinstance(event, yaml.CollectionStartEvent):
            kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
            if event.tag not in (None, "!", _TAG + kind):
                raise self.tag_fault(event.tag, line)
            if len(self.open) == self.deepest:
                raise self.fault(line, f"nested more than {self.deepest} levels deep; no key needs that")
            at = self.line(line)
            node = MappingNode([], at) if kind == "map" else ListNode([], at)
            self.register(event.anchor, node, line)
            self.open.append(_Open(node))
        elif isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()

    def register(self, anchor: str | None, node: Node, line: int) -> None:
        if anchor is not None:
            self.anchors[anchor] = node
        self.add(node, line)

    def add(self, node: Node, line: int) -> None:
        if not self.open:
            self.roots.append(node)
            return
        parent = self.open[-1]
        if isinstance(parent.node, ListNode):
            parent.node.items.append(node)
        elif parent.key is not None:
            parent.node.pairs.append((parent.key, node))
            parent.key = None
        elif isinstance(node, ScalarNode):
            parent.key = node
        else:
            kind = "mapping" if isinstance(node, MappingNode) else "list"
            raise self.fault(line, f"a {kind} stands where a key belongs; keys are text")

    def target(self, anchor: str, line: int) -> Node:
        node = self.anchors.get(anchor)
        if node is None:
            near = hint(f"*{name}" for name in nearest(anchor, self.anchors))
            raise self.fault(line, f"*{clipped(anchor)} refers to an anchor that is not defined{near}")
        if any(entry.node is node for entry in self.open):
            raise self.fault(line, f"*{clipped(anchor)} refers to what it is a part of")
        return node

    def tag_fault(self, tag: str | None, line: int) -> LayoutFileError:
        return self.fault(
            line, f"the tag {clipped(tag or '')} has no meaning here; write the value without it"
        )


def _written(event: yaml.ScalarEvent) -> Written:
    start, end = (
        (mark.line, mark.column) if mark is not None else (0, 0)
        for mark in (event.start_mark, event.end_mark)
    )
    return Written(event.style or "", start, end)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str, composer: _Composer) -> LayoutFileError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = error.problem or "the text ends too early"
    lines = text.splitlines()
    if 0 < line <= len(lines) and lines[line - 1][column - 1 : column] == "\t":
        problem = "a tab cannot indent; use spaces"
    elif problem.startswith("mapping values are not allowed"):
        problem = "a ':' after what cannot be a key; is one missing, or an indentation wrong, in this line or above it?"
    context = f" {error.context}" if error.context else ""
    if error.context and error.context_mark and error.context_mark.line + 1 != line:
        context += f" that begins on line {composer.line(error.context_mark.line + 1)}"
    return composer.fault(line, f"not valid YAML{context}: {problem}", column)


def _position(text: str, offset: int) -> tuple[int, int]:
    breaks = [match.end() for match in LINE_BREAK.finditer(text, 0, offset)]
    return len(breaks) + 1, offset - (breaks[-1] if breaks else 0) + 1


def _fault(file: str, line: int, text: str) -> LayoutFileError:
    return LayoutFileError([Finding(Source(file, line), "", text)])
