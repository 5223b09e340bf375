"""`mig-manager validate`: what CI and pre-commit see of layout files."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as SarifLog

from deploy.generate import CHART, render
from tests.cli.conftest import Cli
from tests.planning import published

ROOT = Path(__file__).parents[2]
HEAD = "version: v1\nmig-configs:\n"


def entry(devices: str = "", more: str = "", which: str = "all") -> str:
    return f"    - {{devices: {which}, {more}mig-enabled: true, mig-devices: {{{devices}}}}}\n"


def layout(name: str, *entries: str) -> str:
    return f"  {name}:\n" + "".join(entries)


A100 = "8xA100-SXM4-80GB"
A30 = "2xA30"
NVIDIA_STYLE = HEAD + "".join(
    [
        layout("all-disabled", "    - {devices: all, mig-enabled: false}\n"),
        layout("all-enabled", entry()),
        *(
            layout(f"all-{name.replace('+', '.')}", entry(f'"{name}": {most}'))
            for model in ("A100-SXM4-40GB", "A100-SXM4-80GB", "A30", "H200", "GB200")
            for name, most in published.counts(model).items()
            if (name, model) not in {("1g.10gb", "A100-SXM4-40GB"), ("1g.23gb", "GB200")}
        ),
        layout(
            "all-balanced",
            entry(
                '"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1', 'device-filter: ["0x20B210DE", "0x233010DE"], '
            ),
            entry('"1g.6gb": 2, "2g.12gb": 1', 'device-filter: "0x20B710DE", '),
        ),
    ]
)
"""As NVIDIA publishes them: a layout for each profile, without saying for which GPU, and mixes by device id."""


def findings(cli: Cli, text: str, *options: str) -> list[str]:
    """Level, line, reason and message of each finding; the exit code must be that of the errors."""
    ended = cli("validate", "-", "--format", "json", *options, stdin=text)
    document = ended.json
    assert ended.err == ""
    assert document["valid"] == (ended.code == 0) == all(f["level"] != "error" for f in document["findings"])
    assert ended.code in (0, 2)
    return [
        f"{one['level']} {one['line']} {one['reason']} {one['gpus'] or '-'} {one['path']}: {one['message']}"
        for one in document["findings"]
    ]


CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "a file that is right": (HEAD + layout("a", entry("1g.10gb: 7")), [], []),
    "a mistake in the format": (
        HEAD + layout("a", entry("1g.10bg: 7")) + layout("b", "    - {device: all, mig-enabled: no}\n"),
        [],
        [
            "error 4 InvalidLayout - mig-configs.a[0].mig-devices.1g.10bg: '1g.10bg' is not a profile name",
            "error 6 InvalidLayout - mig-configs.b[0].device: is not a known key",
            "error 6 InvalidLayout - mig-configs.b[0].devices: is missing; every entry needs it",
        ],
    ),
    "not YAML": ("version: [", [], ["error 2 InvalidLayout - None: column 1: not valid YAML"]),
    "nothing": ("", [], ["error 1 InvalidLayout - None: the file is empty"]),
    "a profile that no GPU has": (
        HEAD + layout("a", entry("2g.11gb: 1")),
        [],
        [
            "error 4 UnsupportedProfile - layout a: no known GPU model has a profile 2g.11gb; did you mean 2g.12gb"
        ],
    ),
    "a profile that its GPU lacks": (
        HEAD + layout("a", entry("2g.10gb: 1", "gpu-model: A100-SXM4-80GB, ")),
        [],
        [
            "error 4 UnsupportedProfile - layout a: NVIDIA A100-SXM4-80GB has no profile 2g.10gb; it has 1g.10gb"
        ],
    ),
    "too much for any GPU": (
        HEAD + layout("a", entry("3g.40gb: 2, 1g.10gb: 1")),
        [],
        [
            "error 4 ImpossibleLayout - layout a: no GPU model that has these profiles can hold them; for one, NVIDIA"
        ],
    ),
    "a model that nobody knows, and a name that no label holds": (
        HEAD + layout("a b", entry("9g.9gb: 1", "gpu-model: A1000-SXM4-80GB, ")),
        [],
        [
            "warning 3 InvalidLayout - layout a b: no label can hold this name",
            "warning 4 InvalidLayout - layout a b: gpu-model A1000-SXM4-80GB is none that is known; did you mean",
        ],
    ),
    "a layout that fits one kind of node": (
        HEAD + layout("a", entry("1g.10gb: 7")),
        ["--gpus", A100, "--gpus", A30],
        [],
    ),
    "the profile of another memory size": (
        HEAD + layout("a", entry("2g.10gb: 3")),
        ["--gpus", A100, "--gpus", A30],
        [
            f"error 4 UnsupportedProfile {A100} layout a: GPU 0: NVIDIA A100-SXM4-80GB has no profile 2g.10gb; it has",
            f"error 4 UnsupportedProfile {A30} layout a: GPU 0: NVIDIA A30 has no profile 2g.10gb; it has 1g.6gb",
        ],
    ),
    "a layout that says which GPUs it is for, and they cannot": (
        HEAD + layout("a", entry("1g.10gb: 7"), entry("1g.10gb: 4", "device-filter: 0x20B710DE, ")),
        ["--gpus", A100, "--gpus", A30],
        [
            f"error 5 InvalidLayout {A30} layout a: this entry asks for 4x 1g.10gb on GPU 0, but the one at stdin:4",
            f"error 5 InvalidLayout {A30} layout a: this entry asks for 4x 1g.10gb on GPU 1, but the one at stdin:4",
        ],
    ),
    "two GPUs of one node, one of which cannot": (
        HEAD + layout("a", entry("1g.10gb: 7")),
        ["--gpus", "2xA100-SXM4-80GB,1xA30"],
        [
            "error 4 UnsupportedProfile 2xA100-SXM4-80GB,1xA30 layout a: GPU 2: NVIDIA A30 has no profile 1g.10gb"
        ],
    ),
    "an index that no node has": (
        HEAD + layout("a", entry("1g.10gb: 7", which="[8, 9]")),
        ["--gpus", A100],
        [
            f"error 4 InvalidLayout {A100} layout a: there is no GPU 8; the GPUs are 0 to 7",
            f"error 4 InvalidLayout {A100} layout a: there is no GPU 9; the GPUs are 0 to 7",
        ],
    ),
    "a layout for nodes that are not given": (
        HEAD + layout("a", entry("1g.6gb: 4", "gpu-model: A30, ")),
        ["--gpus", A100, "--gpus", "4xT4"],
        ["warning 3 InvalidLayout - layout a: selects no GPU on any of these nodes"],
    ),
    "boards by UUID": (
        HEAD + layout("a", entry("1g.10gb: 7", which="['0000:07:00.0']")),
        ["--gpus", A30],
        [],
    ),
    "one kind of device, strategy single": (
        HEAD + layout("a", entry("1g.10gb: 7")),
        ["--gpus", A100, "--strategy", "single"],
        [],
    ),
    "two kinds of devices, strategy single": (
        HEAD + layout("a", entry("3g.40gb: 1, 1g.10gb: 4")),
        ["--gpus", A100, "--strategy", "single"],
        [
            f"error 3 StrategyMismatch {A100} layout a: the device plugin's MIG strategy on this node is 'single'"
        ],
    ),
    "some GPUs left as they are, strategy single": (
        HEAD + layout("a", entry("1g.10gb: 7", which="[0, 1]")),
        ["--gpus", A100, "--strategy", "single"],
        [],
    ),
    "compute instances, strategy mixed": (
        HEAD + layout("a", entry("1c.3g.40gb: 2")),
        ["--gpus", A100, "--strategy", "mixed"],
        [
            f"error 3 StrategyMismatch {A100} layout a: the device plugin's MIG strategy on this node is 'mixed'"
        ],
    ),
    "compute instances, strategy none": (
        HEAD + layout("a", entry("1c.3g.40gb: 2")),
        ["--gpus", A100, "--strategy", "none"],
        [],
    ),
    "only the layouts that matter": (
        HEAD + layout("a", entry("2g.10gb: 3")) + layout("b", entry("1g.10gb: 7")),
        ["--gpus", A100, "-c", "b"],
        [],
    ),
    "NVIDIA's way to write them": (NVIDIA_STYLE, [], []),
    "NVIDIA's way to write them, on one's own nodes": (
        NVIDIA_STYLE,
        [
            "--gpus",
            A100,
            "--gpus",
            A30,
            "-c",
            "all-1g.10gb",
            "-c",
            "all-1g.6gb",
            "-c",
            "all-balanced",
            "-c",
            "all-enabled",
        ],
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_findings(cli: Cli, name: str) -> None:
    text, options, expected = CASES[name]
    found = findings(cli, text, *options)
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected, found


def test_the_table_says_which_layout_fits_where(cli: Cli) -> None:
    text = HEAD + "".join(
        [
            layout("off", "    - {devices: all, mig-enabled: false}\n"),
            layout("slim", entry("1g.10gb: 7")),
            layout("a30", entry("1g.6gb: 4", "gpu-model: A30, ")),
            layout("board", entry("1g.6gb: 4", which="['0000:07:00.0']")),
            layout("wrong", entry("2g.10gb: 3", "gpu-model: A100-SXM4-80GB, ")),
        ]
    )
    ended = cli("validate", "-", "--gpus", "8x a100-sxm4-80gb", "--gpus", A30, stdin=text)
    assert (ended.code, ended.err) == (2, "")
    assert ended.out.splitlines() == [
        "stdin:12: error: UnsupportedProfile: layout wrong: on 8xA100-SXM4-80GB: GPU 0: NVIDIA A100-SXM4-80GB has no "
        "profile 2g.10gb; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb. Did you mean "
        "2g.20gb?",
        "LAYOUT  8xA100-SXM4-80GB  2xA30",
        "off     fits              fits",
        "slim    fits              for other nodes",
        "a30     selects nothing   fits",
        "board   names boards      names boards",
        "wrong   does not fit      selects nothing",
        "",
        "5 layouts in 1 file: 1 error",
    ]
    nodes = cli("validate", "-", "--gpus", A100, "--format", "json", stdin=text).json["files"][0]["layouts"]
    assert [(one["layout"], one["line"], one["nodes"][0]["result"]) for one in nodes] == [
        ("off", 3, "fits"),
        ("slim", 5, "fits"),
        ("a30", 7, "selects-nothing"),
        ("board", 9, "names-boards"),
        ("wrong", 11, "does-not-fit"),
    ]
    assert nodes[4]["nodes"][0]["why"][0].startswith("GPU 0: NVIDIA A100-SXM4-80GB has no profile 2g.10gb")


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*layouts*.yaml")), ids=lambda file: file.name)
def test_the_example_files_are_right(cli: Cli, file: Path) -> None:
    nodes = ["--gpus", A30, "--gpus", "4xA100-SXM4-80GB", "--gpus", "8xH100-80GB-HBM3", "--gpus", "4xH200"]
    assert cli("validate", file, *nodes, "--strategy", "mixed").code == 0


def test_a_manifest_is_told_by_its_own_lines(cli: Cli, tmp_path: Path) -> None:
    texts = {"config.yaml": NVIDIA_STYLE, "b.yaml": HEAD + layout("a", entry("1g.10gb: 8"))}
    maps = [
        {"kind": "ConfigMap", "metadata": {"name": name}, "data": {name: text}}
        for name, text in texts.items()
    ]
    manifest = tmp_path / "all.yaml"
    manifest.write_text("kind: Service\n---\n" + yaml.safe_dump_all(maps, default_style="|"))
    ended = cli("validate", manifest, "--format", "json")
    assert ended.code == 2
    files = ended.json["files"]
    assert [file["name"] for file in files] == [f"ConfigMap {name}, key {name}" for name in texts]
    (finding,) = ended.json["findings"]
    assert "1g.10gb: 8" in manifest.read_text().splitlines()[finding["line"] - 1]


@pytest.mark.parametrize("values", ["02-layouts-values", "03-layouts-text-values"])
def test_what_the_chart_makes_of_layouts_is_right(cli: Cli, values: str) -> None:
    rendered = render(yaml.safe_load((CHART / "ci" / f"{values}.yaml").read_text()), "gpu")
    ended = cli("validate", "-", "--format", "json", stdin=yaml.safe_dump_all(rendered))
    (file,) = ended.json["files"]
    assert (ended.code, len(file["layouts"])) == (0, 1 if "text" in values else 2), ended.json["findings"]


def test_several_files_are_told_together(cli: Cli, tmp_path: Path) -> None:
    good, bad, gone = (tmp_path / name for name in ("good.yaml", "bad.yaml", "gone.yaml"))
    good.write_text(HEAD + layout("a", entry("1g.10gb: 7")))
    bad.write_bytes(b"version: \xff")
    ended = cli("validate", good, bad, gone, good, "--gpus", A100)
    assert ended.code == 2
    assert ended.out.splitlines() == [
        f"{bad}:1: error: InvalidLayout: not UTF-8 text: byte 0xFF cannot stand here",
        f"{gone}: error: InvalidLayout: cannot be read: No such file or directory",
        str(good),
        "LAYOUT  8xA100-SXM4-80GB",
        "a       fits",
        "",
        "1 layout in 3 files: 2 errors",
    ]


def test_sarif_is_what_the_standard_says(cli: Cli, tmp_path: Path) -> None:
    """Read by classes that were generated from the schema of OASIS, which know every key and take no other."""
    bad = tmp_path / "a b" / "layouts.yaml"
    bad.parent.mkdir()
    bad.write_text(HEAD + layout("a", entry("2g.10gb: 3")) + layout("b c", entry("1g.10gb: 7")))
    options = ["--gpus", A100, "--format", "sarif", "--docs-url", "https://docs.example.com/mig/"]
    ended = cli("validate", bad, tmp_path / "gone.yaml", *options)
    assert (ended.code, ended.err) == (2, "")
    log = SarifLog.model_validate(ended.json)
    (run,) = log.runs
    rules = run.tool.driver.rules or []
    results = run.results or []
    assert [str(rule.helpUri) for rule in rules][:2] == [
        "https://docs.example.com/mig/troubleshooting/#invalidlayout",
        "https://docs.example.com/mig/troubleshooting/#unsupportedprofile",
    ]
    assert [rules[result.ruleIndex or 0].id for result in results] == [result.ruleId for result in results]
    places = [one["locations"][0]["physicalLocation"] for one in ended.json["runs"][0]["results"]]
    assert [(place["artifactLocation"]["uri"], place.get("region")) for place in places] == [
        (bad.as_uri(), {"startLine": 4}),
        (bad.as_uri(), {"startLine": 5}),
        ((tmp_path / "gone.yaml").as_uri(), None),
    ]
    assert [result.level and result.level.value for result in results] == ["error", "warning", "error"]


def test_every_rule_has_its_section_in_the_docs(cli: Cli) -> None:
    document = cli("validate", ROOT / "config" / "layouts.yaml", "--format", "sarif").json
    pages = (ROOT / "docs" / "troubleshooting.md").read_text()
    for rule in document["runs"][0]["tool"]["driver"]["rules"]:
        assert f"\n## {rule['id']}\n" in pages
        assert rule["help"]["text"].endswith(f"troubleshooting.md#{rule['id'].lower()} of mig-manager")


USAGE = {
    "no file": (["validate"], "FILE"),
    "unknown GPU": (["validate", "-", "--gpus", "8xA1000"], "--gpus"),
    "strategy without nodes": (["validate", "-", "--strategy", "mixed"], "--strategy"),
    "layout without nodes": (["validate", "-", "-c", "a"], "--selected-config"),
    "unknown layout": (["validate", "-", "--gpus", A30, "-c", "al"], "did you mean all?"),
    "unknown format": (["validate", "-", "--format", "xml"], "'xml'"),
    "no URL": (["validate", "-", "--docs-url", "docs"], "--docs-url"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_one_message_and_exit_code_2(cli: Cli, name: str) -> None:
    arguments, says = USAGE[name]
    ended = cli(*arguments, stdin=HEAD + layout("all", entry("1g.6gb: 4")))
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("error: ")
    assert says in ended.err


def test_five_thousand_lines_are_fast(cli: Cli) -> None:
    block = "    - devices: all\n      mig-enabled: true\n      mig-devices:\n        1g.10gb: {}\n"
    text = HEAD + "".join(layout(f"l{n}", block.format(n % 7 + 1)) for n in range(1000))
    start = time.process_time()
    assert cli("validate", "-", "--gpus", A100, "--gpus", A30, "--gpus", "8xH200,1xT4", stdin=text).code == 0
    assert time.process_time() - start < 10


def test_the_pre_commit_hook_runs_the_command_on_layout_files(cli: Cli) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    assert (hook["id"], program, hook["language"]) == ("mig-layouts", "mig-manager", "python")
    assert re.search(hook["files"], "config/layouts.yaml")
    assert re.search(hook["files"], "mig-layouts.yml")
    assert not re.search(hook["files"], "deploy/values.yaml")
    assert cli(*arguments, ROOT / "config" / "layouts.yaml").code == 0
