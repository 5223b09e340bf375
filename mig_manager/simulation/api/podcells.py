"""The columns of a pod, with the status that kubectl derives from its containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mig_manager.simulation.api.disruption import is_ready
from mig_manager.simulation.api.durations import age
from mig_manager.simulation.objects import Object


def pod_cells(pod: Object) -> list[Any]:
    """Name, Ready, Status, Restarts, Age, IP, Node, Nominated Node, Readiness Gates."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    states = status.get("containerStatuses") or []
    ready = sum(1 for each in states if each.get("ready"))
    restarts = sum(each.get("restartCount", 0) for each in states)
    gates = spec.get("readinessGates") or []
    met = sum(1 for gate in gates if _is_true(status, gate["conditionType"]))
    return [
        meta["name"],
        f"{ready}/{len(spec.get('containers') or [])}",
        _state(pod),
        str(restarts) + _last_restart(states),
        age(meta.get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{met}/{len(gates)}" if gates else "<none>",
    ]


def _is_true(status: Object, kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions") or [])


def _last_restart(states: list[Object]) -> str:
    ends = [
        end
        for each in states
        if each.get("restartCount")
        and (end := ((each.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
    ]
    return f" ({age(max(ends))} ago)" if ends else ""


def _state(pod: Object) -> str:
    meta, status = pod["metadata"], pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initialising = _initialising(pod)
    if initialising:
        reason = initialising
    else:
        running = False
        for each in reversed(status.get("containerStatuses") or []):
            state = each.get("state") or {}
            reason = _container_reason(state) or reason
            running = running or bool(each.get("ready") and "running" in state)
        if reason == "Completed" and running:
            reason = "Running" if is_ready(pod) else "NotReady"
    if "deletionTimestamp" in meta:
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _initialising(pod: Object) -> str:
    """The state of the first init container that has not done its work yet, or nothing."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    sidecars = {each["name"] for each in containers if each.get("restartPolicy") == "Always"}
    for i, each in enumerate((pod.get("status") or {}).get("initContainerStatuses") or []):
        state = each.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if each["name"] in sidecars and each.get("started"):
            continue
        if ended is not None:
            return f"Init:{_ended_reason(ended)}"
        waiting = (state.get("waiting") or {}).get("reason", "")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{i}/{len(containers)}"
    return ""


def _container_reason(state: Mapping[str, Object]) -> str:
    if (waiting := state.get("waiting")) and waiting.get("reason"):
        return str(waiting["reason"])
    if (ended := state.get("terminated")) is not None:
        return _ended_reason(ended)
    return ""


def _ended_reason(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
