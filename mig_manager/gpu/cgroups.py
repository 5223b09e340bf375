"""Which pod, container or system service a process belongs to, from its cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""A pod's UID; that of a static pod is a hash without dashes. The systemd driver writes `_` for `-`."""
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_SERVICE = re.compile(r"([^/:]+\.service)(?=/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a process is."""

    pod_uid: str | None = None
    """As the API writes it."""
    pod: str | None = None
    """The pod's namespace and name, where somebody knows them."""
    container: str | None = None
    """The container's id, without the runtime's name."""
    service: str | None = None
    """The systemd unit, such as `nvidia-dcgm.service`, of a process outside containers."""


def owner(cgroup: str) -> Owner:
    """Read the text of /proc/PID/cgroup.

    All forms have a pod's UID and a container's id in some line: cgroup v1 (a line a controller) and v2 (one
    line), paths of the cgroupfs and the systemd driver, of containerd, CRI-O and Docker, and paths that begin
    with `/..` because our own cgroup namespace lies deeper.
    """
    paths = [line.split(":", 2)[-1] for line in cgroup.splitlines()]
    for path in paths:
        if pod := _POD.search(path):
            container = _CONTAINER.findall(path, pod.end())
            return Owner(pod_uid=_uid(pod[1]), container=container[-1] if container else None)
    for path in paths:
        if container := _CONTAINER.findall(path):
            return Owner(container=container[-1])
    for path in paths:
        if service := _SERVICE.findall(path):
            return Owner(service=service[-1])
    return Owner()


def _uid(text: str) -> str:
    return text.replace("_", "-")
