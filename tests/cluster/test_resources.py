"""Old numbers of the kubelet are not taken for new ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mig_manager.cluster.objects import Node
from mig_manager.cluster.resources import advertised, expected_devices, not_fresh, wrong_devices
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

READY = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def node(heartbeat: datetime | None = None, /, **allocatable: int) -> Node:
    names = {name.replace("__", ".").replace("_", "-"): str(count) for name, count in allocatable.items()}
    conditions = [{"type": "Ready", "lastHeartbeatTime": heartbeat.isoformat()}] if heartbeat else []
    return Node.from_json(
        {
            "metadata": {"name": "gpu-1"},
            "status": {
                "allocatable": {"cpu": "8", **{f"nvidia.com/{name}": count for name, count in names.items()}},
                "conditions": conditions,
            },
        }
    )


ONE_SECOND = timedelta(seconds=1)
WANTED = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/gpu": 0}


@pytest.mark.parametrize(
    ("seen", "changed", "ready", "problem"),
    [
        (node(mig_1g__10gb=7), True, None, None),
        (node(mig_1g__10gb=7, gpu=0, mig_3g__40gb=0), True, None, None),
        (node(mig_1g__10gb=7, gpu=1), True, READY, "advertises nvidia.com/gpu=1, nvidia.com/mig-1g.10gb=7"),
        (node(mig_1g__10gb=6), True, READY, "expected are nvidia.com/mig-1g.10gb=7"),
        (node(), True, READY, "advertises no GPU resource"),
        (node(READY + ONE_SECOND, mig_1g__10gb=7), False, READY, None),
        (node(READY, mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(READY - ONE_SECOND, mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(READY + ONE_SECOND, mig_1g__10gb=7), False, None, "no new device plugin pod is Ready"),
    ],
)
def test_allocatable_must_be_right_and_new(
    seen: Node, changed: bool, ready: datetime | None, problem: str | None
) -> None:
    found = not_fresh(seen, WANTED, changed=changed, plugin_ready=ready)
    assert found is None if problem is None else problem in (found or "")


def test_other_resources_do_not_count() -> None:
    assert advertised(node(gpu=2, rdma=4)) == {"nvidia.com/gpu": 2}
    assert not_fresh(node(gpu=2, rdma=4), {"nvidia.com/gpu": 2}, changed=True, plugin_ready=None) is None


def gpu(index: int, *uuids: str | None, mig: bool = True) -> GpuState:
    """A GPU with these MIG devices, each in an instance of its own; the first one also has a leftover."""
    identity = GpuIdentity(index, f"GPU-{index}", f"0000:0{index}:00.0", "NVIDIA A30", 0x20B710DE, 0, True)
    instances = tuple(
        GpuInstance(
            number, MigProfile.parse("1g.6gb"), 14, Placement(number, 1), (ComputeInstance(0, 1, None, uuid),)
        )
        for number, uuid in enumerate(uuids)
    )
    leftover = GpuInstance(9, MigProfile.parse("1g.6gb"), 14, Placement(3, 1))
    return GpuState(identity, mig, mig, True, None, (*instances, leftover))


@pytest.mark.parametrize(
    ("strategy", "gpus", "expected"),
    [
        ("none", [gpu(0, "MIG-a"), gpu(1, mig=False)], {"GPU-0", "GPU-1"}),
        ("mixed", [gpu(0, "MIG-a", "MIG-b"), gpu(1, mig=False)], {"MIG-a", "MIG-b", "GPU-1"}),
        ("mixed", [gpu(0)], set()),
        ("mixed", [], set()),
        ("single", [gpu(0, "MIG-a"), gpu(1, "MIG-b")], {"MIG-a", "MIG-b"}),
        ("single", [gpu(0, mig=False)], {"GPU-0"}),
        ("mixed", [gpu(0, "MIG-a", None), gpu(1, mig=False)], None),
        ("none", [gpu(0, None)], {"GPU-0"}),
    ],
)
def test_the_strategy_decides_which_devices_are_offered(
    strategy: str, gpus: list[GpuState], expected: set[str] | None
) -> None:
    assert expected_devices(Inventory("580", tuple(gpus)), strategy) == expected


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("a b", None),
        ("b a", None),
        ("", "the kubelet does not list a, b as healthy yet"),
        ("a", "the kubelet does not list b as healthy yet"),
        ("a b old", "the kubelet still lists old"),
        ("o4 o3 o2 o1 b", "the kubelet does not list a as healthy yet and still lists o1, o2, o3 and 1 more"),
    ],
)
def test_the_kubelet_must_list_exactly_the_devices_that_there_are(listed: str, problem: str | None) -> None:
    assert wrong_devices(frozenset(listed.split()), frozenset({"a", "b"})) == problem
