"""What a pod's spec means: requests, selectors, tolerations, affinity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from mig_manager.simulation.objects import Labels, Object

Requests = dict[str, Decimal]
"""By resource name, in its base unit."""

ANNOTATIONS = "simulation.mig-manager/"
"""Prefix of the annotations with which a pod says how it behaves here:

`start-seconds`: it takes that long to start;
`publish-seconds`: its device plugin takes that long to be known to the kubelet;
`run-seconds`: its containers end by themselves with exit code 0 after that time;
`end-seconds`: they take that long to end once told to, or their grace period if that is shorter;
`stuck`: keeps it in Terminating until the annotation goes: `process` with its processes alive, `volume` without.
"""

_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    **{unit: Decimal(1000**power) for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def quantity(value: object) -> Decimal:
    """A quantity as Kubernetes writes it: `2`, `500m`, `16Gi`."""
    text = str(value)
    for length in (2, 1):
        unit = _UNITS.get(text[-length:])
        if unit is not None and len(text) > length:
            return Decimal(text[:-length]) * unit
    return Decimal(text)


def container_requests(container: Object) -> Requests:
    """What one container asks for; a limit without a request is a request."""
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in merged.items()}


def is_sidecar(container: Object) -> bool:
    """Whether an init container stays beside the others."""
    return container.get("restartPolicy") == "Always"


def requests(pod: Object) -> Requests:
    """What the whole pod asks for: its containers together, or an init container where that is more."""
    spec = pod["spec"]
    sidecars: Requests = {}
    most: Requests = {}
    for container in spec.get("initContainers") or []:
        wanted = container_requests(container)
        if is_sidecar(container):
            _add(sidecars, wanted)
            wanted = dict(sidecars)
        else:
            _add(wanted, sidecars)
        _maximum(most, wanted)
    together = dict(sidecars)
    for container in spec["containers"]:
        _add(together, container_requests(container))
    _maximum(together, most)
    _add(together, {name: quantity(value) for name, value in (spec.get("overhead") or {}).items()})
    return together


def claim_names(pod: Object) -> dict[str, str]:
    """Names of the pod's ResourceClaims by its own names for them; those still to be made are left out."""
    named = {each["name"]: each.get("resourceClaimName") for each in pod["spec"].get("resourceClaims") or []}
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    named |= {each["name"]: each.get("resourceClaimName") for each in made}
    return {entry: name for entry, name in named.items() if name is not None}


def is_finished(pod: Object) -> bool:
    """Whether all containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition holds."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def behaviour(pod: Object, name: str) -> str | None:
    """The value of one of `ANNOTATIONS`, or None."""
    value = (pod["metadata"].get("annotations") or {}).get(ANNOTATIONS + name)
    return None if value is None else str(value)


def seconds(pod: Object, name: str, otherwise: float) -> float:
    """The seconds in one of `ANNOTATIONS`, or what holds without it."""
    value = behaviour(pod, name)
    return otherwise if value is None else float(value)


def fits_node(pod: Object, node: Object) -> bool:
    """Whether the pod's node selector and required node affinity match the node."""
    labels: Labels = node["metadata"].get("labels") or {}
    fields: Labels = {"metadata.name": node["metadata"]["name"]}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(
        all(_holds(each, labels) for each in term.get("matchExpressions") or [])
        and all(_holds(each, fields) for each in term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
        if term
    )


def untolerated(pod: Object, taints: Sequence[Object]) -> Iterator[Object]:
    """The NoSchedule and NoExecute taints that the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or []
    for taint in taints:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(
            _tolerates(each, taint) for each in tolerations
        ):
            yield taint


def _add(target: Requests, more: Requests) -> None:
    for name, amount in more.items():
        target[name] = target.get(name, Decimal(0)) + amount


def _maximum(target: Requests, other: Requests) -> None:
    for name, amount in other.items():
        target[name] = max(target.get(name, Decimal(0)), amount)


def _holds(requirement: Object, values: Labels) -> bool:
    value = values.get(requirement["key"])
    wanted = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted[0])
        case "Lt":
            return value is not None and int(value) < int(wanted[0])
        case other:
            raise ValueError(f"{other!r} is not an operator of a selector")


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
