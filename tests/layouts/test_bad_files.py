from __future__ import annotations

import time

import pytest

from mig_manager.errors import Reason
from mig_manager.layouts.schema import LayoutFileError, parse_layouts

HEAD = "version: v1\nmig-configs:\n"
OFF = "{devices: all, mig-enabled: false}"
DEVICES = "all, others, or a list of GPU indices, UUIDs (GPU-...) and PCI bus ids"
FILTERS = (
    "a PCI device id such as 0x20B010DE, or 0x20B010DE:0x134F10DE with a subsystem id, or a list of them"
)
KEYS = "devices, device-filter, gpu-model, mig-enabled, mig-devices"
LIST = "a list with at least one entry, each after a dash"
PROFILES = "a mapping of profiles to counts, such as {1g.10gb: 7}, or {} for no MIG devices"
NO_PROFILE = "is not a profile name such as 1g.10gb, 1c.3g.20gb, 1g.10gb+me"


def findings(text: str) -> list[str]:
    with pytest.raises(LayoutFileError) as error:
        parse_layouts(text, file="config.yaml")
    assert error.value.reason is Reason.INVALID_LAYOUT
    return str(error.value).split("\n")


BAD_FILES = [
    ("", ["1: the file is empty; a layout file has version: v1 and mig-configs"]),
    ("# nothing\n---\n", ["1: the file is empty; a layout file has version: v1 and mig-configs"]),
    ("null\n", ["1: the file is empty; a layout file has version: v1 and mig-configs"]),
    ("hello\n", ["1: found hello; allowed: a mapping with version and mig-configs"]),
    ("version: v1\n", ["1: mig-configs: is missing; it maps layout names to lists of entries"]),
    (f"\n\nmig-configs: {{x: [{OFF}]}}\n", ["3: version: is missing; allowed: v1"]),
    (f"version: v2\nmig-configs: {{x: [{OFF}]}}\n", ["1: version: found v2; allowed: v1"]),
    (f"version: 1\nmig-configs: {{x: [{OFF}]}}\n", ["1: version: found 1; allowed: v1"]),
    (HEAD, ["2: mig-configs: found nothing; allowed: a mapping of layout names to lists of entries"]),
    (
        "version: v1\nmig-configs: {}\n",
        ["2: mig-configs: found an empty mapping; allowed: a mapping of layout names to lists of entries"],
    ),
    (
        f"{HEAD}  x: {OFF}\n  y: []\n  z:\n",
        [
            f"{line}: mig-configs.{name}: found {found}; allowed: {LIST}"
            for line, name, found in [(3, "x", "a mapping"), (4, "y", "an empty list"), (5, "z", "nothing")]
        ],
    ),
    (
        f"{HEAD}  x:\n    - all\n",
        ["4: mig-configs.x[0]: found all; allowed: an entry with devices and mig-enabled"],
    ),
    (
        f"version: v1\nmig-config: {{x: [{OFF}]}}\n",
        [
            "1: mig-configs: is missing; it maps layout names to lists of entries",
            "2: mig-config: is not a known key; allowed: version, mig-configs; did you mean mig-configs?",
        ],
    ),
    (f"{HEAD}  '': [{OFF}]\n", ["3: mig-configs.'': a layout needs a name"]),
    (
        f"{HEAD}  x: [{OFF}]\n  y: [{OFF}]\n  x: [{OFF}]\nversion: v1\n",
        ["5: mig-configs.x: is given twice; first on line 3", "6: version: is given twice; first on line 1"],
    ),
    (
        f"version: v1\nmig-configs: {{x: [{OFF}]}}\n---\nversion: v1\n",
        ["3: a second document starts here; the file may hold one"],
    ),
    (f"{HEAD}  x: *y\n", ["3: *y refers to an anchor that is not defined"]),
    (f"{HEAD}  x: &all [*all]\n", ["3: *all refers to what it is a part of"]),
    (
        f"{HEAD}  x: &all [{OFF}]\n  y: *al\n",
        ["4: *al refers to an anchor that is not defined; did you mean *all?"],
    ),
    (f"{HEAD}  ? [x]\n  : 1\n", ["3: a list stands where a key belongs; keys are text"]),
    (f"{HEAD}  x: !secret y\n", ["3: the tag !secret has no meaning here; write the value without it"]),
    (f"{HEAD}  <<: x\n", ["3: mig-configs.<<: found x; allowed: an alias of a mapping, or a list of them"]),
    (
        f"{HEAD}  x:\n\t- y\n",
        ["4: column 1: not valid YAML while scanning for the next token: a tab cannot indent; use spaces"],
    ),
    (
        f"{HEAD}  w: [{OFF}]\n  x\n  - {OFF}\n",
        [
            "5: column 3: not valid YAML while scanning a simple key that begins on line 4: "
            "could not find expected ':'"
        ],
    ),
    (
        f"{HEAD}  x: y\n    z: 1\n",
        [
            "4: column 6: not valid YAML: a ':' after what cannot be a key; is one missing, or an indentation "
            "wrong, in this line or above it?"
        ],
    ),
    (
        f'{HEAD}  x: "y\n  z: 1\n',
        [
            "5: column 1: not valid YAML while scanning a quoted scalar that begins on line 3: "
            "found unexpected end of stream"
        ],
    ),
    ("[" * 21 + "]" * 21, ["1: nested more than 20 levels deep; no key needs that"]),
    ("version: v1\x00\n", ["1: column 12: the character U+0000 cannot stand in YAML; is this text?"]),
]


@pytest.mark.parametrize(("text", "expected"), BAD_FILES)
def test_a_bad_file_is_described_line_by_line(text: str, expected: list[str]) -> None:
    assert findings(text) == [f"config.yaml:{line}" for line in expected]


BAD_ENTRIES = [
    (
        ["device: all", "mig-enable: false"],
        [
            (4, "device", f"is not a known key; allowed: {KEYS}; did you mean devices?"),
            (4, "devices", "is missing; every entry needs it"),
            (4, "mig-enabled", "is missing; every entry needs it"),
            (5, "mig-enable", f"is not a known key; allowed: {KEYS}; did you mean mig-enabled?"),
        ],
    ),
    (
        ["devices: alll", "mig-enabled: treu", "mig-devices: 7"],
        [
            (4, "devices", f"found alll; allowed: {DEVICES}; did you mean all?"),
            (5, "mig-enabled", "found treu; allowed: true, false; did you mean true?"),
            (
                6,
                "mig-devices",
                f"found 7; allowed: {PROFILES}",
            ),
        ],
    ),
    (
        ["devices:", "mig-enabled:", "mig-devices:"],
        [
            (4, "devices", f"found nothing; allowed: {DEVICES}"),
            (5, "mig-enabled", "found nothing; allowed: true, false"),
            (
                6,
                "mig-devices",
                f"found nothing; allowed: {PROFILES}",
            ),
        ],
    ),
    (
        ["devices: !!str 0", "mig-enabled: !!str true"],
        [
            (4, "devices", f"found '0'; allowed: {DEVICES}; did you mean 0, without quotes?"),
            (5, "mig-enabled", "found 'true'; allowed: true, false; did you mean true, without quotes?"),
        ],
    ),
    (
        ["{devices:", "", ", mig-enabled: false, gpu-model: ' '}"],
        [
            (4, "devices", f"found nothing; allowed: {DEVICES}"),
            (6, "gpu-model", "found ' '; allowed: a product name such as A100-SXM4-80GB, or a list of them"),
        ],
    ),
    (
        ["devices: '0,1'", "mig-enabled: 'false'"],
        [
            (4, "devices", f"found '0,1'; allowed: {DEVICES}; did you mean [0, 1]?"),
            (5, "mig-enabled", "found 'false'; allowed: true, false; did you mean false, without quotes?"),
        ],
    ),
    (
        ["devices:", "  - '0'", "  - -1", "  - [2]", "  - MIG-12", "  - GPU-1", "  -", "mig-enabled: false"],
        [
            (5, "devices[0]", f"found '0'; allowed: {DEVICES}; did you mean 0, without quotes?"),
            (6, "devices[1]", f"found -1; allowed: {DEVICES}"),
            (7, "devices[2]", f"found a list; allowed: {DEVICES}"),
            (
                8,
                "devices[3]",
                f"found MIG-12; allowed: {DEVICES}; a MIG device cannot be selected, only its GPU",
            ),
            (9, "devices[4]", f"found GPU-1; allowed: {DEVICES}"),
            (10, "devices[5]", f"found nothing; allowed: {DEVICES}"),
        ],
    ),
    (
        [
            "devices: all",
            "mig-enabled: false",
            "device-filter: [20B010DE, 0x20B0, 0x10de20b0, 0x20B08086, A100-SXM4-40GB, ~]",
        ],
        [
            (6, "device-filter[5]", f"found nothing; allowed: {FILTERS}"),
            (6, "device-filter[0]", f"found 20B010DE; allowed: {FILTERS}; did you mean 0x20B010DE?"),
            (6, "device-filter[1]", f"found 0x20B0; allowed: {FILTERS}; did you mean 0x20B010DE?"),
            (6, "device-filter[2]", f"found 0x10de20b0; allowed: {FILTERS}; did you mean 0x20B010DE?"),
            (6, "device-filter[3]", f"found 0x20B08086; allowed: {FILTERS}; did you mean 0x20B010DE?"),
            (
                6,
                "device-filter[4]",
                f"found A100-SXM4-40GB; allowed: {FILTERS}; a model name belongs in gpu-model",
            ),
        ],
    ),
    (
        ["devices: all", "mig-enabled: false", "device-filter: 0x20B010DE:0x1:0x2", "gpu-model: {a: b}"],
        [
            (6, "device-filter", f"found 0x20B010DE:0x1:0x2; allowed: {FILTERS}; did you mean 0x20B010DE?"),
            (
                7,
                "gpu-model",
                "found a mapping; allowed: a product name such as A100-SXM4-80GB, or a list of them",
            ),
        ],
    ),
    (
        ["devices: all", "mig-enabled: true"],
        [
            (4, "mig-devices", "is missing; an entry with mig-enabled: true needs it, {} for no MIG devices"),
        ],
    ),
    (
        ["devices: all", "mig-enabled: false", "mig-devices:", "  1g.10gb: 1"],
        [
            (6, "mig-devices", "asks for MIG devices, but mig-enabled is false; leave one of the two out"),
        ],
    ),
    (
        [
            "devices: all",
            "mig-enabled: true",
            "mig-devices:",
            "  1g.10bg: 1",
            "  2G.20GB: 1",
            "  1g.10gb.me: 1",
            "  3c.2g.20gb: 1",
            "  1g.20gb: -1",
            "  3g.40gb: '2'",
            "  4g.40gb: 1.5",
            "  3c.3g.40gb: 1",
            "  7g.80gb: 100",
        ],
        [
            (
                7,
                "mig-devices.1g.10bg",
                f"'1g.10bg' {NO_PROFILE}; did you mean 1g.10gb?",
            ),
            (
                8,
                "mig-devices.2G.20GB",
                f"'2G.20GB' {NO_PROFILE}; did you mean 2g.20gb?",
            ),
            (
                9,
                "mig-devices.1g.10gb.me",
                f"'1g.10gb.me' {NO_PROFILE}; did you mean 1g.10gb+me?",
            ),
            (
                10,
                "mig-devices.3c.2g.20gb",
                "'3c.2g.20gb' asks for 3 compute slices of a GPU instance that has 2",
            ),
            (11, "mig-devices.1g.20gb", "found -1; allowed: a count from 0 to 99"),
            (
                12,
                "mig-devices.3g.40gb",
                "found '2'; allowed: a count from 0 to 99; did you mean 2, without quotes?",
            ),
            (13, "mig-devices.4g.40gb", "found 1.5; allowed: a count from 0 to 99"),
            (14, "mig-devices.3c.3g.40gb", "is the same profile as 3g.40gb; write it once"),
            (15, "mig-devices.7g.80gb", "found 100; allowed: a count from 0 to 99"),
        ],
    ),
    (
        ["devices: all", "mig-enabled: true", "mig-devices: {1g.10gb: 60, 2g.20gb: 40}"],
        [
            (6, "mig-devices", "asks for more than 99 MIG devices; no GPU has as many"),
        ],
    ),
    (
        ["devices: all", "mig-enabled: false", "mig-enabled: true"],
        [
            (6, "mig-enabled", "is given twice; first on line 5"),
        ],
    ),
]


@pytest.mark.parametrize(("lines", "expected"), BAD_ENTRIES)
def test_a_bad_entry_is_described_line_by_line(
    lines: list[str], expected: list[tuple[int, str, str]]
) -> None:
    text = f"{HEAD}  x:\n    - " + "\n      ".join(lines) + "\n"
    assert findings(text) == [
        f"config.yaml:{line}: mig-configs.x[0].{path}: {what}" for line, path, what in expected
    ]


def test_a_syntax_error_gives_line_and_column_in_one_sentence() -> None:
    (line,) = findings(f"{HEAD}  x:\n    - devices: [0, 1\n      mig-enabled: false\n")
    assert line.startswith(
        "config.yaml:5: column 18: not valid YAML while parsing a flow sequence that begins on line 4: "
    )


def test_findings_of_all_layouts_are_reported_together() -> None:
    text = HEAD + "".join(f"  l{n}:\n    - devices: none\n      mig-enabled: false\n" for n in range(12))
    assert [line.split(":")[1] for line in findings(text)] == [str(4 + 3 * n) for n in range(12)]


def test_a_reader_stops_after_a_hundred_findings() -> None:
    lines = findings(HEAD + "".join(f"  l{n}: 1\n" for n in range(5000)))
    assert len(lines) == 101
    assert lines[-1] == "there may be more"


def test_an_alias_that_stands_in_many_places_is_reported_once() -> None:
    text = HEAD + "  a: &bad\n    - devices: none\n      mig-enabled: false\n" + "  b: *bad\n  c: *bad\n"
    assert len(findings(text)) == 1


def test_a_mapping_that_many_merges_reach_is_read_once() -> None:
    text = (
        f"{HEAD}  a: [&m {{devices: all, mig-enabled: false, devices: 1}}]\n  b: [{{<<: *m}}, {{<<: *m}}]\n"
    )
    assert findings(text) == ["config.yaml:3: mig-configs.a[0].devices: is given twice; first on line 3"]


def anchored(values: list[str], top: str) -> str:
    """A file whose version hides anchored values a0, a1, ... and whose mig-configs is the one named."""
    listed = "".join(f"  - &a{at} {value}\n" for at, value in enumerate(values))
    return f"version:\n{listed}mig-configs: {top}\n"


def aliases(number: int, times: int) -> str:
    return ", ".join([f"*a{number}"] * times)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{" * 200_000,
        "- " * 200_000,
        "? " * 200_000,
        "version: v1\nmig-configs: " + "{a: " * 5000,
        anchored(["x", *(f"[{aliases(n, 20)}]" for n in range(200))], "{x: *a200}"),
        anchored(["{k: 1}", *(f"{{<<: [{aliases(n, 20)}], k{n}: 1}}" for n in range(15))], "*a15"),
        anchored(["{k: 1}", *(f"{{<<: *a{n}}}" for n in range(5000))], "*a5000"),
        anchored([f"{{{', '.join(f'k{n}: 1' for n in range(2000))}}}"], f"{{<<: [{aliases(0, 200)}]}}"),
        # a long list of entries behind every name, and a long list of devices behind every entry
        HEAD + "  a: &a [" + ", ".join([OFF] * 250) + "]\n" + "".join(f"  n{n}: *a\n" for n in range(30_000)),
        HEAD
        + f"  a:\n    - devices: &d {list(range(250))}\n      mig-enabled: false\n"
        + "    - {devices: *d, mig-enabled: false}\n" * 255
        + "".join(f"  n{n}: [{{devices: *d, mig-enabled: false}}]\n" for n in range(10_000)),
        HEAD + f"  a:\n    - devices: {list(range(100_000))}\n      mig-enabled: false\n",
        HEAD + "  a:\n" + f"    - {OFF}\n" * 20_000,
        HEAD
        + "  a:\n    - devices: all\n      mig-enabled: true\n      mig-devices: {"
        + "1" * 100_000
        + "g.5gb: 1}\n",
        "x" * (1 << 21),
    ],
    ids=range(15),
)
def test_no_text_of_bounded_size_takes_long_to_refuse(text: str) -> None:
    start = time.process_time()
    lines = findings(text)
    assert time.process_time() - start < 5
    assert all(len(line) < 400 for line in lines)
