"""Checkpoints: what was there comes back exactly, on these GPUs and on no others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mig_manager.simulation.gpus import SimulatedGpus
from tests.cli.conftest import Cli

LAYOUTS = """\
version: v1
mig-configs:
  wanted:
    - {devices: [0], mig-enabled: true, mig-devices: {1c.3g.40gb: 2, 3g.40gb: 1}}
    - {devices: [1], mig-enabled: true, mig-devices: {2g.20gb: 1, 1g.10gb+me: 1, 1g.10gb: 2}}
    - {devices: [2], mig-enabled: false}
"""
GPUS = "2xA100-SXM4-80GB,H100-80GB-HBM3,T4"


@pytest.fixture
def node(cli: Cli, tmp_path: Path) -> list[object]:
    """Two A100 that are split, one with a leftover; an H100 with MIG off; a GPU without MIG."""
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text(LAYOUTS)
    options: list[object] = ["--simulate", GPUS, "--simulate-state", tmp_path / "gpus.json"]
    assert cli("apply", "-f", layouts, "-c", "wanted", *options).code == 0
    assert cli("create", "1g.20gb", "--no-compute", "--gpu", 1, *options).code == 0
    return options


def instances(tmp_path: Path) -> list[Any]:
    return [
        (gpu["mig"], [_shape(item) for item in gpu["instances"]])
        for gpu in SimulatedGpus.open(tmp_path / "gpus.json").snapshot()["gpus"]
    ]


def _shape(item: Any) -> tuple[Any, ...]:
    return item["profile"], item["start"], [(each["profile"], each["start"]) for each in item["compute"]]


def as_mig_parted_has_it(document: Any) -> str:
    """The same in the file that nvidia-mig-parted writes: on one line, without our keys, null for empty lists."""
    devices = [
        {
            "UUID": gpu["UUID"],
            "MigMode": gpu["MigMode"],
            "GpuInstances": [
                {
                    "ProfileID": item["ProfileID"],
                    "Placement": item["Placement"],
                    "ComputeInstances": [
                        {"ProfileID": c["ProfileID"], "EngProfileID": c["EngProfileID"]}
                        for c in item["ComputeInstances"]
                    ]
                    or None,
                }
                for item in gpu["GpuInstances"]
            ]
            or None,
        }
        for gpu in document["MigState"]["Devices"]
    ]
    return json.dumps({"Version": "v1", "MigState": {"Devices": devices}}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("layout", "theirs"), [("all-disabled", False), ("all-balanced", False), ("all-balanced", True)]
)
def test_what_was_there_comes_back_exactly(
    cli: Cli, node: list[object], tmp_path: Path, layout: str, theirs: bool
) -> None:
    path = tmp_path / "saved.json"
    before = instances(tmp_path)
    assert cli("checkpoint", path, *node).out == f"{path}: 3 GPUs\n"
    if theirs:
        path.write_text(as_mig_parted_has_it(json.loads(path.read_text())))
    assert cli("apply", "-c", layout, *node).code == 0
    changed = instances(tmp_path)
    shown = cli("restore", path, "--dry-run", *node)
    assert (shown.code, shown.err) == (0, "")
    assert instances(tmp_path) == changed
    ended = cli("restore", path, *node)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(shown.out)
    assert "read back" in ended.out
    assert instances(tmp_path) == before
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    gpus.record_calls()
    assert "nothing to do" in cli("restore", path, *node).out
    assert gpus.calls(changes=True) == []


def test_older_files_of_nvidia_mig_parted_spell_keys_otherwise(
    cli: Cli, node: list[object], tmp_path: Path
) -> None:
    text = as_mig_parted_has_it(cli("checkpoint", "-", *node).json).replace("ProfileID", "ProfileId")
    assert "nothing to do" in cli("restore", "-", *node, stdin=text).out


def test_what_is_the_same_already_is_not_touched(cli: Cli, node: list[object], tmp_path: Path) -> None:
    """A busy instance lives through a restore around it; a compute instance in an odd place stays there."""
    path = tmp_path / "saved.json"
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    split = next(i for i in gpus.snapshot()["gpus"][0]["instances"] if len(i["compute"]) == 2)
    cli("destroy", "--gi", split["id"], "--ci", split["compute"][0]["id"], "--gpu", 0, *node)
    cli("create", "1c.3g.40gb:2", "--gi", split["id"], "--gpu", 0, *node)
    document = cli("checkpoint", "-", *node).json
    gpus.add_process(split["compute"][1]["uuid"], pid=4242, name="train")
    cli("destroy", "--gi", split["id"], "--ci", split["compute"][0]["id"], "--gpu", 0, *node)
    for text in (as_mig_parted_has_it(document), json.dumps(document)):
        path.write_text(text)
        ended = cli("restore", path, *node)
        assert ended.code == 0, ended.err
        now = next(i for i in gpus.snapshot()["gpus"][0]["instances"] if i["id"] == split["id"])
        assert split["compute"][1]["uuid"] in [compute["uuid"] for compute in now["compute"]]
    assert cli("checkpoint", "-", *node).json == document


def test_a_compute_instance_in_the_way_makes_room(cli: Cli, node: list[object], tmp_path: Path) -> None:
    """A file without places wants 1c and 2c in a 3g.40gb, where a 1c lies at 0, the only place for a 2c."""
    cli("destroy", "--all", "--gpu", 0, *node)
    cli("create", "1c.3g.40gb:0", "--gpu", 0, *node)
    document = cli("checkpoint", "-", *node).json
    inside = [{"ProfileID": 0, "EngProfileID": 0}, {"ProfileID": 1, "EngProfileID": 0}]
    document["MigState"]["Devices"][0]["GpuInstances"][0]["ComputeInstances"] = inside
    ended = cli("restore", "-", *node, stdin=as_mig_parted_has_it(document))
    assert (ended.code, ended.err) == (0, "")
    ((_, _, compute),) = instances(tmp_path)[0][1]
    assert sorted(compute) == [("1c.3g.40gb", 2), ("2c.3g.40gb", 0)]


def test_a_refused_restore_leaves_what_was_there(cli: Cli, node: list[object], tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    cli("checkpoint", path, *node)
    assert cli("apply", "-c", "all-balanced", *node).code == 0
    before = instances(tmp_path)
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", 999, gpu=1)
    refused = cli("restore", path, *node)
    assert (refused.code, instances(tmp_path)) == (3, before)
    assert refused.err.startswith("error: NvmlError: GPU 1")
    assert "The previous layout is back." in refused.err


def test_gpus_that_the_file_lacks_are_left_alone(cli: Cli, node: list[object], tmp_path: Path) -> None:
    document = cli("checkpoint", "-", *node).json
    del document["MigState"]["Devices"][0]
    assert cli("apply", "-c", "all-1g.10gb", *node).code == 0
    between = instances(tmp_path)
    ended = cli("restore", "-", *node, stdin=json.dumps(document))
    assert ended.code == 0
    assert "GPU 0: not in the file, untouched" in ended.out
    assert instances(tmp_path)[0] == between[0]
    assert instances(tmp_path)[1] != between[1]


OTHER = "GPU-00000000-1111-2222-3333-444444444444"
FIRST = "0/GpuInstances/0"
ONE_SLICE = {"ProfileID": 0, "Placement": {"Start": 0, "Size": 1}}
TWO_MEDIA = [{"ProfileID": 7, "Placement": {"Start": start, "Size": 1}} for start in (0, 1)]
FILES: dict[str, tuple[str, object, list[str]]] = {
    "GPU of another machine": ("0/UUID", OTHER, [f"[0]: {OTHER}", "not in this machine", "lacks GPU 0"]),
    "another model": ("0/Model", "NVIDIA H200", ["[0].Model", "H200", "GPU 0 (NVIDIA A100-SXM4-80GB)"]),
    "profile of another model": (f"{FIRST}/ProfileID", 11, ["[0].ProfileID", "11", "0 (1g.10gb)"]),
    "another memory size": (f"{FIRST}/Profile", "3g.20gb", ["[0].Profile", "3g.20gb", "3g.40gb"]),
    "place that the profile has not": (
        f"{FIRST}/Placement",
        {"Start": 1, "Size": 3},
        ["[0].Placement", "1-3", "0-3, 4-7"],
    ),
    "two in one place": ("0/GpuInstances/1/Placement", {"Start": 0, "Size": 8}, ["[1]: overlaps", "[0]"]),
    "too many of one": ("0/GpuInstances", TWO_MEDIA, ["[0].GpuInstances", "1g.10gb+me"]),
    "more compute than there is room": (
        f"{FIRST}/ComputeInstances",
        [{"ProfileID": 1}] * 2,
        ["ComputeInstances", "2c.3g.40gb, 2c.3g.40gb"],
    ),
    "compute in one place": (f"{FIRST}/ComputeInstances", [ONE_SLICE] * 2, ["ComputeInstances[1]: overlaps"]),
    "compute of no profile": (f"{FIRST}/ComputeInstances/0/ProfileID", 99, ["[0].ProfileID", "99"]),
    "engines of no kind": (f"{FIRST}/ComputeInstances/0/EngProfileID", 1, ["[0].EngProfileID"]),
    "instances with MIG off": ("0/MigMode", 0, ["Devices[0].GpuInstances", "MigMode 0"]),
    "a mode that is none": ("0/MigMode", 2, ["Devices[0].MigMode", "2"]),
    "a mode in words": ("0/MigMode", "Enabled", ["Devices[0].MigMode", "Enabled"]),
    "a UUID of a MIG device": ("0/UUID", "MIG-1", ["Devices[0].UUID", "MIG-1"]),
    "an unknown key": ("0/MigMod", 1, ["Devices[0]", "MigMod", "did you mean 'MigMode'"]),
    "a missing key": (FIRST, {"ProfileID": 2}, ["GpuInstances[0]", "'Placement'"]),
    "huge slices": (f"{FIRST}/Placement", {"Start": 0, "Size": 10**9}, ["[0].Placement"]),
    "a GPU that is none": ("0", None, ["Devices[0]", "null"]),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """GPUs in a file, and a checkpoint of them."""
    from mig_manager.cli.main import command_line

    directory = tmp_path_factory.mktemp("saved")
    (directory / "layouts.yaml").write_text(LAYOUTS)
    node = ["--simulate", GPUS, "--simulate-state", str(directory / "gpus.json")]
    assert command_line(["apply", "-f", str(directory / "layouts.yaml"), "-c", "wanted", *node]) == 0
    assert command_line(["checkpoint", str(directory / "saved.json"), *node]) == 0
    return directory / "gpus.json", directory / "saved.json"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_does_not_fit_is_refused_with_what_differs(
    cli: Cli, saved: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    place, value, says = FILES[name]
    path = tmp_path / "saved.json"
    document = json.loads(saved[1].read_text())
    target: Any = document["MigState"]["Devices"]
    *steps, last = [int(step) if step.isdigit() else step for step in place.split("/")]
    for step in steps:
        target = target[step]
    target[last] = value
    path.write_text(json.dumps(document))
    before = SimulatedGpus.open(saved[0]).snapshot()
    ended = cli("restore", path, "--simulate-state", saved[0])
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith(f"error: {path}: ")
    assert [word for word in says if word not in ended.err] == [], ended.err
    assert SimulatedGpus.open(saved[0]).snapshot() == before


def test_files_that_cannot_be_read_or_written_are_named(
    cli: Cli, saved: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b"\xff\xfe")
    for text in (
        "",
        "[1]",
        '{"Version": "v1"',
        "{" * 100_000,
        '{"Version": "v1", "MigState": 1' + "0" * 5000 + "}",
    ):
        ended = cli("restore", "-", "--simulate-state", saved[0], stdin=text)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: stdin: ")
    for arguments in (["restore", path], ["restore", tmp_path], ["restore", tmp_path / "no.json"]):
        ended = cli(*arguments, "--simulate-state", saved[0])
        assert (ended.code, str(arguments[1]) in ended.err) == (2, True)
    for unwritable in (tmp_path, tmp_path / "no" / "saved.json"):
        ended = cli("checkpoint", unwritable, "--simulate-state", saved[0])
        assert (ended.code, ended.out) == (2, "")
        assert f"{unwritable}: cannot be written" in ended.err
    assert sorted(os.listdir(tmp_path)) == ["broken.json"]
