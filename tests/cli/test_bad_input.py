"""Every kind of bad input ends with exit code 2 and one message that names the place, and nothing happens."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

HEAD = "version: v1\nmig-configs:\n"


def layout(*entries: str, name: str = "wanted") -> str:
    return HEAD + f"  {name}:\n" + "".join(f"    - {entry}\n" for entry in entries)


def devices(profiles: str, which: str = "all") -> str:
    return layout(f"{{devices: {which}, mig-enabled: true, mig-devices: {{{profiles}}}}}")


@dataclass(frozen=True)
class Case:
    """A layout file, and what the message must say."""

    text: str
    says: tuple[str, ...]
    reason: str = "InvalidLayout"
    line: int | None = None


CASES = {
    "broken YAML": Case(HEAD + "  wanted: [", ("layouts.yaml",)),
    "not a mapping": Case("- version: v1\n", ("layouts.yaml:1",)),
    "nothing in the file": Case("", ("layouts.yaml",)),
    "unknown key at the top": Case("versoin: v1\nmig-configs: {}\n", ("versoin", "version"), line=1),
    "unknown key in an entry": Case(
        layout("{device: all, mig-enabled: false}"), ("wanted[0].device:", "did you mean devices?"), line=4
    ),
    "wrong type of devices": Case(layout("{devices: {a: 1}, mig-enabled: false}"), ("devices",), line=4),
    "wrong type of mig-enabled": Case(
        layout("{devices: all, mig-enabled: maybe}"), ("mig-enabled", "maybe"), line=4
    ),
    "wrong type of a count": Case(devices("1g.10gb: many"), ("1g.10gb", "many"), line=4),
    "negative count": Case(devices("1g.10gb: -1"), ("1g.10gb", "-1"), line=4),
    "missing version": Case("mig-configs:\n  wanted: []\n", ("version", "v1")),
    "another version": Case(
        layout("{devices: all, mig-enabled: false}").replace("v1", "v2"), ("v2", "v1"), line=1
    ),
    "missing mig-configs": Case("version: v1\n", ("mig-configs",)),
    "empty configs": Case("version: v1\nmig-configs: {}\n", ("mig-configs",)),
    "empty layout": Case("version: v1\nmig-configs: {wanted: []}\n", ("wanted",)),
    "index beyond the GPUs": Case(
        layout("{devices: [0, 9], mig-enabled: false}"), ("GPU 9", "0 to 7"), line=4
    ),
    "malformed profile": Case(devices("1g.10bg: 7"), ("1g.10bg", "1g.10gb"), line=4),
    "profile of another memory size": Case(
        devices("2g.10gb: 3"), ("2g.10gb", "2g.20gb"), "UnsupportedProfile", line=4
    ),
    "profile that the model lacks": Case(
        devices("1g.24gb+gfx: 1"), ("1g.24gb+gfx", "7g.80gb"), "UnsupportedProfile", line=4
    ),
    "impossible sum": Case(
        devices("3g.40gb: 2, 1g.10gb: 1"), ("3g.40gb", "1g.10gb"), "ImpossibleLayout", line=4
    ),
    "more of one than there can be": Case(devices("1g.10gb: 8"), ("8", "7"), "ImpossibleLayout", line=4),
    "conflicting entries": Case(
        layout("{devices: all, mig-enabled: false}", "{devices: [2], mig-enabled: true, mig-devices: {}}"),
        ("layouts.yaml:4", "layouts.yaml:5", "GPU 2"),
    ),
    "no entry selects a GPU": Case(
        layout('{devices: all, device-filter: "0x233010DE", mig-enabled: false}'),
        ("no entry selects any GPU", "0x20B210DE", "the layout is for 0x233010DE"),
    ),
    "malformed filter": Case(
        layout('{devices: all, device-filter: "20B2", mig-enabled: false}'), ("20B2", "0x20B"), line=4
    ),
    "model as a filter": Case(
        layout("{devices: all, device-filter: [A100, H100], mig-enabled: false}"),
        ("found A100", "found H100", "a model name belongs in gpu-model"),
        line=4,
    ),
    "duplicate keys": Case(
        HEAD + "  wanted:\n    - {devices: all, mig-enabled: false}\n  wanted: []\n", ("wanted",), line=5
    ),
    "unknown UUID": Case(
        layout('{devices: ["GPU-00000000"], mig-enabled: false}'), ("GPU-00000000",), line=4
    ),
    "bus id where none is known": Case(
        layout('{devices: ["0000:07:00.0"], mig-enabled: false}'), ("00000000:07:00.0", "not known"), line=4
    ),
    "unknown model": Case(
        layout("{devices: all, gpu-model: A1000-SXM4-80GB, mig-enabled: false}"),
        ("no entry selects any GPU", "A100-SXM4-80GB"),
    ),
    "name of no layout": Case(
        layout("{devices: all, mig-enabled: false}", name="wantd"),
        ("layout wanted", "did you mean wantd?"),
        "UnknownLayout",
    ),
    "name that YAML takes for a boolean is a name": Case(
        layout("{devices: all, mig-enabled: false}", name="y"),
        ("layout wanted", "Valid names: y,"),
        "UnknownLayout",
    ),
}


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state file of eight A100s."""
    path = tmp_path_factory.mktemp("gpus") / "gpus.json"
    item = {"model": "A100-SXM4-80GB", "mig": True, "instances": []}
    path.write_text(json.dumps({"version": "v1", "gpus": [item] * 8}))
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_bad_layout_is_one_message_and_exit_code_2(cli: Cli, gpus: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = tmp_path / "layouts.yaml"
    path.write_text(case.text)
    ended = cli("plan", "-f", path, "-c", "wanted", "--current", gpus)
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith(f"error: {case.reason}:")
    assert "Traceback" not in ended.err
    assert [word for word in case.says if word not in ended.err] == [], ended.err
    assert "GPU 7" not in ended.err, "the first GPU that cannot is the one that is named"
    if case.line is not None:
        assert f"layouts.yaml:{case.line}" in ended.err
    machine = cli("plan", "-f", path, "-c", "wanted", "--current", gpus, "-o", "json")
    assert machine.code == 2
    assert machine.err == ended.err
    document = machine.json
    assert (document["layout"], document["feasible"], document["reason"]) == ("wanted", False, case.reason)
    assert document["message"]


@pytest.mark.parametrize("command", ["apply", "assert"])
def test_apply_and_assert_refuse_bad_layouts_alike(cli: Cli, tmp_path: Path, command: str) -> None:
    path = tmp_path / "layouts.yaml"
    state = tmp_path / "gpus.json"
    node = ["--simulate", "2xA100-SXM4-80GB", "--simulate-state", state]
    before = cli("export", "-o", "json", *node).json
    for name in ("duplicate keys", "profile of another memory size", "impossible sum", "name of no layout"):
        path.write_text(CASES[name].text)
        ended = cli(command, "-f", path, "-c", "wanted", *node)
        assert (ended.code, ended.out) == (2, ""), name
        assert ended.err.startswith(f"error: {CASES[name].reason}:")
    assert cli("export", "-o", "json", *node).json == before


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "unreadable"])
def test_a_file_that_cannot_be_read_is_named(cli: Cli, gpus: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "layouts.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00version")
    elif kind == "unreadable":
        path.write_text("version: v1")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root reads everything")
    ended = cli("plan", "-f", path, "-c", "wanted", "--current", gpus)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert str(path) in ended.err
    assert len(ended.err.splitlines()) <= 2


USAGE: dict[str, tuple[list[str], list[str]]] = {
    "unknown command": (["plam"], ["'plam'", "'plan'"]),
    "unknown option": (["plan", "--selected-confg", "x"], ["--selected-confg", "--selected-config"]),
    "no layout named": (["apply"], ["--selected-config"]),
    "unknown output": (["plan", "-o", "xml"], ["'xml'", "text", "json"]),
    "unknown GPU": (["plan", "--simulate", "8xA1000-SXM4-80GB"], ["A1000-SXM4-80GB", "A100-SXM4-80GB"]),
    "no number of GPUs": (["plan", "--simulate", "0xA30"], ["0xA30"]),
    "empty GPUs": (["export", "--simulate", ""], ["8xA100-SXM4-80GB"]),
    "state file that is not there": (
        ["export", "--simulate-state", "/nowhere/gpus.json"],
        ["/nowhere/gpus.json", "--simulate"],
    ),
    "state file that cannot be written": (
        ["export", "--simulate", "A30", "--simulate-state", "/proc/gpus.json"],
        ["/proc/gpus.json"],
    ),
    "two sources of GPUs": (["plan", "--current", "x", "--simulate", "A30"], ["--current", "--simulate"]),
    "current state that is not there": (["plan", "--current", "/nowhere.json"], ["/nowhere.json"]),
    "quotes that do not close": (
        ["apply", "-c", "all-1g.6gb", "--simulate", "A30", "--reset-command", "'reset"],
        ["--reset-command", "quotation"],
    ),
    "argument too many": (["plan", "all-1g.10gb"], ["all-1g.10gb"]),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_one_message_and_exit_code_2(cli: Cli, name: str) -> None:
    arguments, says = USAGE[name]
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) <= 2, ended.err
    assert [word for word in says if word not in ended.err] == [], ended.err


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"version": "v1", "gpus": []}', "[1]"])
def test_a_broken_simulation_file_is_named(cli: Cli, tmp_path: Path, content: str) -> None:
    state = tmp_path / "gpus.json"
    state.write_text(content)
    ended = cli("export", "--simulate-state", state)
    assert (ended.code, ended.out) == (2, "")
    assert str(state) in ended.err
    assert len(ended.err.splitlines()) <= 2, ended.err


def test_a_simulation_file_with_unknown_instances_is_named(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "gpus.json"
    node = ["--simulate", "A30", "--simulate-state", state]
    assert cli("apply", "-c", "all-1g.6gb", *node).code == 0
    document = json.loads(state.read_text())
    document["gpus"][0]["instances"][0]["profile"] = -1
    state.write_text(json.dumps(document))
    ended = cli("export", *node)
    assert (ended.code, ended.out) == (2, "")
    assert str(state) in ended.err


def test_a_simulation_file_in_a_read_only_directory_is_named(cli: Cli, tmp_path: Path) -> None:
    node = ["--simulate", "A30", "--simulate-state", tmp_path / "gpus.json"]
    assert cli("export", *node).code == 0
    tmp_path.chmod(0o555)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root writes everywhere")
    ended = cli("export", *node)
    tmp_path.chmod(0o755)
    assert (ended.code, ended.out) == (2, "")
    assert "gpus.json: its directory cannot be written" in ended.err


def test_a_simulation_file_of_other_gpus_is_not_mixed_up(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "gpus.json"
    assert cli("export", "--simulate", "2xA30", "--simulate-state", state).code == 0
    ended = cli("export", "--simulate", "1xA30", "--simulate-state", state)
    assert ended.code == 2
    assert "2xA30" in ended.err
    assert "1xA30" in ended.err
