"""The disruption controller: keeps the status of PodDisruptionBudgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from mig_manager.simulation.api.selectors import label_matches, labels_of
from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.resources import DEPLOYMENTS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.values import now

_DISRUPTED_FOR = timedelta(minutes=2)
_SCALED = {each.kind: each for each in (REPLICA_SETS, DEPLOYMENTS)}


def keep_budgets(store: MemoryStore) -> Callable[[], None]:
    """Keep every budget's status up to date until the returned function is called."""

    def follow(change: Change) -> None:
        if change.resource == POD_DISRUPTION_BUDGETS and change.type != "DELETED":
            _refresh(store, change.object)
        elif change.resource in (PODS, REPLICA_SETS, DEPLOYMENTS):
            for each in store.snapshot(POD_DISRUPTION_BUDGETS, change.object["metadata"]["namespace"])[0]:
                _refresh(store, each)

    leave = store.subscribe(follow)
    for each in store.snapshot(POD_DISRUPTION_BUDGETS)[0]:
        _refresh(store, each)
    return leave


def budgets_of(store: MemoryStore, pod: Object) -> list[Object]:
    """The budgets whose selector matches the pod."""
    budgets = store.snapshot(POD_DISRUPTION_BUDGETS, pod["metadata"]["namespace"])[0]
    return [
        each for each in budgets if label_matches((each.get("spec") or {}).get("selector"), labels_of(pod))
    ]


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _refresh(store: MemoryStore, budget: Object) -> None:
    meta = budget["metadata"]

    def with_status(held: Object) -> Object:
        selector = (held.get("spec") or {}).get("selector")
        pods = store.snapshot(PODS, meta["namespace"])[0]
        pods = [each for each in pods if label_matches(selector, labels_of(each)) and not _ended(each)]
        held["status"] = _status(store, held, pods)
        return held

    with store.transaction():
        store.update(POD_DISRUPTION_BUDGETS, meta["namespace"], meta["name"], with_status)


def _ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _status(store: MemoryStore, budget: Object, pods: Sequence[Object]) -> Object:
    spec, old = budget["spec"], budget.get("status") or {}
    expected = len(pods) if isinstance(spec.get("minAvailable"), int) else _expected(store, pods)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - _amount(spec["maxUnavailable"], expected))
    else:
        desired = _amount(spec.get("minAvailable", 1), expected)
    disrupted = _still_disrupted(old.get("disruptedPods") or {}, pods)
    healthy = sum(
        is_ready(each)
        and "deletionTimestamp" not in each["metadata"]
        and each["metadata"]["name"] not in disrupted
        for each in pods
    )
    allowed = max(0, healthy - desired) if expected else 0
    status = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": budget["metadata"].get("generation", 1),
        "conditions": [_condition(budget, old, allowed > 0)],
    }
    return {**status, "disruptedPods": disrupted} if disrupted else status


def _condition(budget: Object, old: Object, allowed: bool) -> Object:
    state = "True" if allowed else "False"
    before: Object = next(iter(old.get("conditions") or []), {})
    changed = before.get("lastTransitionTime") if before.get("status") == state else None
    return {
        "type": "DisruptionAllowed",
        "status": state,
        "reason": "SufficientPods" if allowed else "InsufficientPods",
        "message": "",
        "lastTransitionTime": changed or now(),
        "observedGeneration": budget["metadata"].get("generation", 1),
    }


def _still_disrupted(disrupted: dict[str, str], pods: Sequence[Object]) -> dict[str, str]:
    """Evictions that were granted but whose pods show no deletion yet."""
    alive = {each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"]}
    since = datetime.now(UTC) - _DISRUPTED_FOR
    return {
        name: at for name, at in disrupted.items() if name in alive and datetime.fromisoformat(at) > since
    }


def _expected(store: MemoryStore, pods: Sequence[Object]) -> int:
    """The pods that their controllers want; a pod without a known controller counts as one."""
    scales: dict[str, int] = {}
    for pod in pods:
        meta = pod["metadata"]
        owner = next((each for each in meta.get("ownerReferences") or [] if each.get("controller")), None)
        resource = _SCALED.get(owner["kind"]) if owner else None
        held = store.get(resource, meta["namespace"], owner["name"]) if owner and resource else None
        if held is None:
            scales[meta["uid"]] = 1
        else:
            scales[held["metadata"]["uid"]] = held["spec"].get("replicas", 1)
    return sum(scales.values())


def _amount(value: int | str, whole: int) -> int:
    """A number, or a percentage of the whole, rounded up."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.rstrip("%")) * whole / 100)
