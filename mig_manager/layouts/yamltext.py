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

from mig_manager.layouts.findings import Finding, LayoutFileError, clipped, hint
from mig_manager.layouts.layout import Source
from mig_manager.layouts.suggest import nearest

_DEEPEST = 20
_LARGEST = 1 << 20
"""Bytes. A ConfigMap takes no more."""
_NOT_YAML = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset({None, *(_TAG + kind for kind in ("null", "bool", "int", "float", "merge"))})
_TEXT_TAGS = frozenset({"!", _TAG + "str"})
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNode:
    """A scalar as written."""

    text: str
    line: int
    plain: bool
    """Written without quotes and not tagged as text, so that YAML may take it for a number or a truth."""


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


def compose(text: str, file: str) -> Node | None:
    """The only document of a YAML text; None where there is none.

    Raises:
        LayoutFileError: the text is not YAML, or uses what these files have no use for.
    """
    if len(text) > _LARGEST or len(text.encode("utf-8", "surrogatepass")) > _LARGEST:
        raise _fault(file, 1, f"the file is larger than {_LARGEST // 1024} KiB; a ConfigMap takes no more")
    strange = _NOT_YAML.search(text)
    if strange is not None:
        line, column = _position(text, strange.start())
        code = f"U+{ord(strange[0]):04X}"
        raise _fault(file, line, f"column {column}: the character {code} cannot stand in YAML; is this text?")
    composer = _Composer(file)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(error, text, file) from None
    return composer.root


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not complete yet."""

    node: ListNode | MappingNode
    key: ScalarNode | None = None


@dataclass(slots=True)
class _Composer:
    file: str
    root: Node | None = None
    documents: int = 0
    open: list[_Open] = field(default_factory=list)
    anchors: dict[str, Node] = field(default_factory=dict)

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _fault(self.file, line, "a second document starts here; the file may hold one")
        elif isinstance(event, yaml.AliasEvent):
            self.add(self.target(event.anchor or "", line), line)
        elif isinstance(event, yaml.ScalarEvent):
            text_tag = event.tag in _TEXT_TAGS
            if not text_tag and event.tag not in _PLAIN_TAGS:
                raise self.tag_fault(event.tag, line)
            plain = not text_tag and (event.style or "") == ""
            self.register(event.anchor, ScalarNode(event.value, line, plain), line)
        elif isinstance(event, yaml.CollectionStartEvent):
            kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
            if event.tag not in (None, "!", _TAG + kind):
                raise self.tag_fault(event.tag, line)
            if len(self.open) == _DEEPEST:
                raise _fault(self.file, line, f"nested more than {_DEEPEST} levels deep; no key needs that")
            node = MappingNode([], line) if kind == "map" else ListNode([], line)
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
            self.root = node
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
            raise _fault(self.file, line, f"a {kind} stands where a key belongs; keys are text")

    def target(self, anchor: str, line: int) -> Node:
        node = self.anchors.get(anchor)
        if node is None:
            near = hint(f"*{name}" for name in nearest(anchor, self.anchors))
            raise _fault(self.file, line, f"*{clipped(anchor)} refers to an anchor that is not defined{near}")
        if any(entry.node is node for entry in self.open):
            raise _fault(self.file, line, f"*{clipped(anchor)} refers to what it is a part of")
        return node

    def tag_fault(self, tag: str | None, line: int) -> LayoutFileError:
        return _fault(
            self.file, line, f"the tag {clipped(tag or '')} has no meaning here; write the value without it"
        )


def _syntax_fault(error: yaml.MarkedYAMLError, text: str, file: str) -> LayoutFileError:
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
        context += f" that begins on line {error.context_mark.line + 1}"
    return _fault(file, line, f"column {column}: not valid YAML{context}: {problem}")


def _position(text: str, offset: int) -> tuple[int, int]:
    breaks = [match.end() for match in _BREAK.finditer(text, 0, offset)]
    return len(breaks) + 1, offset - (breaks[-1] if breaks else 0) + 1


def _fault(file: str, line: int, text: str) -> LayoutFileError:
    return LayoutFileError([Finding(Source(file, line), "", text)])
