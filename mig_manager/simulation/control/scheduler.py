"""The scheduler: gives every pod without a node a node that can take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from mig_manager.simulation.conditions import with_conditions
from mig_manager.simulation.control.claims import allocate
from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.podspec import Requests, fits_node, is_finished, quantity, requests, untolerated
from mig_manager.simulation.recorder import Recorder
from mig_manager.simulation.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES

UNSCHEDULABLE_TAINT: Object = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Scheduler:
    """Binds pods in the order of their creation, as far as the Node's allocatable has room.

    No preemption and no scoring: the first node by name that fits takes the pod.
    """

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._recorder = Recorder(store, "default-scheduler")
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource in (PODS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES):
            self._wake()

    def _run(self) -> None:
        pods, _ = self._store.snapshot(PODS)
        waiting = [pod for pod in pods if _waits(pod)]
        if not waiting:
            return
        nodes, _ = self._store.snapshot(NODES)
        free = {node["metadata"]["name"]: _free(node, pods) for node in nodes}
        for pod in sorted(waiting, key=_age):
            wanted: Requests = {**requests(pod), "pods": Decimal(1)}
            reasons: Counter[str] = Counter()
            for node in nodes:
                room = free[node["metadata"]["name"]]
                found = [*_obstacles(pod, node)] or [*_lacking(wanted, room)]
                if not found and (obstacle := allocate(self._store, pod, node["metadata"]["name"])):
                    found = [obstacle]
                if found:
                    reasons.update(found)
                    continue
                for resource, amount in wanted.items():
                    if resource in room:
                        room[resource] -= amount
                self._bind(pod, node["metadata"]["name"])
                break
            else:
                self._refuse(pod, len(nodes), reasons)

    def _bind(self, pod: Object, node: str) -> None:
        def change(now: Object) -> Object | None:
            if now["metadata"]["uid"] != pod["metadata"]["uid"] or not _waits(now):
                return None
            now["spec"]["nodeName"] = node
            old = (now.get("status") or {}).get("conditions") or []
            now["status"]["conditions"] = with_conditions(old, {"PodScheduled": (True, "")})
            return now

        meta = pod["metadata"]
        self._store.update(PODS, meta["namespace"], meta["name"], change)
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        self._recorder.record(pod, "Normal", "Scheduled", message)

    def _refuse(self, pod: Object, nodes: int, reasons: Counter[str]) -> None:
        if nodes:
            counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            message = f"0/{nodes} nodes are available: {counted}."
        else:
            message = "no nodes available to schedule pods"
        said = False

        def change(now: Object) -> Object | None:
            nonlocal said
            if now["metadata"]["uid"] != pod["metadata"]["uid"] or not _waits(now):
                return None
            old = (now.get("status") or {}).get("conditions") or []
            said = any(each.get("message") == message for each in old)
            conditions = with_conditions(old, {"PodScheduled": (False, "Unschedulable")})
            next(each for each in conditions if each["type"] == "PodScheduled")["message"] = message
            now["status"]["conditions"] = conditions
            return now

        self._store.update(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], change)
        if not said:
            self._recorder.record(pod, "Warning", "FailedScheduling", message)


def _waits(pod: Object) -> bool:
    return not (
        pod["spec"].get("nodeName")
        or pod["spec"].get("schedulingGates")
        or "deletionTimestamp" in pod["metadata"]
        or is_finished(pod)
    )


def _age(pod: Object) -> tuple[str, int]:
    return pod["metadata"]["creationTimestamp"], int(pod["metadata"]["resourceVersion"])


def _free(node: Object, pods: Iterable[Object]) -> Requests:
    """What is left of the node's allocatable; less than 0 where pods hold what the node no longer offers."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    free = {resource: quantity(amount) for resource, amount in allocatable.items()}
    for pod in pods:
        if pod["spec"].get("nodeName") == node["metadata"]["name"] and not is_finished(pod):
            for resource, amount in {**requests(pod), "pods": Decimal(1)}.items():
                if resource in free:
                    free[resource] -= amount
    return free


def _obstacles(pod: Object, node: Object) -> Iterable[str]:
    """Why the node does not take the pod, apart from room."""
    if node["spec"].get("unschedulable") and any(untolerated(pod, [UNSCHEDULABLE_TAINT])):
        yield "node(s) were unschedulable"
        return
    for taint in untolerated(pod, node["spec"].get("taints") or []):
        yield f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        return
    if not fits_node(pod, node):
        yield "node(s) didn't match Pod's node affinity/selector"


def _lacking(wanted: Requests, room: Requests) -> Iterable[str]:
    for resource, amount in wanted.items():
        if amount > 0 and amount > room.get(resource, Decimal(0)):
            yield "Too many pods" if resource == "pods" else f"Insufficient {resource}"
