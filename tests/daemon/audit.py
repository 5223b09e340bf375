"""What the daemon has written, held against what is its own to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mig_manager.simulation.api.faults import Request
from mig_manager.simulation.objects import Object

_OWN_LABELS = ("nvidia.com/mig.config.state", "nvidia.com/gpu.deploy.")
_OWN_ANNOTATIONS = ("mig-manager/",)
_OWN = {
    "metadata": {"labels", "annotations", "resourceVersion", "uid"},
    "spec": {"unschedulable"},
}


def foreign_writes(requests: Iterable[Request], node: str) -> list[str]:
    """What the daemon has written, or wanted to, of Nodes beyond its own keys of its own Node."""
    return [
        found
        for each in requests
        if each.user_agent == "mig-manager" and each.method != "GET" and each.resource.startswith("nodes")
        for found in _foreign(each, node)
    ]


def _foreign_status(at: str, body: Object) -> Iterator[str]:
    """Resources of MIG devices may be taken out, no more."""
    status = body.get("status", {})
    yield from (
        f"{at}: {part}" for part in (set(body) - {"status"}) | (set(status) - {"capacity", "allocatable"})
    )
    for part, held in status.items():
        for name, value in held.items():
            if value is not None or not name.startswith("nvidia.com/mig-"):
                yield f"{at}: {part} {name}"


def _foreign(request: Request, node: str) -> Iterator[str]:
    at = f"{request.method} {request.path}"
    if request.method != "PATCH" or request.content_type != "application/merge-patch+json":
        yield f"{at} as {request.content_type}"
    if request.name != node:
        yield f"{at}: another Node"
    body: Object = request.body or {}
    if request.resource == "nodes/status":
        yield from _foreign_status(at, body)
        return
    # The list of taints can only be written whole; nobody else's change of it may be lost by that.
    whole = {"taints"} if "resourceVersion" in body.get("metadata", {}) else set()
    for part, held in body.items():
        yield from (f"{at}: {part}.{key}" for key in set(held) - _OWN.get(part, set()) - whole)
    meta = body.get("metadata", {})
    for kind, own in (("labels", _OWN_LABELS), ("annotations", _OWN_ANNOTATIONS)):
        yield from (f"{at}: {kind} {key}" for key in meta.get(kind, {}) if not key.startswith(own))
