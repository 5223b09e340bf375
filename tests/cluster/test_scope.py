"""Who has to go for a change, and who is spared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mig_manager.cluster.objects import Pod
from mig_manager.cluster.podresources import PodDevices
from mig_manager.cluster.scope import affected, held_devices

JsonObject = dict[str, Any]

GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
LARGE = "nvidia.com/mig-3g.40gb"
KNOWN = frozenset({"GPU-0", "GPU-1", "MIG-a", "MIG-b", "MIG-c"})
LOST = frozenset({"GPU-0", "MIG-a"})


def pod(*resources: str, init: tuple[str, ...] = (), phase: str = "Running", **meta: Any) -> Pod:
    def container(name: str, wanted: tuple[str, ...]) -> JsonObject:
        return {"name": name, "resources": {"limits": dict.fromkeys(wanted, "1")}}

    spec = {"containers": [container("main", resources)], "initContainers": [container("first", init)]}
    base = {"namespace": "ml", "name": "job", "uid": "u"}
    return Pod.from_json({"metadata": base | meta, "spec": spec, "status": {"phase": phase}})


def holds(devices: Mapping[str, str], *, name: str = "job", namespace: str = "ml") -> tuple[PodDevices, ...]:
    """What the main container holds: ids, with spaces between, by resource."""
    return tuple(
        PodDevices(namespace, name, "main", resource, tuple(ids.split())) for resource, ids in devices.items()
    )


@pytest.mark.parametrize(
    ("one", "held", "goes"),
    [
        # Whose device goes, goes; whose device stays, stays.
        (pod(GPU), {GPU: "GPU-0"}, True),
        (pod(GPU), {GPU: "GPU-1"}, False),
        (pod(SMALL), {SMALL: "MIG-a"}, True),
        (pod(SMALL), {SMALL: "MIG-b"}, False),
        (pod(SMALL), {SMALL: "MIG-b MIG-a"}, True),
        (pod(SMALL, LARGE), {SMALL: "MIG-b", LARGE: "MIG-c"}, False),
        (pod(SMALL, phase="Pending"), {SMALL: "MIG-b"}, False),
        (pod(SMALL, phase="Pending"), {SMALL: "MIG-a"}, True),
        # Who asks for GPUs and cannot be shown to be safe goes too.
        (pod(GPU), {}, True),
        (pod(SMALL, LARGE), {SMALL: "MIG-b"}, True),
        (pod(SMALL, init=(LARGE,)), {SMALL: "MIG-b"}, True),
        (pod(SMALL, init=(SMALL,)), {SMALL: "MIG-b"}, False),
        (pod(SMALL), {SMALL: "MIG-gone"}, True),
        (pod(SMALL), {SMALL: "MIG-b MIG-gone"}, True),
        (pod(GPU), {GPU: "GPU-1", "x.org/nic": "eth0"}, False),
        (pod(GPU), {"x.org/nic": "eth0"}, True),
        # So does who asks for none, and has some nevertheless.
        (pod(), {GPU: "GPU-0"}, True),
        (pod(), {GPU: "GPU-1"}, False),
        (pod(), {"renamed.org/a100": "GPU-0"}, True),
        (pod(), {"gpu.nvidia.com": "node-1/gpu-1"}, True),
        (pod(), {"compute-domain.nvidia.com": "node-1/channel-0"}, False),
        (pod(GPU), {"gpu.nvidia.com": "node-1/gpu-1"}, True),
        # Everybody else stays.
        (pod(), {}, False),
        (pod("x.org/nic"), {"x.org/nic": "eth0"}, False),
        (pod(GPU, phase="Succeeded"), {}, False),
        (pod(GPU, phase="Failed"), {GPU: "GPU-0"}, False),
    ],
)
def test_only_those_on_devices_that_go_are_affected(one: Pod, held: Mapping[str, str], goes: bool) -> None:
    assert affected([one], holds(held), LOST, KNOWN) == ((one,) if goes else ())


def test_nobody_is_affected_by_a_change_that_takes_nothing() -> None:
    assert affected([pod(SMALL)], holds({SMALL: "MIG-a"}), frozenset(), KNOWN) == ()


def test_renamed_resources_go_by_their_patterns() -> None:
    one = pod("acme.io/a100")
    assert affected([one], (), LOST, KNOWN, ("acme.io/*",)) == (one,)
    assert affected([one], holds({"acme.io/a100": "GPU-1"}), LOST, KNOWN, ("acme.io/*",)) == ()
    assert affected([one], (), LOST, KNOWN) == ()


def test_pods_are_told_apart_by_namespace_and_name() -> None:
    pods = [pod(GPU, name=name, namespace=space) for space in ("b", "a") for name in ("one", "two")]
    allocations = [
        *holds({GPU: "GPU-0"}, name="two", namespace="a"),
        *holds({GPU: "GPU-1"}, name="one", namespace="a"),
        *holds({GPU: "GPU-1"}, name="two", namespace="b"),
        *holds({GPU: "GPU-0"}, name="one", namespace="b"),
        *holds({GPU: "GPU-0"}, name="elsewhere"),
    ]
    assert [str(one) for one in affected(pods, allocations, LOST, KNOWN)] == ["a/two", "b/one"]
    assert held_devices(allocations) == {"GPU-0", "GPU-1"}
