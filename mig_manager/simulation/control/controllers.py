"""The control plane beside the API server, which brings garbage collection and disruption budgets itself."""

from __future__ import annotations

from mig_manager.simulation.control.claims import ResourceClaims
from mig_manager.simulation.control.daemonsets import DaemonSets
from mig_manager.simulation.control.jobs import Jobs
from mig_manager.simulation.control.replicas import Deployments, ReplicaSets
from mig_manager.simulation.control.scheduler import UNSCHEDULABLE_TAINT, Scheduler
from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.recorder import timestamp
from mig_manager.simulation.resources import NODES


class Controllers:
    """All of them, each woken by what concerns it. In the loop."""

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        """`delay`: what each takes before it acts on a change."""
        self._all = (
            NodeLifecycle(store, loop, delay=delay),
            DaemonSets(store, loop, delay=delay),
            Deployments(store, loop, delay=delay),
            ReplicaSets(store, loop, delay=delay),
            Jobs(store, loop, delay=delay),
            ResourceClaims(store, loop, delay=delay),
            Scheduler(store, loop, delay=delay),
        )

    def changed(self, change: Change) -> None:
        """Something changed in the store."""
        for each in self._all:
            each.changed(change)


class NodeLifecycle:
    """Gives a cordoned node its taint, and takes it away again.

    So the Node changes once more after each cordon, by another hand.
    """

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource == NODES:
            self._wake()

    def _run(self) -> None:
        for node in self._store.snapshot(NODES)[0]:
            if _is_off(node):
                self._store.update(NODES, None, node["metadata"]["name"], _taint)


def _is_off(node: Object) -> bool:
    """Whether the node has the taint without being cordoned, or the other way round."""
    keys = [each["key"] for each in node["spec"].get("taints") or []]
    return bool(node["spec"].get("unschedulable")) != (UNSCHEDULABLE_TAINT["key"] in keys)


def _taint(node: Object) -> Object | None:
    if not _is_off(node):
        return None
    spec = node["spec"]
    others = [each for each in spec.get("taints") or [] if each["key"] != UNSCHEDULABLE_TAINT["key"]]
    if spec.get("unschedulable"):
        spec["taints"] = [*others, {**UNSCHEDULABLE_TAINT, "timeAdded": timestamp()}]
    elif others:
        spec["taints"] = others
    else:
        del spec["taints"]
    return node
