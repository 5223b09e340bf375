"""Whether a Node may take a pod: what the scheduler goes by, apart from most resources.

Source: kube-scheduler's filters NodeUnschedulable, TaintToleration, NodeAffinity, and the effective requests of a pod
("Resource Management for Pods and Containers", "Sidecar Containers").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mig_manager.cluster.objects import JsonObject, Node, Taint, parse_count

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_KEEPING_AWAY = ("NoSchedule", "NoExecute")


def extended_requests(pod: JsonObject) -> Mapping[str, int]:
    """The extended resources that a pod as a whole asks for; those that a ResourceClaim stands for are left out."""
    spec = pod.get("spec") or {}
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += _requests(container)
            most |= sidecars
        else:
            most |= sidecars + _requests(container)
    together = sum((_requests(each) for each in spec.get("containers") or ()), sidecars)
    claimed = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    by_claim = {each.get("resourceName") for each in claimed.get("requestMappings") or ()}
    return {name: count for name, count in (most | together).items() if name not in by_claim}


def _requests(container: Mapping[str, Any]) -> Counter[str]:
    """Of one container; a limit without a request is a request."""
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({name: parse_count(amount) for name, amount in merged.items() if "/" in name})


def tolerates_cordon(spec: JsonObject) -> bool:
    """Whether a pod is scheduled on cordoned nodes as well."""
    return not any(_untolerated(spec, (_CORDON,)))


def untolerated_taints(spec: JsonObject, node: Node) -> tuple[Taint, ...]:
    """The taints that keep a pod from a Node; the one that every cordon brings is left out."""
    return tuple(_untolerated(spec, [taint for taint in node.taints if taint.key != _CORDON.key]))


def _untolerated(spec: JsonObject, taints: Iterable[Taint]) -> Iterator[Taint]:
    tolerations = spec.get("tolerations") or ()
    for taint in taints:
        if taint.effect in _KEEPING_AWAY and not any(_tolerates(each, taint) for each in tolerations):
            yield taint


def _tolerates(toleration: Mapping[str, str], taint: Taint) -> bool:
    key = toleration.get("key")
    if toleration.get("effect", taint.effect) not in ("", taint.effect) or (key and key != taint.key):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == taint.value


def unmatched(spec: JsonObject, node: Node) -> tuple[str, ...]:
    """What a pod demands of its Node's labels and name that this one does not meet, in words."""
    labels = node.meta.labels
    found = [
        f"nodeSelector {key}={value} (it has {labels.get(key, 'no such label')})"
        for key, value in (spec.get("nodeSelector") or {}).items()
        if labels.get(key) != value
    ]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        terms = required.get("nodeSelectorTerms") or ()
        if not any(_term_holds(term, node) for term in terms):
            words = " or ".join(filter(None, map(_term_words, terms))) or "nothing"
            found.append(f"node affinity {words}")
    return tuple(found)


def _term_holds(term: Mapping[str, Any], node: Node) -> bool:
    """All of a term; an empty one holds nowhere."""
    labels, fields = node.meta.labels, {"metadata.name": node.meta.name}
    expressions = [(each, labels) for each in term.get("matchExpressions") or ()]
    expressions += [(each, fields) for each in term.get("matchFields") or ()]
    return bool(expressions) and all(_holds(each, values) for each, values in expressions)


def _holds(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value = values.get(expression.get("key", ""))
    wanted: Sequence[str] = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                have, bound = int(value or ""), int(wanted[0])
            except (ValueError, IndexError):
                return False
            return have > bound if operator == "Gt" else have < bound
    return False


def _term_words(term: Mapping[str, Any]) -> str:
    parts = (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
    return " and ".join(_expression_words(each) for each in parts)


def _expression_words(expression: Mapping[str, Any]) -> str:
    values = ", ".join(map(str, expression.get("values") or ()))
    tail = f" ({values})" if values else ""
    return f"{expression.get('key')} {expression.get('operator')}{tail}"
