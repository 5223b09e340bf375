"""Who stands in the way of a change: only those whose device goes, and those of whom that cannot be told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mig_manager.cluster.claims import GPU_DRIVER
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.podresources import PodDevices
from mig_manager.cluster.pods import GPU_RESOURCES, is_gpu_resource


def affected(
    pods: Iterable[Pod],
    allocations: Iterable[PodDevices],
    lost: Collection[str],
    known: Collection[str],
    patterns: Sequence[str] = GPU_RESOURCES,
) -> tuple[Pod, ...]:
    """The pods that a change takes a device from, by namespace and name.

    A pod on the GPUs counts too if it cannot be shown to be safe: the kubelet does not list a resource that
    it asks for, or lists a device that does not exist (any more); or a claim holds one of which no ResourceSlice
    tells the hardware.

    Args:
        pods: all pods of the node; those that have finished never count.
        allocations: as the kubelet lists them, and as claims tell; see `by_hardware`.
        lost: UUIDs of GPUs and MIG devices that nobody may use any more; `NodePlan.devices_lost`.
        known: UUIDs of all GPUs and MIG devices there are; `Inventory.uuids`.
        patterns: of the resources whose devices are GPUs or MIG devices.
    """
    held: dict[tuple[str, str], list[PodDevices]] = {}
    for one in allocations:
        held.setdefault((one.namespace, one.name), []).append(one)
    found = (
        pod
        for pod in pods
        if not pod.finished
        and _stands_in_the_way(pod, held.get((pod.namespace, pod.name), ()), lost, known, patterns)
    )
    return tuple(sorted(found, key=str))


def _stands_in_the_way(
    pod: Pod,
    held: Iterable[PodDevices],
    lost: Collection[str],
    known: Collection[str],
    patterns: Sequence[str],
) -> bool:
    listed: set[str] = set()
    for one in held:
        if any(name in lost for name in one.device_ids):
            return True
        if one.resource == GPU_DRIVER or is_gpu_resource(one.resource, patterns):
            if not all(name in known for name in one.device_ids):
                return True
            listed.add(one.resource)
    wanted = (name for name in pod.resources if is_gpu_resource(name, patterns))
    return not listed.issuperset(wanted)


def held_devices(allocations: Iterable[PodDevices]) -> frozenset[str]:
    """All devices that some container holds, busy or not."""
    return frozenset(name for one in allocations for name in one.device_ids)


def known_to_kubelet(allocations: Iterable[PodDevices], *, beside: str) -> tuple[Pod, ...]:
    """Pods that hold a device, by what the kubelet lists of them, but none of the namespace `beside`.

    The uid is made of the name, and nothing is known of their owner.
    """
    resources: dict[tuple[str, str], set[str]] = {}
    for one in allocations:
        if one.namespace != beside:
            resources.setdefault((one.namespace, one.name), set()).add(one.resource)
    return tuple(
        Pod.from_json(
            {
                "metadata": {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"},
                "spec": {"containers": [{"resources": {"limits": dict.fromkeys(names, "1")}}]},
                "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z"},
            }
        )
        for (namespace, name), names in resources.items()
    )
