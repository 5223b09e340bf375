"""What the page is told of a node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mig_manager.cli.documents import Document
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.showing import Shown, free_words, instance_uses, mode_words
from mig_manager.cluster.resources import advertised
from mig_manager.daemon.status import Phase, State, Status
from mig_manager.planning.explain import gpu_numbers, run_words
from mig_manager.planning.state import GpuState

_SHOWN_PODS = 50
_UNDER_WAY = (State.PENDING, State.REBOOTING)


def node_document(
    node: GpuNode, pods: Collection[str] | None, shown: Shown | None, problem: str = ""
) -> Document:
    """A node.

    Args:
        node: as it is now.
        pods: `namespace/name` of those that use its GPUs; None where they cannot be read.
        shown: what is known of its GPUs; None for nothing, and `problem` then says why.
        problem: empty for none.
    """
    status = node.status
    state = node.state or (str(status.state) if status is not None else "")
    under_way = status is not None and status.state in _UNDER_WAY and state in _UNDER_WAY
    document: Document = {
        "name": node.name,
        "layout": node.wanted,
        "state": state,
        "underWay": under_way,
        "since": _since(status, under_way),
        "message": _message(status),
        "cordoned": node.node.unschedulable,
        "problem": problem,
        "missing": list(shown.missing) if shown is not None else [],
        "gpus": _gpus(shown) if shown is not None else [],
        "resources": _resources(shown) if shown is not None else _offered(node),
    }
    if status is not None and under_way:
        phases = list(Phase)
        document["run"] = {
            "phase": str(status.phase),
            "step": phases.index(status.phase) + 1,
            "steps": len(phases),
            "gpus": gpu_numbers(status.gpus) if status.gpus else "",
            "pods": _pods_left(status, pods),
        }
    return document


def strange_document(name: str, problem: str) -> Document:
    """A node that cannot be made sense of."""
    empty: Document = {
        "layout": "",
        "state": "",
        "underWay": False,
        "since": None,
        "message": "",
        "cordoned": False,
    }
    return {"name": name, **empty, "problem": problem, "missing": [], "gpus": [], "resources": []}


def _since(status: Status | None, under_way: bool) -> str | None:
    if status is None:
        return None
    return status.startedAt if under_way else status.finishedAt or status.startedAt


def _pods_left(status: Status, pods: Collection[str] | None) -> str:
    """How many of the pods that have to go are still there, in words; empty where none has to, or nobody knows."""
    if not status.leaving or pods is None:
        return ""
    return f"{len(set(status.leaving).intersection(pods))} of {len(status.leaving)} pods left"


def _message(status: Status | None) -> str:
    if status is None:
        return ""
    return ": ".join(str(part) for part in (status.reason, status.message) if part)


def _gpus(shown: Shown) -> list[Document]:
    """Pictures; GPUs that look alike share one."""
    groups: dict[object, tuple[Document, list[int]]] = {}
    for state in shown.inventory.gpus:
        picture = _picture(state, shown)
        key = repr(picture)
        groups.setdefault(key, (picture, []))[1].append(state.gpu.index)
    return [
        {"gpus": gpu_numbers(indices), "count": len(indices), **picture}
        for picture, indices in groups.values()
    ]


def _picture(state: GpuState, shown: Shown) -> Document:
    slices = state.geometry.memory_slices if state.geometry is not None and state.mig_current else 0
    return {
        "model": state.gpu.model,
        "mode": mode_words(state, shown),
        "free": free_words(state),
        "slices": slices,
        "boxes": [
            {
                "start": instance.placement.start,
                "size": instance.placement.size,
                "slices": run_words(instance.placement),
                "title": str(instance.profile),
                "parts": [str(instance.profile.split(one.slices)) for one in instance.compute],
                "use": " ".join(map(str, instance_uses(instance, state, shown))) or "none",
            }
            for instance in state.instances
            if instance.placement.end <= slices
        ],
    }


def _resources(shown: Shown) -> list[Document]:
    found = [
        _resource(
            kind.resource,
            max(kind.offered, len(kind.devices)),
            kind.held if shown.use.known else None,
            [f"{holding.pod} ({holding.count})" for holding in kind.holdings],
        )
        for kind in shown.use.kinds
        if kind.offered or kind.holdings
    ]
    for device, pods in shown.use.claimed.items():
        found.append(_resource(f"ResourceClaim on GPU {device.gpu}", 1, 1, list(map(str, pods))))
    if shown.use.strays:
        pods_ = [f"{pod} ({what})" for pod, what in shown.use.strays]
        found.append(_resource("held, and not offered here", 0, len(pods_), pods_))
    return found


def _resource(name: str, total: int, used: int | None, pods: Sequence[str]) -> Document:
    listed = sorted(pods)[:_SHOWN_PODS]
    return {"name": name, "total": total, "used": used, "pods": listed, "more": len(pods) - len(listed)}


def _offered(node: GpuNode) -> list[Document]:
    return [_resource(name, count, None, ()) for name, count in sorted(advertised(node.node).items())]
