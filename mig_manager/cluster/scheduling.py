"""What a pod asks of a Node, as the scheduler counts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mig_manager.cluster.objects import JsonObject, parse_count


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
