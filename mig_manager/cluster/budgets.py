"""PodDisruptionBudgets, and whether one would refuse an eviction now.

Source: the eviction handler of kube-apiserver, which looks at policy/v1 in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject, Pod

_UNHEALTHY_TOO = "AlwaysAllow"
_NOT_ASKED = ("Pending", "Succeeded", "Failed")
"""Phases of pods that no budget protects."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str
    name: str
    selector: Mapping[str, Any] | None
    """A label selector. None selects no pod, an empty one each of the namespace."""
    allowed: int
    """status.disruptionsAllowed: how many of its pods may go now."""
    unhealthy_pods_go: bool
    """Whether pods that are not Ready are let go: always, or because enough others are healthy."""
    seen: bool
    """Whether its controller has seen its latest specification."""

    @classmethod
    def from_json(cls, obj: JsonObject) -> Budget:
        """From a PodDisruptionBudget of policy/v1."""
        meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        wanted, healthy = int(status.get("desiredHealthy", 0)), int(status.get("currentHealthy", 0))
        always = spec.get("unhealthyPodEvictionPolicy") == _UNHEALTHY_TOO
        return cls(
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            selector=spec.get("selector"),
            allowed=int(status.get("disruptionsAllowed", 0)),
            unhealthy_pods_go=always or healthy >= wanted > 0,
            seen=int(status.get("observedGeneration", 0)) >= int(meta.get("generation", 0)),
        )

    def covers(self, pod: Pod) -> bool:
        """Whether it protects a pod."""
        return pod.namespace == self.namespace and selects(self.selector, pod.labels)


def find_budgets(api: Api) -> tuple[Budget, ...]:
    """Those of all namespaces. Raises ApiError."""
    answer = api.get(collection_path("poddisruptionbudgets", group="policy/v1"))
    return tuple(map(Budget.from_json, answer.get("items") or ()))


def refusal(pod: Pod, budgets: Iterable[Budget]) -> str:
    """Why the API server would not evict a pod now, in words; empty if it would."""
    if pod.phase in _NOT_ASKED or pod.deleted is not None:
        return ""
    covering = [budget for budget in budgets if budget.covers(pod)]
    if len(covering) > 1:
        names = " and ".join(budget.name for budget in covering)
        return f"the PodDisruptionBudgets {names} cover it, and of more than one the API server evicts no pod"
    for budget in covering:
        if not pod.ready and budget.unhealthy_pods_go:
            return ""
        if not budget.seen:
            return f"PodDisruptionBudget {budget.name} is new, and its controller has not looked at it yet"
        if budget.allowed <= 0:
            return f"PodDisruptionBudget {budget.name} lets no pod go now"
    return ""


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (metav1.LabelSelector) selects an object with these labels."""
    if selector is None:
        return False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    alike = all(labels.get(key) == value for key, value in wanted.items())
    return alike and all(_holds(each, labels) for each in expressions)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
