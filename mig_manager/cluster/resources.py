"""What the kubelet says it can allocate, and whether that is news or an old number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from mig_manager.cluster.objects import Node
from mig_manager.cluster.pods import GPU_RESOURCES, is_gpu_resource


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


def _counts(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in sorted(resources.items())) or "no GPU resource"
