"""GPU clients as people really run them: by their own charts, shared, renamed, or left paused by a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.slices import wrong_slices
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory
from tests.daemon.conftest import MakeNode
from tests.daemon.workloads import QUICK, unlabel_plugin

SMALL = [f"1g.10gb@{start}" for start in range(7)]
DEPLOY = "nvidia.com/gpu.deploy."


def test_a_reset_under_a_client_that_nothing_stops_is_refused_before_the_cordon(make_node: MakeNode) -> None:
    node = make_node()
    unlabel_plugin(node)
    node.start(**QUICK)
    status = node.becomes("small", "failed")
    assert (status["reason"], status["phase"]) == ("GpuInUse", "Validating")
    assert "gpu-operator/nvidia-device-plugin-daemonset-" in status["message"]
    assert f'{DEPLOY}device-plugin: "true"' in status["message"]
    assert not node.history.touched
    assert node.instances == [["off"], ["off"]]


@pytest.mark.parametrize("layout", ["small", "nope"])
def test_a_pause_that_a_crash_left_is_healed_whatever_comes_of_the_wish(
    make_node: MakeNode, layout: str
) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RESOURCES_TIMEOUT": "20"})
    node.becomes("small")
    node.kill()
    node.patch_node(labels={f"{DEPLOY}device-plugin": PAUSED, f"{DEPLOY}dcgm": PAUSED, "x/other": PAUSED})
    node.wait(lambda: not node.allocatable, "the device plugin to go")
    node.label(layout)
    node.start(**QUICK | {"MIG_MANAGER_RESOURCES_TIMEOUT": "20"})
    node.wait(lambda: node.labels[f"{DEPLOY}device-plugin"] == "true", "the label")
    assert node.ended(layout)["state"] == ("success" if layout == "small" else "failed")
    assert node.labels[f"{DEPLOY}dcgm"] == "true"
    assert node.labels["x/other"] == PAUSED
    node.wait(lambda: node.allocatable == {"mig-1g.10gb": 14}, "the resources")
    assert not any(each.cordoned for each in node.history.versions[-5:])


@pytest.mark.parametrize("pod_resources", [True, False])
def test_shared_gpus_are_advertised_many_times(make_node: MakeNode, pod_resources: bool) -> None:
    node = make_node(replicas=3, pod_resources=pod_resources)
    node.start()
    node.becomes("small")
    assert node.allocatable == {"mig-1g.10gb": 42}
    node.becomes("balanced")
    assert node.allocatable == {"mig-1g.10gb": 12, "mig-2g.20gb": 6, "mig-3g.40gb": 6}


def test_a_list_of_clients_that_cannot_be_used_ends_the_daemon_with_its_line(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    path = tmp_path / "operands.yaml"
    path.write_text("version: v1\noperands:\n  - {name: plugin, lable: x}\n")
    status, said = node.run_to_end(MIG_MANAGER_OPERANDS_FILE=str(path))
    assert status == 2
    assert said.startswith(f"mig-manager: {path}:3: operands[0].lable: is not a known key")


def gpu(index: int, *uuids: str, mig: bool) -> GpuState:
    identity = GpuIdentity(index, f"GPU-{index}", f"0000:0{index}:00.0", "NVIDIA A30", 0x20B710DE, 0, True)
    instances = tuple(
        GpuInstance(
            number, MigProfile.parse("1g.6gb"), 14, Placement(number, 1), (ComputeInstance(0, 1, None, uuid),)
        )
        for number, uuid in enumerate(uuids)
    )
    return GpuState(identity, mig, mig, True, None, instances)


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        ("GPU-0 MIG-a MIG-b", None),
        ("GPU-0 GPU-1 MIG-a MIG-b", None),
        ("GPU-0 MIG-a", "its ResourceSlices do not show MIG-b yet"),
        ("MIG-a MIG-b", "its ResourceSlices do not show GPU-0 yet"),
        ("GPU-0 MIG-a MIG-b MIG-old", "its ResourceSlices still show MIG-old"),
        ("MIG-a MIG-old", "its ResourceSlices do not show GPU-0, MIG-b yet and still show MIG-old"),
        ("", "its ResourceSlices do not show GPU-0, MIG-a, MIG-b yet"),
        ("GPU-0 -", None),
    ],
)
def test_slices_must_show_the_devices_that_there_are(offered: str, problem: str | None) -> None:
    """A device without a UUID, here a dash, is one that the driver makes on demand."""
    inventory = Inventory("580", (gpu(0, mig=False), gpu(1, "MIG-a", "MIG-b", mig=True)))
    devices = {f"node/{name}": None if name == "-" else name for name in offered.split()}
    assert wrong_slices(devices, inventory) == problem
