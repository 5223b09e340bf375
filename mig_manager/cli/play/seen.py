"""What can be seen of the node, its pods and its GPUs at a moment, in a few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from mig_manager.cluster.objects import JsonObject, Node, Pod
from mig_manager.cluster.resources import advertised
from mig_manager.planning.catalogue import GpuModel
from mig_manager.planning.state import GpuState, Inventory
from mig_manager.simulation.operands import NAMESPACE as OPERANDS
from mig_manager.simulation.podspec import Requests, is_finished, is_ready, quantity, requests

_UUID = len("MIG-12345678")


def offer(node: JsonObject) -> Mapping[str, int]:
    """The GPU resources that a Node offers, without those of which there are none."""
    return advertised(Node.from_json(node))


def in_words(resources: Mapping[str, int]) -> str:
    """`8 x mig-1g.10gb, 2 x mig-3g.40gb`: without the `nvidia.com/` before each."""
    return ", ".join(f"{count} x {_short(name)}" for name, count in sorted(resources.items())) or "no GPU"


def is_operand(pod: JsonObject) -> bool:
    """Whether a pod is one of the GPU Operator's; the others are workloads."""
    return bool(pod["metadata"]["namespace"] == OPERANDS)


def names(pods: Iterable[JsonObject]) -> str:
    """`ml/inference-905e14f419-9f86l (mig-1g.10gb), ml/dashboard (no GPU)`."""
    return ", ".join(
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']} ({_uses(pod)})" for pod in pods
    )


def in_a_line(pods: Iterable[JsonObject]) -> str:
    """Which workloads run, and what the others wait for."""
    found: dict[str, Counter[str]] = {"running": Counter(), "waiting": Counter()}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if not is_operand(pod) and not is_finished(pod):
            app = pod["metadata"]["labels"]["app"]
            if is_ready(pod):
                found["running"][app] += 1
            else:
                found["waiting"][f"{app} ({_uses(pod)})"] += 1
    return "; ".join(f"{word}: {_counted(apps)}" for word, apps in found.items() if apps)


def settled(node: JsonObject, pods: Collection[JsonObject]) -> bool:
    """Whether every workload runs, or waits for something that the node does not have."""
    there = [pod for pod in pods if not is_finished(pod)]
    used: Requests = {}
    for pod in there:
        if pod["spec"].get("nodeName"):
            for name, amount in requests(pod).items():
                used[name] = used.get(name, quantity(0)) + amount
    return not node["spec"].get("unschedulable") and all(
        is_ready(pod) or not _fits(pod, node, used) for pod in there if not is_operand(pod)
    )


def smallest_layout(models: Iterable[GpuModel]) -> str:
    """The generated layout that cuts the first GPU with MIG into its smallest instances."""
    geometry = next(model.geometry for model in models if model.geometry is not None)
    plain = [each.name for each in geometry.profiles if not each.name.suffix]
    return f"all-{min(plain, key=lambda name: (name.gpu_slices, name.memory_gb))}"


def mig_devices(inventory: Inventory) -> frozenset[str]:
    """The UUIDs of all MIG devices."""
    return frozenset(
        one.uuid
        for state in inventory.gpus
        for instance in state.instances
        for one in instance.compute
        if one.uuid is not None
    )


def kept(before: Inventory, after: Inventory) -> list[str]:
    """The MIG devices that are the same at two moments, one line a GPU."""
    same = mig_devices(before) & mig_devices(after)
    return [line for state in after.gpus if (line := _kept_on(state, same))]


def changes(before: Inventory, after: Inventory) -> str:
    """How many MIG devices stayed, went and came."""
    old, new = mig_devices(before), mig_devices(after)
    if old == new:
        return "nothing changed"
    return f"{len(old & new)} kept, {len(old - new)} destroyed, {len(new - old)} created"


def _kept_on(state: GpuState, same: frozenset[str]) -> str:
    found: dict[str, list[str]] = {}
    for instance in state.instances:
        for one in instance.compute:
            if one.uuid is not None and one.uuid in same:
                found.setdefault(str(instance.profile), []).append(one.uuid[:_UUID])
    kinds = (f"{len(uuids)} x {profile} ({', '.join(uuids)})" for profile, uuids in found.items())
    return f"GPU {state.gpu.index}: {', '.join(kinds)}" if found else ""


def _fits(pod: JsonObject, node: JsonObject, used: Requests) -> bool:
    """Whether a pod is on the node, or has room there."""
    if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
        return True
    allocatable = node["status"]["allocatable"]
    return all(
        used.get(name, quantity(0)) + amount <= quantity(allocatable.get(name, 0))
        for name, amount in requests(pod).items()
    )


def _uses(pod: JsonObject) -> str:
    return ", ".join(map(_short, sorted(Pod.from_json(pod).resources))) or "no GPU"


def _short(resource: str) -> str:
    return resource.removeprefix("nvidia.com/")


def _counted(apps: Counter[str]) -> str:
    return ", ".join(f"{count} x {app}" if count > 1 else app for app, count in apps.items())
