"""Layout files in manifests: which texts are some, and the line of the manifest in every finding."""

from __future__ import annotations

import json
import re
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mig_manager.layouts.findings import LayoutFileError
from mig_manager.layouts.manifest import find_layouts
from mig_manager.layouts.schema import parse_layouts

LAYOUTS = """\
version: v1
mig-configs:
  off:
    - devices: all
      mig-enabled: false
"""
BROKEN = LAYOUTS.replace("all", "some")


def config_map(text: str, key: str = "config.yaml", name: str = "layouts") -> str:
    body = "".join(f"    {line}\n" for line in text.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  {key}: |\n{body}"


def messages(text: str) -> list[str]:
    """All that is wrong with a file, by line, with the names of the texts that are read."""
    found = find_layouts(text, "f")
    lines = [str(finding) for finding in found.findings]
    for one in found.texts:
        try:
            parse_layouts(one.text, file="f", place=one.place)
        except LayoutFileError as error:
            lines += str(error).split("\n")
    return lines


def names(text: str) -> list[str]:
    return [one.name for one in find_layouts(text, "f").texts]


DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nspec: {template: {spec: {containers: [{image: x}]}}}\n"
PLUGIN = config_map("version: v1\nflags:\n  migStrategy: mixed\n", name="plugin")
LISTED = {
    "kind": "List",
    "items": [
        {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"config.yaml": LAYOUTS}},
        {"kind": "Secret"},
    ],
}
TYPED = {"kind": "ConfigMapList", "items": [{"metadata": {"name": "b"}, "data": {"c.yaml": LAYOUTS}}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LAYOUTS, [""]),
        ("# kind: of a comment\n" + LAYOUTS, [""]),
        (LAYOUTS.replace("off", "kind"), [""]),
        (config_map(LAYOUTS), ["ConfigMap layouts, key config.yaml"]),
        (config_map(LAYOUTS, key="all.yaml"), ["ConfigMap layouts, key all.yaml"]),
        (
            f"---\n{DEPLOYMENT}---\n{PLUGIN}---\n# none\n---\n{config_map(LAYOUTS)}---\n",
            ["ConfigMap layouts, key config.yaml"],
        ),
        (
            config_map(LAYOUTS, name="a") + "---\n" + config_map(LAYOUTS, name="b"),
            ["ConfigMap a, key config.yaml", "ConfigMap b, key config.yaml"],
        ),
        (yaml.safe_dump(LISTED), ["ConfigMap a, key config.yaml"]),
        (json.dumps(LISTED), ["ConfigMap a, key config.yaml"]),
        (json.dumps(TYPED), ["ConfigMap b, key c.yaml"]),
        (
            config_map(LAYOUTS).replace("name: layouts", "{name: layouts, namespace: gpu}"),
            ["ConfigMap gpu/layouts, key config.yaml"],
        ),
    ],
)
def test_layout_files_are_found(text: str, expected: list[str]) -> None:
    text = text.replace("metadata:\n  {", "metadata: {")
    assert names(text) == expected
    assert messages(text) == []


NOTHING = "holds no layout file: no text of its ConfigMaps has mig-configs"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            config_map(BROKEN),
            ["f:10: mig-configs.off[0].devices: found some; allowed: all, others, or a list"],
        ),
        (
            f"{DEPLOYMENT}---\n{config_map(BROKEN)}",
            ["f:14: mig-configs.off[0].devices: found some; allowed: all, others, or a list"],
        ),
        (
            config_map(BROKEN, name="a") + "---\n" + config_map(BROKEN, name="b"),
            [f"f:{line}: mig-configs.off[0].devices: found some; allowed: all" for line in (10, 22)],
        ),
        (
            config_map(LAYOUTS + "  off: []\n"),
            ["f:12: mig-configs.off: is given twice; first on line 9"],
        ),
        (config_map("mig-configs: {x: [}\n"), ["f:7: column 23: not valid YAML"]),
        (
            config_map('mig-configs:\n  x: "y\n'),
            ["f:9: column 5: not valid YAML while scanning a quoted scalar"],
        ),
        (config_map("version: v1\nmig-configs:\n\tx: y\n"), ["f:9: column 5: not valid YAML"]),
        (
            config_map("mig-config:\n  x: 1\n"),
            [
                "f:7: mig-config: is not a known key",
                "f:7: version: is missing",
                "f:7: mig-configs: is missing",
            ],
        ),
        (
            config_map(LAYOUTS + "---\n" + LAYOUTS),
            ["f:12: a second document starts here; the file may hold one"],
        ),
        (config_map("mig-configs: &a [*a]\n"), ["f:7: *a refers to what it is a part of"]),
        (
            "kind: ConfigMap\ndata:\n  config.yaml:\n    version: v1\n    mig-configs: {}\n",
            [
                "f:3: data.config.yaml: found a mapping; allowed: a text; write `config.yaml: |`, and below it what "
                "stands there now"
            ],
        ),
        (
            "kind: ConfigMap\ndata:\n  a: x\n  a: y\n",
            ["f:4: data.a: is given twice; first on line 3"],
        ),
        (PLUGIN, [f"f: {NOTHING}"]),
        ("kind: ConfigMap\n", [f"f: {NOTHING}"]),
        ("kind: ConfigMap\ndata: [x]\n", [f"f: {NOTHING}"]),
        ("kind: Secret\n", ["f: holds no layout file: no version and mig-configs, and no ConfigMap"]),
        (
            f"{config_map(LAYOUTS)}---\n{LAYOUTS}",
            [
                "f:13: found a mapping; allowed: a manifest with a kind; a layout file stands in a file of its own"
            ],
        ),
        (f"{LAYOUTS}---\n{LAYOUTS}", ["f:6: a second document starts here; the file may hold one"]),
    ],
)
def test_what_is_wrong_is_told_by_the_line_of_the_manifest(text: str, expected: list[str]) -> None:
    found = messages(text)
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: ConfigMap\ndata: {{ toYaml .Values.layouts }}\n", "f:2: a Helm template"),
        ("version: v1\nmig-configs:\n{{- range .Values.layouts }}\n", "f:3: a Helm template"),
        ("kind: [\n", "f:2: column 1: not valid YAML"),
        ("kind: x\n" * 3 + "a: &b [*b]\n", "f:4: *b refers to what it is a part of"),
        ("kind: " + "[" * 300, "f:1: nested more than 200 levels deep"),
    ],
)
def test_a_text_that_is_no_stream_of_manifests_is_refused(text: str, expected: str) -> None:
    with pytest.raises(LayoutFileError) as error:
        find_layouts(text, "f")
    assert str(error.value)[: len(expected)] == expected


KEYS = st.lists(
    st.sampled_from(["a b", "x  y", "'", '"', "\\", "ä", "\U0001f600", " ", "", "long " * 9]), max_size=9
)


@given(KEYS, st.sampled_from("|>'\""), st.integers(20, 200), st.booleans())
def test_each_line_of_a_text_is_found_in_the_manifest_however_it_is_written(
    words: list[str], style: str, width: int, as_json: bool
) -> None:
    """PyYAML and the JSON module write the manifest; every line has a number that is found where it is said to be."""
    text = "mig-configs:\n" + "".join(f"  k{at}q: {word}\n" for at, word in enumerate(words))
    document = {"kind": "ConfigMap", "data": {"before": "x\ny\n", "config.yaml": text, "later": "1"}}
    manifest = (
        json.dumps(document, indent=1, ensure_ascii=False)
        if as_json
        else yaml.safe_dump(document, default_style=style, width=width, allow_unicode=bool(width % 2))
    )
    lines = manifest.split("\n")
    (found,) = find_layouts(manifest, "f").texts
    assert found.text == text
    assert found.place is not None
    for at in range(len(words)):
        assert re.search(rf"\bk{at}q\b|nk{at}q\b", lines[found.place.line(at + 2) - 1]), (manifest, at)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("  a: 'version: v1\n\n    mig-configs: {\n\n\n      it''s: x}'\n", 8),
        ("  a: >-\n    version: v1\n\n    mig-configs:\n\n      it's: x\n", 8),
        ("  a: &here !!str\n    |2-  # text\n      version: v1\n      mig-configs:\n        it's: x\n", 7),
        ("  b: &t |\n    version: v1\n    mig-configs:\n      it's: x\n  a: *t\n", 6),
    ],
)
def test_texts_that_people_write_by_hand(body: str, line: int) -> None:
    found = messages(f"kind: ConfigMap\ndata:\n{body}")
    assert [text.split(" found")[0] for text in found] == [f"f:{line}: mig-configs.it's:"] * len(found)
    assert found


def test_long_files_are_fast() -> None:
    entry = "    - devices: all\n      mig-enabled: true\n      mig-devices:\n        1g.10gb: 7\n"
    text = "version: v1\nmig-configs:\n" + "".join(f"  l{n}:\n{entry}" for n in range(1000))
    start = time.process_time()
    assert messages(config_map(text)) == []
    assert messages(json.dumps({"kind": "ConfigMap", "data": {"x": text}})) == []
    assert time.process_time() - start < 5
