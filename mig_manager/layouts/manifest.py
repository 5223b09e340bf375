"""Layout files where they stand: a file of its own, or a text in the ConfigMaps of a stream of manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mig_manager.layouts.embedded import LINE_BREAK, Place, place_of
from mig_manager.layouts.fields import FieldReader, is_null, joined
from mig_manager.layouts.findings import Finding, LayoutFileError, clipped
from mig_manager.layouts.layout import Source
from mig_manager.layouts.yamltext import ListNode, MappingNode, Node, ScalarNode, compose_all

_MAYBE_MANIFEST = re.compile(r"\bkind\b")
_SPEAKS_OF_LAYOUTS = re.compile(r"""(?:^|[{,])[ \t]*["']?mig[-_]?configs?["']?[ \t]*:""", re.M | re.I)
_TEMPLATE = re.compile(r"\{\{-?\s")


@dataclass(frozen=True, slots=True)
class LayoutText:
    """The text of a layout file."""

    text: str
    place: Place | None
    """Where it stands in the file; None: it is the whole file."""
    name: str
    """Such as `ConfigMap mig-manager/mig-manager-layouts, key config.yaml`; empty for a whole file."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a file holds."""

    texts: tuple[LayoutText, ...]
    findings: tuple[Finding, ...]
    """What is wrong with the manifests themselves."""


def find_layouts(text: str, file: str) -> Found:
    """The layout files in a text: the text itself, or those in the ConfigMaps of its manifests.

    Of a ConfigMap every text counts that speaks of `mig-configs`, whatever its key. Manifests of other kinds are
    passed over. Nothing is said of what the layout files say.

    Raises:
        LayoutFileError: the text is not YAML.
    """
    if not _MAYBE_MANIFEST.search(text):
        _refuse_template(text, file)
        return Found((LayoutText(text, None, ""),), ())
    try:
        roots = compose_all(text, file)
    except LayoutFileError:
        _refuse_template(text, file)
        raise
    if all(_text_of(root, "kind") is None for root in roots):
        return Found((LayoutText(text, None, ""),), ())
    search = _Search(FieldReader(file), LINE_BREAK.split(text))
    texts = tuple(found for root in roots for found in search.manifest(root))
    findings = list(search.reader.findings)
    if not texts and not findings:
        findings.append(Finding(Source(file, 0), "", search.nothing()))
    return Found(texts, tuple(findings))


def _refuse_template(text: str, file: str) -> None:
    found = _TEMPLATE.search(text)
    if found is not None:
        line = len(LINE_BREAK.findall(text, 0, found.start())) + 1
        words = "a Helm template, not YAML; give what `helm template` makes of it"
        raise LayoutFileError([Finding(Source(file, line), "", words)])


@dataclass(slots=True)
class _Search:
    reader: FieldReader
    lines: list[str]
    config_maps: int = 0

    def manifest(self, node: Node, kind: str | None = None) -> Iterator[LayoutText]:
        """The layout texts of one document; `kind`: of what a typed list holds."""
        kind = _text_of(node, "kind") or kind
        if is_null(node):
            return
        if not isinstance(node, MappingNode) or kind is None:
            self.reader.not_allowed(
                node, node.line, "", "a manifest with a kind; a layout file stands in a file of its own"
            )
        elif kind == "ConfigMap":
            yield from self.config_map(node)
        elif kind.endswith("List"):
            items = next((value for key, value in node.pairs if key.text == "items"), None)
            for item in items.items if isinstance(items, ListNode) else []:
                yield from self.manifest(item, kind.removesuffix("List") or None)

    def config_map(self, node: MappingNode) -> Iterator[LayoutText]:
        self.config_maps += 1
        fields = self.reader.fields(node, "")
        data = fields.get("data")
        if data is None or not isinstance(data.value, MappingNode):
            return
        for key, found in self.reader.fields(data.value, "data").items():
            value = found.value
            if isinstance(value, MappingNode):
                if any(inner.text == "mig-configs" for inner, _ in value.pairs):
                    allowed = f"a text; write `{clipped(key)}: |`, and below it what stands there now"
                    self.reader.not_allowed(value, found.key.line, joined("data", key), allowed)
            elif isinstance(value, ScalarNode) and _SPEAKS_OF_LAYOUTS.search(value.text):
                yield LayoutText(
                    value.text, place_of(value.text, value.written, self.lines), _name(node, key)
                )

    def nothing(self) -> str:
        """Why there is no layout file."""
        if not self.config_maps:
            return "holds no layout file: no version and mig-configs, and no ConfigMap"
        return "holds no layout file: no text of its ConfigMaps has mig-configs"


def _name(config_map: MappingNode, key: str) -> str:
    metadata = next((value for key, value in config_map.pairs if key.text == "metadata"), None)
    names = [_text_of(metadata, part) for part in ("namespace", "name")]
    return f"ConfigMap {'/'.join(clipped(name) for name in names if name)}, key {clipped(key)}"


def _text_of(node: Node | None, key: str) -> str | None:
    """The text behind a key of a mapping; None where there is none."""
    pairs = node.pairs if isinstance(node, MappingNode) else []
    return next(
        (value.text for name, value in pairs if name.text == key and isinstance(value, ScalarNode)), None
    )
