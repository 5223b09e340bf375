"""The commands, end to end on simulated GPUs: worker process, real pynvml, simulated library."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mig_manager.planning.catalogue import find_model
from mig_manager.simulation.gpus import SimulatedGpus
from tests.cli.conftest import MAIN, Cli

LAYOUTS = """\
version: v1
mig-configs:
  slim:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
  mixed:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.40gb: 1, 1g.10gb: 4}
  split:
    - devices: [0]
      mig-enabled: true
      mig-devices: {1c.3g.40gb: 2}
  plain:
    - devices: all
      mig-enabled: false
  y:
    - devices: [1]
      mig-enabled: true
      mig-devices: {}
"""


@pytest.fixture
def layouts(tmp_path: Path) -> Path:
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS)
    return path


@pytest.fixture
def node(tmp_path: Path) -> list[object]:
    """Options that reach the same two GPUs each time."""
    return ["--simulate", "2xA100-SXM4-80GB", "--simulate-state", tmp_path / "gpus.json"]


def test_plan_prints_the_documented_json(cli: Cli, layouts: Path, node: list[object]) -> None:
    assert cli("apply", "-f", layouts, "-c", "slim", *node).code == 0
    ended = cli("plan", "-f", layouts, "-c", "mixed", "-o", "json", *node)
    assert (ended.code, ended.err) == (0, "")
    document = ended.json
    assert list(document) == ["layout", "feasible", "reason", "message", "gpus", "untouched"]
    assert (document["layout"], document["feasible"], document["reason"]) == ("mixed", True, None)
    assert [gpu["index"] for gpu in document["gpus"]] == [0, 1]
    gpu = document["gpus"][0]
    assert list(gpu) == ["index", "uuid", "model", "mig", "keep", "destroy", "create"]
    assert gpu["mig"] == {"current": True, "target": True, "reset": False}
    assert gpu["keep"] == [{"profile": "1g.10gb", "start": start, "size": 1} for start in range(4)]
    assert [item["start"] for item in gpu["destroy"]] == [4, 5, 6]
    assert gpu["create"] == [{"profile": "3g.40gb", "start": 4, "size": 4}]


def test_plan_names_compute_instances_only_where_they_are_split(
    cli: Cli, layouts: Path, node: list[object]
) -> None:
    document = cli("plan", "-f", layouts, "-c", "split", "-o", "json", *node).json
    assert document["untouched"] == [1]
    (created,) = document["gpus"][0]["create"]
    assert created["compute"] == ["1c.3g.40gb", "1c.3g.40gb"]
    assert document["gpus"][0]["mig"] == {"current": False, "target": True, "reset": True}


def test_one_of_two_equal_compute_instances_can_stay(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "now.json"
    pair = {"profile": "3g.40gb", "start": 4, "compute": ["1c.3g.40gb", "1c.3g.40gb"]}
    gpu = {"index": 0, "model": "A100-SXM4-80GB", "mig": True, "instances": [pair]}
    state.write_text(json.dumps({"version": "v1", "gpus": [gpu]}))
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text(LAYOUTS.replace("1c.3g.40gb: 2", "1c.3g.40gb: 1"))
    command = ["plan", "-f", layouts, "-c", "split", "--current", state]
    (planned,) = cli(*command, "-o", "json").json["gpus"]
    assert (planned["destroy"], planned["create"]) == ([], [])
    assert planned["keep"] == [{"profile": "3g.40gb", "start": 4, "size": 4, "compute": ["1c.3g.40gb"]}]
    assert "now 1c" in cli(*command).out


def test_an_impossible_layout_is_told_on_stderr_and_as_json(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS.replace("3g.40gb: 1, 1g.10gb: 4", "3g.40gb: 2, 1g.10gb: 1"))
    ended = cli("plan", "-f", path, "-c", "mixed", "--simulate", "1xA100-SXM4-80GB", "-o", "json")
    assert ended.code == 2
    document = ended.json
    assert (document["feasible"], document["reason"]) == (False, "ImpossibleLayout")
    assert (document["gpus"], document["untouched"]) == ([], [])
    assert document["message"] in ended.err
    text = cli("plan", "-f", path, "-c", "mixed", "--simulate", "1xA100-SXM4-80GB")
    assert (text.code, text.out) == (2, "")
    assert "ImpossibleLayout" in text.err


def test_commands_compose_over_the_state_file(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path
) -> None:
    applied = cli("apply", "-f", layouts, "-c", "slim", *node)
    assert applied.code == 0, applied.err
    assert "read back" in applied.out
    assert cli("assert", "-f", layouts, "-c", "slim", *node).code == 0
    again = cli("apply", "-f", layouts, "-c", "slim", *node)
    assert again.code == 0
    assert "nothing to do" in again.out
    assert "read back" not in again.out

    exported = tmp_path / "exported.yaml"
    exported.write_text(cli("export", "-l", "friday", *node).out)
    assert cli("assert", "-f", exported, "-c", "friday", *node).code == 0
    assert cli("apply", "-f", layouts, "-c", "plain", *node).code == 0
    assert cli("assert", "-f", exported, "-c", "friday", *node).code == 1
    assert cli("apply", "-f", exported, "-c", "friday", *node).code == 0
    assert cli("assert", "-f", layouts, "-c", "slim", *node).code == 0


def test_an_exported_state_stands_in_for_the_gpus(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    cli("apply", "-f", layouts, "-c", "split", *node)
    state = cli("export", "-o", "json", *node)
    keys = ["index", "uuid", "bus_id", "model", "mig", "instances"]
    assert [list(gpu) for gpu in state.json["gpus"]] == [keys] * 2
    assert state.json["gpus"][0]["instances"] == [
        {
            "profile": "3g.40gb",
            "start": state.json["gpus"][0]["instances"][0]["start"],
            "size": 4,
            "compute": ["1c.3g.40gb", "1c.3g.40gb"],
            "busy": False,
        }
    ]
    path = tmp_path / "gpus-now.json"
    path.write_text(state.out)
    for layout in ("slim", "mixed", "split", "plain", "y"):
        live = cli("plan", "-f", layouts, "-c", layout, "-o", "json", *node).json
        read = cli("plan", "-f", layouts, "-c", layout, "-o", "json", "--current", path).json
        assert read == live
    piped = cli("plan", "-f", layouts, "-c", "split", "--current", "-", stdin=state.out)
    assert piped.code == 0
    assert "nothing to do" in piped.out


def test_an_exported_state_tells_what_layouts_can_select_gpus_by(cli: Cli, tmp_path: Path) -> None:
    path, exported = tmp_path / "gpus.json", tmp_path / "gpus-now.json"
    a100, pg509, h100 = (find_model(name) for name in ("A100-SXM4-80GB", "A100-SXM4-80GB", "NVIDIA H100"))
    pg509 = replace(pg509, names=("NVIDIA PG509-210",), subsystem_ids=(0x162510DE,))
    SimulatedGpus.create(path, [a100, pg509, h100, replace(a100, subsystem_ids=a100.subsystem_ids[1:])])
    exported.write_text(cli("export", "-o", "json", "--simulate-state", path).out)
    bus_id = SimulatedGpus.open(path).snapshot()["gpus"][3]["bus_id"]
    selectors = {
        "bus": f'devices: ["{bus_id}"]',
        "subsystem": 'devices: all, device-filter: "0x20B210DE:0x162510DE"',
        "usual": 'devices: all, device-filter: "0x20B210DE:0x146310DE"',
        "name": 'devices: all, gpu-model: "NVIDIA PG509-210"',
        "h100": "devices: all, gpu-model: H100",
    }
    layouts = tmp_path / "layouts.yaml"
    entries = [
        f"  {name}: [{{{words}, mig-enabled: true, mig-devices: {{}}}}]" for name, words in selectors.items()
    ]
    layouts.write_text("\n".join(["version: v1", "mig-configs:", *entries]))
    selected = {}
    for name in selectors:
        command = ["plan", "-f", layouts, "-c", name, "-o", "json"]
        read = cli(*command, "--current", exported).json
        assert read == cli(*command, "--simulate-state", path).json
        selected[name] = [gpu["index"] for gpu in read["gpus"]]
    assert selected == {"bus": [3], "subsystem": [1], "usual": [0], "name": [1], "h100": [2]}


def test_export_writes_gpus_that_differ_as_entries_of_their_own(
    cli: Cli, layouts: Path, node: list[object]
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    cli("apply", "-f", layouts, "-c", "split", *node)
    exported = cli("export", "-l", "off", *node)
    assert list(yaml.safe_load(exported.out)["mig-configs"]) == ["off"], "a text, not a boolean"
    layout = yaml.safe_load(cli("export", *node).out)
    assert layout == {
        "version": "v1",
        "mig-configs": {
            "current": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.3g.40gb": 2}},
                {"devices": [1], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
            ]
        },
    }


def test_assert_tells_the_differences(cli: Cli, layouts: Path, node: list[object]) -> None:
    off = cli("assert", "-f", layouts, "-c", "mixed", *node)
    assert (off.code, off.err) == (1, "")
    assert "GPUs 0-1: MIG is off, the layout wants on" in off.out
    cli("apply", "-f", layouts, "-c", "slim", *node)
    differs = cli("assert", "-f", layouts, "-c", "mixed", *node)
    assert differs.code == 1
    assert "GPUs 0-1: beyond the layout: 3 x 1g.10gb at 4, 5, 6" in differs.out
    assert "GPUs 0-1: lacks 1 x 3g.40gb" in differs.out
    assert cli("assert", "-f", layouts, "-c", "mixed", "--mode-only", *node).code == 0
    assert cli("assert", "-f", layouts, "-c", "mixed", "--valid-config", *node).code == 0
    assert cli("assert", "-f", layouts, "-c", "plain", "--mode-only", *node).code == 1


def test_a_refusing_gpu_gives_exit_code_3_and_keeps_its_layout(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    before = cli("export", "-o", "json", *node).json
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", 999, gpu=1)
    ended = cli("apply", "-f", layouts, "-c", "mixed", *node)
    assert ended.code == 3
    assert ended.err.startswith("error: NvmlError: ")
    assert "Traceback" not in ended.err
    after = cli("export", "-o", "json", *node).json
    assert after == before
    assert cli("apply", "-f", layouts, "-c", "mixed", *node).code == 0


def test_without_a_file_the_generated_layouts_serve_and_a_file_wins(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path
) -> None:
    names = {item["layout"] for item in cli("plan", "-o", "json", *node).json["layouts"]}
    assert {"all-disabled", "all-enabled", "all-balanced", "all-1g.10gb", "all-1g.10gb.me"} <= names
    generated = cli("plan", "-c", "all-1g.10gb", "-o", "json", *node).json
    assert len(generated["gpus"][0]["create"]) == 7
    assert cli("plan", "-f", layouts, "-c", "all-1g.10gb", "-o", "json", *node).json == generated
    path = tmp_path / "own.yaml"
    path.write_text(LAYOUTS.replace("slim", "all-1g.10gb").replace("{1g.10gb: 7}", "{1g.10gb: 2}"))
    own = cli("plan", "-f", path, "-c", "all-1g.10gb", "-o", "json", *node).json
    assert len(own["gpus"][0]["create"]) == 2


def test_every_layout_of_a_file_is_tried_when_none_is_chosen(cli: Cli, layouts: Path) -> None:
    on_a30 = cli("plan", "-f", layouts, "-o", "json", "--simulate", "2xA30")
    assert on_a30.code == 0
    verdicts = {item["layout"]: item["reason"] for item in on_a30.json["layouts"]}
    assert verdicts == {
        "slim": "UnsupportedProfile",
        "mixed": "UnsupportedProfile",
        "split": "UnsupportedProfile",
        "plain": None,
        "y": None,
    }
    table = cli("plan", "-f", layouts, "--simulate", "2xA30").out.splitlines()
    assert [line.split()[:2] for line in table] == [
        ["LAYOUT", "FITS"],
        ["slim", "no"],
        ["mixed", "no"],
        ["split", "no"],
        ["plain", "yes"],
        ["y", "yes"],
    ]


def test_a_layout_named_like_a_boolean_can_be_chosen(cli: Cli, layouts: Path, node: list[object]) -> None:
    assert cli("plan", "-f", layouts, "-c", "y", "-o", "json", *node).json["untouched"] == [0]


def test_the_plan_for_people_draws_every_gpu_once_in_ascii_and_80_columns(
    cli: Cli, layouts: Path, node: list[object]
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    lines = cli("plan", "-f", layouts, "-c", "mixed", *node).out.splitlines()
    text = "\n".join(lines)
    assert text.isascii()
    assert max(map(len, lines)) <= 80
    assert text.count("before ") == 1, "two GPUs that look alike share a picture"
    assert "GPUs 0-1  NVIDIA A100-SXM4-80GB" in text
    assert "4 x 1g.10gb at 0, 1, 2, 3" in text
    assert lines[-1] == "mixed: 2 GPUs of 2 changed; 8 instances kept, 6 destroyed, 2 created; no reset"


def test_a_plan_says_why_gpus_stay_untouched(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(
        "version: v1\nmig-configs:\n  one:\n"
        "  - {devices: [0], mig-enabled: true, mig-devices: {}}\n"
        '  - {devices: all, gpu-model: "H100-80GB-HBM3", mig-enabled: true, mig-devices: {}}\n'
    )
    ended = cli("plan", "-f", path, "-c", "one", "--simulate", "2xA100-SXM4-80GB,1xT4,1xH100-80GB-HBM3")
    untouched = [line for line in ended.out.splitlines() if "untouched" in line]
    assert ["no entry lists it" in line for line in untouched] == [True, False]
    assert untouched[0].startswith("GPU 1 ")
    assert "it has no MIG" in untouched[1]


def test_busy_instances_that_would_go_are_pointed_out(cli: Cli, layouts: Path, tmp_path: Path) -> None:
    state = tmp_path / "now.json"
    instances = [
        {"profile": "1g.10gb", "start": start, "size": 1, "busy": start in (0, 5)} for start in range(7)
    ]
    gpu = {"index": 0, "model": "A100-SXM4-80GB", "mig": True, "instances": instances}
    state.write_text(json.dumps({"version": "v1", "gpus": [gpu]}))
    kept = cli("plan", "-f", layouts, "-c", "mixed", "--current", state, "-o", "json").json["gpus"][0]["keep"]
    assert 0 in [item["start"] for item in kept] or 5 in [item["start"] for item in kept]
    text = cli("plan", "-c", "all-disabled", "--current", state).out
    assert "in use!  2 x 1g.10gb at 0, 5" in text
    assert "= busy" not in text
    assert "- busy" in text


def test_assumed_catalogue_fields_are_shown(cli: Cli) -> None:
    known = cli("plan", "-c", "all-1g.10gb", "--simulate", "A100-SXM4-80GB", "-o", "json").json
    assert "assumed" not in known["gpus"][0]
    assumed = cli("plan", "-c", "all-balanced", "--simulate", "B300-SXM6-AC", "-o", "json").json
    assert "profile_id" in assumed["gpus"][0]["assumed"]
    text = cli("plan", "-c", "all-balanced", "--simulate", "B300-SXM6-AC").out
    assert "assumed" in text
    assert "profile_id" in text


def test_leftovers_without_compute_instances_are_differences(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "now.json"
    leftover = {"profile": "2g.20gb", "start": 2, "compute": []}
    gpu = {"index": 0, "model": "A100-SXM4-80GB", "mig": True, "instances": [leftover]}
    state.write_text(json.dumps({"version": "v1", "gpus": [gpu]}))
    plan = cli("plan", "-c", "all-enabled", "--current", state, "-o", "json").json
    assert plan["gpus"][0]["destroy"] == [{"profile": "2g.20gb", "start": 2, "size": 2, "compute": []}]
    assert "no compute" in cli("plan", "-c", "all-enabled", "--current", state).out


def test_a_mode_that_waits_for_a_reset_shows_in_the_plan(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "now.json"
    gpu = {"index": 0, "model": "A100-SXM4-80GB", "mig": True, "pending": False, "instances": []}
    state.write_text(json.dumps({"version": "v1", "gpus": [gpu]}))
    (planned,) = cli("plan", "-c", "all-enabled", "--current", state, "-o", "json").json["gpus"]
    assert planned["mig"] == {"current": True, "target": True, "reset": False, "pending": False}


def test_gpus_without_uuids_are_planned_one_by_one(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "now.json"
    full = {"model": "A30", "mig": True, "instances": [{"profile": "4g.24gb", "start": 0}]}
    state.write_text(json.dumps({"version": "v1", "gpus": [full, {"model": "A30", "mig": True}]}))
    plan = cli("plan", "-c", "all-4g.24gb", "--current", state, "-o", "json").json
    assert [(len(gpu["keep"]), len(gpu["create"]), gpu["uuid"]) for gpu in plan["gpus"]] == [
        (1, 0, None),
        (0, 1, None),
    ]


def test_room_that_a_layout_leaves_is_told_as_far_as_it_is_true(cli: Cli) -> None:
    two = cli("plan", "-c", "all-2g.20gb", "--simulate", "A100-SXM4-80GB").out
    assert "room for one of 1g.20gb, 1g.10gb" in two
    # All media engines are in the one instance that is there: every other has none to get.
    media = cli("plan", "-c", "all-1g.24gb.me.all", "--simulate", "RTX-PRO-6000-Blackwell-Server-Edition").out
    assert "1g.24gb+me.all" in media
    assert "room for" not in media
    assert "room for" not in cli("plan", "-c", "all-3g.40gb", "--simulate", "A100-SXM4-80GB").out


def test_settings_of_the_daemon_reach_the_gpus_of_this_machine(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    monkeypatch.setenv("MIG_MANAGER_NVML_LOADER", "mig_manager.simulation.nvml:install")
    monkeypatch.setenv("MIG_MANAGER_NVML_ARGUMENT", str(tmp_path / "gpus.json"))
    assert cli("assert", "-f", layouts, "-c", "slim").code == 0
    monkeypatch.setenv("MIG_MANAGER_RESET_TIMEOUT", "soon")
    ended = cli("assert", "-f", layouts, "-c", "slim")
    assert (ended.code, ended.out) == (2, "")
    assert "MIG_MANAGER_RESET_TIMEOUT" in ended.err


def test_ctrl_c_does_not_leave_gpus_half_changed(
    cli: Cli, layouts: Path, node: list[object], tmp_path: Path
) -> None:
    cli("apply", "-f", layouts, "-c", "slim", *node)
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    arguments = ["apply", "-f", layouts, "-c", "mixed", *node]
    with (
        gpus.hold_calls("nvmlDeviceCreateGpuInstanceWithPlacement") as gate,
        subprocess.Popen(
            [*MAIN, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        gate.wait()
        process.send_signal(signal.SIGINT)
        assert "are being changed" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert "are being changed" in process.stderr.readline()
        gate.open()
        assert process.wait(timeout=60) == 0
    assert cli("assert", "-f", layouts, "-c", "mixed", *node).code == 0
