"""The eviction subresource of pods: a deletion that asks the disruption budgets first."""

from __future__ import annotations

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.deletion import DeleteOptions, check_preconditions
from mig_manager.simulation.api.disruption import budgets_of, is_ready
from mig_manager.simulation.api.status import Cause, StatusError, bad_request, not_found
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import POD_DISRUPTION_BUDGETS, PODS
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.values import now

_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def evict(store: MemoryStore, call: Call, body: Object) -> None:
    """Delete the pod if its budget allows; StatusError 429 if not now, 500 if it has two budgets."""
    if body.get("kind", "Eviction") != "Eviction" or body.get("apiVersion", "policy/v1") != "policy/v1":
        raise bad_request(f"no kind {body.get('kind')} is registered for version {body.get('apiVersion')}")
    if (body.get("metadata") or {}).get("name", "") != call.name:
        raise bad_request("name in URL does not match name in Eviction object")
    pod = store.get(PODS, call.namespace, call.name)
    if pod is None:
        raise not_found(PODS, call.name)
    options = DeleteOptions.read(call.query, body.get("deleteOptions"))
    check_preconditions(call, pod, options)
    if not _needs_no_budget(pod):
        _ask_budgets(store, pod)
    if "deletionTimestamp" not in pod["metadata"]:
        store.update(PODS, call.namespace, call.name, _marked)
    store.delete(PODS, call.namespace, call.name, grace_seconds=options.grace_seconds)


def _needs_no_budget(pod: Object) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending")
    return ended or "deletionTimestamp" in pod["metadata"]


def _ask_budgets(store: MemoryStore, pod: Object) -> None:
    budgets = budgets_of(store, pod)
    if not budgets:
        return
    if len(budgets) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise StatusError(500, "", message)
    budget = budgets[0]
    status = budget.get("status") or {}
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not is_ready(pod):
        if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return
        if healthy >= desired > 0:
            return
    name = budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    if status.get("disruptionsAllowed", 0) <= 0:
        text = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        raise _too_many(text, None)

    def spent(held: Object) -> Object:
        held["status"]["disruptionsAllowed"] -= 1
        held["status"].setdefault("disruptedPods", {})[pod["metadata"]["name"]] = now()
        return held

    store.update(POD_DISRUPTION_BUDGETS, budget["metadata"]["namespace"], name, spent)


def _too_many(cause: str, retry_after_s: int | None) -> StatusError:
    details = {"causes": [Cause("DisruptionBudget", cause).as_json()]}
    return StatusError(429, "TooManyRequests", _VIOLATES, details=details, retry_after_s=retry_after_s)


def _marked(pod: Object) -> Object:
    """With the condition that tells why the pod ends."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [each for each in conditions if each["type"] != "DisruptionTarget"]
    conditions.append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": now(),
        }
    )
    return pod
