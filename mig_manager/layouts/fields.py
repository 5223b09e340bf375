"""The keys of YAML mappings: duplicates, unknown keys and merge keys, with every finding collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mig_manager.layouts.findings import MOST_FINDINGS, Finding, LayoutFileError, clipped, hint
from mig_manager.layouts.layout import Source
from mig_manager.layouts.suggest import nearest
from mig_manager.layouts.yamltext import ListNode, MappingNode, Node, ScalarNode

_MOST_READ = 200_000
"""List items and keys, each time that one is read."""
_LONGEST_LIST = 256
_DEEPEST_MERGE = 20
_NULL = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Field:
    """A key with its value."""

    key: ScalarNode
    value: Node

    @property
    def line(self) -> int:
        """The line of the value, or of the key where no value is written."""
        return self.key.line if is_null(self.value) else self.value.line


@dataclass(slots=True)
class FieldReader:
    """Reads mappings and collects what is wrong. A mapping that aliases reach again is read once."""

    file: str
    findings: list[Finding] = field(default_factory=list)
    _known: dict[int, dict[str, Field]] = field(default_factory=dict)
    _read: int = 0

    def wrong(self, line: int, path: str, text: str) -> None:
        """Note a finding.

        Raises:
            LayoutFileError: that makes enough of them.
        """
        self.findings.append(Finding(Source(self.file, line), path, text))
        if len(self.findings) == MOST_FINDINGS:
            raise LayoutFileError(self.findings)

    def not_allowed(self, node: Node, line: int, path: str, allowed: str, tail: str = "") -> None:
        """Note that a value is none of those allowed. The tail offers what was meant."""
        self.wrong(line, path, f"found {shown(node)}; allowed: {allowed}{tail}")

    def fields(self, node: MappingNode, path: str, depth: int = 0) -> dict[str, Field]:
        """The keys of a mapping as text; its own first, then those that merge keys (`<<`) bring in."""
        known = self._known.get(id(node))
        if known is not None:
            self._count(len(known), node.line, path)
            return known
        own: dict[str, Field] = {}
        sources: list[MappingNode] = []
        for key, value in node.pairs:
            if key.plain and key.text == "<<":
                sources.extend(self._merge_sources(value, path))
            elif key.text in own:
                first = own[key.text].key.line
                self.wrong(key.line, joined(path, key.text), f"is given twice; first on line {first}")
            else:
                own[key.text] = Field(key, value)
        fields = dict(own)
        for source in sources:
            if depth == _DEEPEST_MERGE:
                text = f"merges through more than {_DEEPEST_MERGE} mappings; write the keys out"
                self.wrong(node.line, joined(path, "<<"), text)
                break
            fields = {**self.fields(source, path, depth + 1), **fields}
        self._count(len(fields), node.line, path)
        self._known[id(node)] = fields
        return fields

    def items(self, node: ListNode, path: str) -> list[Node]:
        """The items of a list; none of an overlong one."""
        if len(node.items) > _LONGEST_LIST:
            self.wrong(node.line, path, f"has {len(node.items)} items; allowed: at most {_LONGEST_LIST}")
            return []
        self._count(len(node.items), node.line, path)
        return node.items

    def unknown_keys(self, fields: dict[str, Field], allowed: Sequence[str], path: str) -> None:
        """Note every key that is not one of those allowed."""
        for key, entry in fields.items():
            if key not in allowed:
                near = hint(nearest(key, allowed, 1))
                text = f"is not a known key; allowed: {', '.join(allowed)}{near}"
                self.wrong(entry.key.line, joined(path, key), text)

    def _count(self, more: int, line: int, path: str) -> None:
        """Give up on a text whose aliases multiply."""
        self._read += more
        if self._read > _MOST_READ:
            self.wrong(line, path, f"makes more than {_MOST_READ} values with all its aliases")
            raise LayoutFileError(self.findings)

    def _merge_sources(self, node: Node, path: str) -> Iterator[MappingNode]:
        for item in self.items(node, joined(path, "<<")) if isinstance(node, ListNode) else [node]:
            if isinstance(item, MappingNode):
                yield item
            else:
                self.not_allowed(
                    item, item.line, joined(path, "<<"), "an alias of a mapping, or a list of them"
                )


def joined(path: str, key: str) -> str:
    """The path of a key below another path."""
    return f"{path}.{clipped(key)}" if path else clipped(key)


def is_null(node: Node) -> bool:
    """Whether YAML takes a value for nothing: left out, `~` or `null`."""
    return isinstance(node, ScalarNode) and node.plain and node.text in _NULL


def shown(node: Node) -> str:
    """A value as a message shows it."""
    if isinstance(node, ScalarNode):
        if is_null(node):
            return "nothing"
        text = clipped(node.text)
        return text if node.plain or text != node.text else repr(text)
    kind = "mapping" if isinstance(node, MappingNode) else "list"
    filled = node.pairs if isinstance(node, MappingNode) else node.items
    return f"a {kind}" if filled else f"an empty {kind}"
