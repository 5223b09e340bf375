"""What the kubelet says it can allocate, and whether that is news or an old number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from mig_manager.cluster.objects import Node
from mig_manager.cluster.pods import GPU_RESOURCES, is_gpu_resource
from mig_manager.planning.state import Inventory


def advertised(node: Node, patterns: Sequence[str] = GPU_RESOURCES) -> dict[str, int]:
    """The GPU resources that a Node has allocatable; those with none are left out."""
    return {
        name: count for name, count in node.allocatable.items() if count and is_gpu_resource(name, patterns)
    }


def not_fresh(
    node: Node,
    expected: Mapping[str, int],
    *,
    changed: bool,
    plugin_ready: datetime | None,
    patterns: Sequence[str] = GPU_RESOURCES,
) -> str | None:
    """Why the allocatable resources of a Node are not (yet) the fresh ones; None when they are.

    They must be exactly `expected` (zeros do not count), and this must be news: seen to change since the
    plugin was started again (`changed`), or written by the kubelet after the new plugin pod became Ready.
    Both times of the latter have whole seconds, so the status must be from a later second.
    """
    wanted = {name: count for name, count in expected.items() if count}
    found = advertised(node, patterns)
    if found != wanted:
        return f"the kubelet advertises {_counts(found)}; expected are {_counts(wanted)}"
    if changed:
        return None
    if plugin_ready is None:
        return f"the kubelet advertises {_counts(found)}, but no new device plugin pod is Ready yet"
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


def _some(ids: Sequence[str], longest: int = 3) -> str:
    more = len(ids) - longest
    return ", ".join(ids[:longest]) + (f" and {more} more" if more > 0 else "")


def _counts(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in sorted(resources.items())) or "no GPU resource"
