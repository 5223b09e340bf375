"""GPU clients as people really run them: by their own charts, shared, renamed, or left paused by a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mig_manager.cluster.objects import Node
from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.fresh import none_or_old
from mig_manager.daemon.slices import wrong_slices
from mig_manager.daemon.stale import stale_resources
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory
from mig_manager.simulation.delays import Delays
from tests.daemon.conftest import MakeNode
from tests.daemon.workloads import NO_PLUGIN, QUICK, break_plugin, unlabel_plugin
from tests.shipped import component_verbs

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
    node.start(**QUICK)
    node.becomes("small")
    node.kill()
    node.patch_node(labels={f"{DEPLOY}device-plugin": PAUSED, f"{DEPLOY}dcgm": PAUSED, "x/other": PAUSED})
    node.wait(lambda: not node.allocatable, "the device plugin to go")
    node.label(layout)
    node.start(**QUICK)
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


def test_a_plugin_that_comes_back_with_nothing_is_told_from_one_that_does_not_come_back(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start(**QUICK)
    node.becomes("small")
    assert node.terminate() == 0
    node.start(**NO_PLUGIN)
    break_plugin(node, "publish-seconds")
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "ResourcesNotAdvertised"
    assert status["message"].endswith(
        "The device plugin has come back without any resource: look at its log."
    )


@pytest.mark.parametrize(
    ("shown", "part"),
    [({}, "without any resource"), ({"nvidia.com/gpu": 2}, "from before the change"), ({"x": 1}, "")],
)
def test_a_plugin_that_offers_nothing_is_told_from_one_that_offers_the_old(
    shown: dict[str, int], part: str
) -> None:
    said = none_or_old(shown, {"nvidia.com/gpu": 2})
    assert part in said
    assert bool(said) is bool(part)


def test_what_a_former_layout_left_in_the_status_is_taken_out_if_asked_for(make_node: MakeNode) -> None:
    node = make_node(delays=replace(Delays.fast(), plugin_forget=0.3), rules=["stale-resources"])
    node.start(MIG_MANAGER_REMOVE_STALE_RESOURCES="true")
    node.becomes("small")
    node.becomes("all-3g.40gb")
    capacity = "nvidia.com/mig-1g.10gb"

    def gone() -> bool:
        status = node.cluster.node_object()["status"]
        return capacity not in status["capacity"] and capacity not in status["allocatable"]

    node.wait(gone, "the old resource to go")
    assert node.cluster.node_object()["status"]["capacity"]["nvidia.com/mig-3g.40gb"] == "4"
    node.becomes("small")
    assert node.allocatable == {"mig-1g.10gb": 14}
    assert node.used >= component_verbs("stale-resources")


GPUS = json.dumps([{"instances": [{"compute": ["1g.10gb+me"]}]}, {"instances": []}])


@pytest.mark.parametrize(
    ("counts", "state", "gpus", "stale"),
    [
        ({"mig-1g.10gb": 0}, "success", GPUS, ("mig-1g.10gb",)),
        ({"mig-1g.10gb": 0, "mig-2g.20gb.shared": 0}, "success", GPUS, ("mig-1g.10gb", "mig-2g.20gb.shared")),
        ({"mig-1g.10gb": 7}, "success", GPUS, ()),
        # What is there but not offered at this moment stays, and so do whole GPUs.
        ({"mig-1g.10gb.me": 0, "mig-1g.10gb.me.shared": 0}, "success", GPUS, ()),
        ({"gpu": 0, "gpu.shared": 0}, "success", GPUS, ()),
        # As long as it is not known what is there, nothing is stale.
        ({"mig-1g.10gb": 0}, "pending", GPUS, ()),
        ({"mig-1g.10gb": 0}, "failed", GPUS, ()),
        ({"mig-1g.10gb": 0}, "success", "", ()),
        ({"mig-1g.10gb": 0}, "success", "{", ()),
    ],
)
def test_only_mig_resources_that_nothing_stands_behind_are_stale(
    counts: dict[str, int], state: str, gpus: str, stale: tuple[str, ...]
) -> None:
    amounts = {f"nvidia.com/{name}": str(count) for name, count in counts.items()}
    meta = {
        "name": "gpu-1",
        "labels": {"nvidia.com/mig.config.state": state},
        "annotations": {"mig-manager/gpus": gpus},
    }
    node = Node.from_json({"metadata": meta, "status": {"capacity": amounts, "allocatable": amounts}})
    assert stale_resources(node) == tuple(f"nvidia.com/{name}" for name in stale)


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
