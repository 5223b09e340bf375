"""Old numbers of the kubelet are not taken for new ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mig_manager.cluster.objects import Node
from mig_manager.cluster.resources import (
    advertised,
    expected_devices,
    labelled_replicas,
    not_fresh,
    seen_replicas,
    wrong_counts,
    wrong_devices,
    wrong_offer,
)
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


@pytest.mark.parametrize(
    ("seen", "changed", "ready", "problem"),
    [
        (node(), True, None, None),
        (node(READY + ONE_SECOND), False, READY, None),
        (node(READY), False, READY, "not written its status since"),
        (node(READY - ONE_SECOND), False, READY, "not written its status since"),
        (node(), False, READY, "not written its status since"),
        (node(READY + ONE_SECOND), False, None, "no new device plugin pod is Ready"),
    ],
)
def test_numbers_that_may_be_old_prove_nothing(
    seen: Node, changed: bool, ready: datetime | None, problem: str | None
) -> None:
    found = not_fresh(seen, changed=changed, plugin_ready=ready)
    assert found is None if problem is None else problem in (found or "")


GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
SHARED = ".shared"


@pytest.mark.parametrize(
    ("shown", "counts", "replicas", "fits"),
    [
        # Plainly.
        ({SMALL: 7}, {SMALL: 7, GPU: 0}, {}, True),
        ({SMALL: 6}, {SMALL: 7}, {}, False),
        ({SMALL: 7, GPU: 1}, {SMALL: 7}, {}, False),
        ({SMALL: 7}, {SMALL: 7, LARGE: 1}, {}, False),
        ({}, {SMALL: 7}, {}, False),
        ({}, {}, {}, True),
        ({GPU: 1}, {}, {}, False),
        # Shared: each resource so many times, under its own name or another.
        ({SMALL: 28, LARGE: 2}, {SMALL: 7, LARGE: 1}, {SMALL: {4}, LARGE: {2}}, True),
        ({SMALL: 28}, {SMALL: 7}, {}, True),
        ({SMALL: 28}, {SMALL: 7}, {SMALL: {1}}, False),
        ({SMALL: 28}, {SMALL: 7}, {SMALL: {1, 4}}, True),
        ({SMALL: 27}, {SMALL: 7}, {}, False),
        ({SMALL + SHARED: 28, GPU + SHARED: 4}, {SMALL: 7, GPU: 1}, {GPU: {4}}, True),
        ({SMALL + SHARED: 28, LARGE: 1}, {SMALL: 7, LARGE: 1}, {}, True),
        ({SMALL + SHARED: 14, SMALL: 7}, {SMALL: 7}, {SMALL: {3}}, True),
        # What is shown in the end, name and all.
        ({SMALL + SHARED: 28}, {SMALL + SHARED: 28}, {SMALL + SHARED: {1}}, True),
        # Renamed: only the sum tells.
        ({"nvidia.com/gpu-small": 7}, {SMALL: 7}, {SMALL: {1}}, True),
        ({"acme.io/a100": 2, GPU: 2}, {GPU: 4}, {GPU: {1}}, True),
        ({"acme.io/a100": 8}, {GPU: 4}, {}, True),
        ({"acme.io/a100": 7}, {GPU: 4}, {}, False),
        ({"acme.io/a100": 4}, {}, {}, False),
    ],
)
def test_what_is_offered_must_stand_for_the_devices_that_there_are(
    shown: dict[str, int], counts: dict[str, int], replicas: dict[str, set[int]], fits: bool
) -> None:
    found = wrong_counts(shown, counts, replicas)
    assert (found is None) is fits, found
    assert found is None or found.startswith("the kubelet advertises ")


def test_sharing_is_told_by_what_was_offered_or_by_labels() -> None:
    shown = {SMALL + SHARED: 28, LARGE: 1, GPU: 3}
    assert seen_replicas({SMALL: 7, LARGE: 1, GPU: 2}, shown) == {SMALL: 4, LARGE: 1}
    labels = {f"{SMALL}.replicas": "4", f"{LARGE}.replicas": "0", f"{GPU}.replicas": "many"}
    assert labelled_replicas(labels, [SMALL, LARGE, GPU, "other"]) == {SMALL: 4}


def test_the_node_must_say_what_its_kubelet_has() -> None:
    offered = {SMALL: ("MIG-a::0", "MIG-a::1"), "acme.io/a100": ("GPU-0",)}
    now = {"nvidia.com/mig-1g.10gb": "2", "acme.io/a100": "1", "acme.io/nic": "8", "nvidia.com/gpu": "0"}
    seen = Node.from_json({"metadata": {"name": "gpu-1"}, "status": {"allocatable": now}})
    assert wrong_offer(seen, offered) is None
    assert wrong_offer(seen, {SMALL: ("MIG-a",), "acme.io/a100": ("GPU-0",)}) == (
        "the Node still says acme.io/a100=1, nvidia.com/mig-1g.10gb=2, "
        "while its kubelet has acme.io/a100=1, nvidia.com/mig-1g.10gb=1"
    )
    assert wrong_offer(node(gpu=1), {}) is not None


def test_other_resources_do_not_count() -> None:
    assert advertised(node(gpu=2, rdma=4)) == {"nvidia.com/gpu": 2}


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
