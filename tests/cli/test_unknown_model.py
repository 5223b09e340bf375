"""GPUs that no catalogue knows, from the first plan to the checkpoint: NVML tells all that is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mig_manager.simulation.gpus import SimulatedGpus
from tests.cli.conftest import Cli
from tests.gpu.strange import integrated_model, later_model

LAYOUTS = """\
version: v1
mig-configs:
  mine:
    - gpu-model: X9000
      devices: all
      mig-enabled: true
      mig-devices: {2g.32gb: 1, 2g.32gb+ray: 1}
    - device-filter: "0x4FFE10DE"
      devices: all
      mig-enabled: true
      mig-devices: {1c.2g.0gb: 2, 2g.0gb: 1}
"""


@pytest.fixture
def node(tmp_path: Path) -> list[object]:
    path = tmp_path / "gpus.json"
    SimulatedGpus.create(path, [later_model(), integrated_model(), later_model()])
    return ["--simulate-state", path]


def held(tmp_path: Path) -> list[list[str]]:
    gpus: list[dict[str, Any]] = SimulatedGpus.open(tmp_path / "gpus.json").snapshot()["gpus"]
    return [
        sorted(compute["profile"] for instance in gpu["instances"] for compute in instance["compute"])
        for gpu in gpus
    ]


def test_a_layout_is_planned_applied_asserted_and_exported(
    cli: Cli, node: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS)
    planned = cli("plan", "-f", path, "-c", "mine", "-o", "json", *node).json
    assert [len(gpu["create"]) for gpu in planned["gpus"]] == [2, 2, 2]
    assert all("assumed" not in gpu for gpu in planned["gpus"])
    assert cli("apply", "-f", path, "-c", "mine", *node).code == 0
    assert cli("assert", "-f", path, "-c", "mine", *node).code == 0
    mine = [["2g.32gb", "2g.32gb+ray"], ["1c.2g.0gb", "1c.2g.0gb", "2g.0gb"], ["2g.32gb", "2g.32gb+ray"]]
    assert held(tmp_path) == mine

    exported, saved = tmp_path / "exported.yaml", tmp_path / "saved.json"
    exported.write_text(cli("export", *node).out)
    assert cli("checkpoint", saved, *node).code == 0
    for back in (["apply", "-f", exported, "-c", "current"], ["restore", saved]):
        assert cli("apply", "-c", "all-disabled", *node).code == 0
        assert cli(*back, *node).code == 0
        assert held(tmp_path) == mine


def test_layouts_are_generated_and_a_profile_that_is_not_there_is_named(
    cli: Cli, node: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "generated.yaml"
    path.write_text(cli("generate", *node).out)
    names = ["all-disabled", "all-enabled", "all-4g.64gb", "all-4g.0gb", "all-3g.0gb.gfx"]
    names += ["all-2g.32gb", "all-2g.32gb.ray", "all-2g.0gb"]
    assert sorted(yaml.safe_load(path.read_text())["mig-configs"]) == sorted(names)
    assert cli("apply", "-f", path, "-c", "all-2g.32gb", *node).code == 0
    assert held(tmp_path) == [["2g.32gb"] * 2, [], ["2g.32gb"] * 2]
    path.write_text(LAYOUTS.replace("2g.32gb: 1", "2g.16gb: 1"))
    refused = cli("plan", "-f", path, "-c", "mine", *node)
    assert refused.code == 2
    assert "NVIDIA X9000 has no profile 2g.16gb" in refused.err
    assert "Did you mean 2g.32gb?" in refused.err


def test_instances_are_listed_created_and_destroyed_by_hand(
    cli: Cli, node: list[object], tmp_path: Path
) -> None:
    assert cli("apply", "-c", "all-enabled", *node).code == 0
    listed = cli("profiles", "--gpu", 1, *node).out.splitlines()
    assert [line.split()[1:5] for line in listed[1:]] == [
        ["2g.0gb", "5", "2/2", "0.00"],
        ["3g.0gb+gfx", "33", "1/1", "0.00"],
        ["4g.0gb", "0", "1/1", "0.00"],
    ]
    assert "{0,2}:2" in cli("placements", "--gpu", 0, *node).out
    assert cli("create", "72:2,71", "--gpu", 0, *node).code == 0
    assert held(tmp_path)[0] == ["2g.32gb", "2g.32gb+ray"]
    assert cli("destroy", "2g.32gb+ray", "--gpu", 0, *node).code == 0
    assert held(tmp_path)[0] == ["2g.32gb"]
