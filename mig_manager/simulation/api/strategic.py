"""Strategic merge patch: lists of the built-in kinds are merged by key, as kubectl expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mig_manager.simulation.api.status import StatusError, bad_request
from mig_manager.simulation.values import copy_json

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "schedulingGates": "name",
    "podIPs": "ip",
    "hostIPs": "ip",
    "ports": "containerPort",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "reservedFor": "uid",
    "secrets": "name",
}
"""Lists of objects that merge, by field name, with their merge key. All others are replaced whole."""

MERGED_PRIMITIVES = frozenset({"finalizers", "podCIDRs"})
"""Lists of plain values that merge."""

_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def strategic_merge(target: Any, patch: Any) -> Any:
    """What an `application/strategic-merge-patch+json` makes of the target (which stays as it is).

    StatusError 400 for a directive that is not one.
    """
    if not isinstance(patch, dict):
        return copy_json(patch)
    directive = patch.get("$patch", "merge")
    if directive == "replace":
        return {key: copy_json(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise _unknown(directive)
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            field = key.removeprefix(_DELETE_FROM)
            if field in merged:
                merged[field] = [each for each in merged[field] if each not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            order = patch.get(_ORDER + key)
            merged[key] = _merge_lists(key, merged.get(key) or [], value, order)
        else:
            merged[key] = strategic_merge(merged.get(key), value)
    for key, order in patch.items():
        field = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and field in merged and field not in patch:
            merged[field] = _ordered(merged[field], MERGE_KEYS.get(field), order, merged[field])
    return merged


def _merge_lists(field: str, target: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    key = MERGE_KEYS.get(field)
    if field in MERGED_PRIMITIVES:
        merged = [*target, *(each for each in patch if each not in target)]
    elif key is None or not all(isinstance(each, dict) for each in patch):
        return copy_json(patch)
    else:
        if any(each.get("$patch") == "replace" for each in patch):
            return [copy_json(each) for each in patch if "$patch" not in each]
        merged = list(target)
        for each in patch:
            if key not in each:
                raise bad_request(f"map: {each} does not contain declared merge key: {key}")
            at = next((i for i, held in enumerate(merged) if held.get(key) == each[key]), None)
            directive = each.get("$patch", "merge")
            if directive == "delete":
                merged = [held for held in merged if held.get(key) != each[key]]
            elif directive != "merge":
                raise _unknown(directive)
            elif at is None:
                merged.append(strategic_merge({}, each))
            else:
                merged[at] = strategic_merge(merged[at], each)
    return merged if order is None else _ordered(merged, key, order, target)


def _ordered(merged: list[Any], key: str | None, order: list[Any], server: list[Any]) -> list[Any]:
    """Items of the order in that order; those that only the server has stay in place relative to them."""

    def identity(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    wanted = [identity(each) for each in order]
    places = {identity(each): place for place, each in enumerate(server)}
    listed = sorted(
        (each for each in merged if identity(each) in wanted), key=lambda x: wanted.index(identity(x))
    )
    others = [each for each in merged if identity(each) not in wanted]
    result: list[Any] = []
    for each in listed:
        place = places.get(identity(each))
        while others and place is not None and places.get(identity(others[0]), len(server)) < place:
            result.append(others.pop(0))
        result.append(each)
    return result + others


def _unknown(directive: object) -> StatusError:
    return bad_request(f"Unknown patch type: {directive}")
