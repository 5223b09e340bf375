"""What the kubelet says it can allocate, and whether that is news or an old number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from mig_manager.cluster.objects import Node
from mig_manager.cluster.pods import GPU_RESOURCES, is_gpu_resource
from mig_manager.planning.state import Inventory

GPU_RESOURCE = "nvidia.com/gpu"
MIG_PREFIX = "nvidia.com/mig-"
SHARED = ".shared"
"""What a device plugin may put behind the name of a resource whose devices it shares."""


def advertised(node: Node, patterns: Sequence[str] = GPU_RESOURCES) -> dict[str, int]:
    """The GPU resources that a Node has allocatable; those with none are left out."""
    return {
        name: count for name, count in node.allocatable.items() if count and is_gpu_resource(name, patterns)
    }


def wrong_counts(
    shown: Mapping[str, int], counts: Mapping[str, int], replicas: Mapping[str, Collection[int]]
) -> str | None:
    """Why the resources that a node offers do not stand for that many devices; None if they do.

    A device plugin that shares devices (time-slicing, MPS) offers each of them several times, under the plain
    name or with `.shared` behind it; one that renames them offers names of its own, of which only the sum tells.

    Args:
        shown: as `advertised` gives them.
        counts: devices by the resource names that NVIDIA's plugin gives them; zeros do not count.
        replicas: how often each device may be offered, by the same names; any whole multiple where nothing is
            known of a name.
    """
    wanted = {name: count for name, count in counts.items() if count}
    plain = {name: name.removesuffix(SHARED) for name in shown}
    if any(not _by_nvidia(name) and name not in wanted for name in plain.values()):
        fits = bool(wanted) and sum(shown.values()) % sum(wanted.values()) == 0
    else:
        totals: dict[str, int] = {}
        for name, count in shown.items():
            key = name if name in wanted else plain[name]
            totals[key] = totals.get(key, 0) + count
        fits = totals.keys() == wanted.keys() and all(
            _is_multiple(total, wanted[name], replicas.get(name)) for name, total in totals.items()
        )
    return None if fits else f"the kubelet advertises {_counts(shown)}; expected are {_counts(wanted)}"


def _is_multiple(total: int, count: int, factors: Collection[int] | None) -> bool:
    return total % count == 0 and (not factors or total // count in factors)


def _by_nvidia(name: str) -> bool:
    return name == GPU_RESOURCE or name.startswith(MIG_PREFIX)


def seen_replicas(counts: Mapping[str, int], shown: Mapping[str, int]) -> dict[str, int]:
    """How often each device is offered, by resource name, as far as what is shown tells.

    The arguments are those of `wrong_counts`.
    """
    found = {}
    for name, count in counts.items():
        total = shown.get(name, 0) + shown.get(name + SHARED, 0)
        if count and total and total % count == 0:
            found[name] = total // count
    return found


def labelled_replicas(labels: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    """The same by the labels of GPU feature discovery: `nvidia.com/mig-1g.10gb.replicas=4`."""
    texts = ((name, labels.get(f"{name}.replicas", "")) for name in names)
    return {name: int(text) for name, text in texts if text.isdecimal() and int(text) > 0}


def not_fresh(node: Node, *, changed: bool, plugin_ready: datetime | None) -> str | None:
    """Why the allocatable resources of a Node may be old numbers; None when they are news.

    They must have been seen to change since the plugin was started again (`changed`), or been written by the
    kubelet after the new plugin pod became Ready. Both times of the latter have whole seconds, so the status
    must be from a later second.
    """
    if changed:
        return None
    if plugin_ready is None:
        return "no new device plugin pod is Ready yet"
    if node.heartbeat is None or node.heartbeat <= plugin_ready:
        return "the kubelet has not written its status since the new device plugin pod became Ready"
    return None


def expected_devices(inventory: Inventory, strategy: str) -> frozenset[str] | None:
    """UUIDs of the devices that a device plugin with that strategy offers on these GPUs.

    None where that cannot be told: the UUID of a MIG device is not known.
    """
    offered: set[str | None] = set()
    for state in inventory.gpus:
        if state.mig_current and strategy != "none":
            offered.update(one.uuid for instance in state.instances for one in instance.compute)
        else:
            offered.add(state.gpu.uuid)
    known = frozenset(uuid for uuid in offered if uuid is not None)
    return known if len(known) == len(offered) else None


def wrong_devices(listed: Collection[str], expected: Collection[str]) -> str | None:
    """Why the devices that the kubelet can allocate are not those that there are; None when they are.

    Args:
        listed: as `PodResources.allocatable` gives them.
        expected: as `expected_devices` gives them.
    """
    missing = sorted(set(expected).difference(listed))
    gone = sorted(set(listed).difference(expected))
    problems = []
    if missing:
        problems.append(f"does not list {_some(missing)} as healthy yet")
    if gone:
        problems.append(f"still lists {_some(gone)}")
    return f"the kubelet {' and '.join(problems)}" if problems else None


def wrong_offer(
    node: Node, offered: Mapping[str, Collection[str]], patterns: Sequence[str] = GPU_RESOURCES
) -> str | None:
    """Why the Node does not say (yet) what its kubelet can allocate; None when it does.

    `offered` is as `PodResources.offered` gives it.
    """
    counts = {name: len(ids) for name, ids in offered.items() if ids}
    named = {name: node.allocatable[name] for name in offered if node.allocatable.get(name)}
    shown = advertised(node, patterns) | named
    if shown == counts:
        return None
    return f"the Node still says {_counts(shown)}, while its kubelet has {_counts(counts)}"


def _some(ids: Sequence[str], longest: int = 3) -> str:
    more = len(ids) - longest
    return ", ".join(ids[:longest]) + (f" and {more} more" if more > 0 else "")


def _counts(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in sorted(resources.items())) or "no GPU resource"
