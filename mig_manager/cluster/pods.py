"""Which pods are on the GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mig_manager.cluster.objects import Pod

GPU_RESOURCES = ("nvidia.com/gpu*", "nvidia.com/mig-*")
"""Patterns of the resources that the device plugin advertises; `.shared` names match too."""


def is_gpu_resource(name: str, patterns: Sequence[str] = GPU_RESOURCES) -> bool:
    """Whether a resource name matches one of the patterns (shell style, case counts)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def uses_gpu(pod: Pod, patterns: Sequence[str] = GPU_RESOURCES) -> bool:
    """Whether a GPU resource is, or will be, allocated to a pod. Finished pods hold none."""
    return not pod.finished and any(is_gpu_resource(name, patterns) for name in pod.resources)


def unknown_to_kubelet(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Those bound to the node that its kubelet has not taken up yet, and may still give a device to."""
    return tuple(p for p in pods if not p.started and not p.finished)


def stays(pod: Pod) -> bool:
    """Whether a drain leaves it alone: mirror pods cannot be ended, DaemonSets bring theirs back at once."""
    return pod.mirror or pod.daemon_set


def name_pods(pods: Iterable[Pod], longest: int = 5) -> str:
    """Pods as a message lists them: `a/x, b/y and 3 more`."""
    names = [str(pod) for pod in pods]
    more = len(names) - longest
    return ", ".join(names[:longest]) + (f" and {more} more" if more > 0 else "")
