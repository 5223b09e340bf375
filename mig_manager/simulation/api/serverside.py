"""Server-side apply: who owns which field, and what becomes of the others.

Fields are owned by those who apply them; other writers are not tracked, so they never cause a conflict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mig_manager.simulation.api.status import StatusError, details_of
from mig_manager.simulation.api.strategic import MERGE_KEYS
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.values import copy_json, now

Path = tuple[str, ...]
"""Steps as fieldsV1 writes them: `f:spec`, `k:{"name":"x"}`."""

_IDENTITY = frozenset({"apiVersion", "kind"})
_IDENTITY_META = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp"}
)


def apply_fields(
    resource: Resource, old: Object | None, wanted: Object, manager: str, *, force: bool
) -> Object:
    """What `old` becomes when `manager` applies `wanted`.

    Fields that the manager applied before and no longer names go, unless another one applies them too.
    StatusError 409 where another one applies a different value, unless forced.
    """
    old = old or {"metadata": {}}
    entries = [
        each for each in old["metadata"].get("managedFields") or [] if each.get("operation") == "Apply"
    ]
    mine = {path for each in entries if each["manager"] == manager for path in _paths(each["fieldsV1"])}
    named = dict(_leaves(wanted))
    others = {each["manager"]: _paths(each["fieldsV1"]) for each in entries if each["manager"] != manager}
    current = dict(_leaves(old))
    clashes = [
        (path, other)
        for other, paths in others.items()
        for path in paths
        if path in named and path in current and named[path] != current[path]
    ]
    if clashes and not force:
        raise _conflicts(resource, wanted, clashes)
    taken = {path for path, _ in clashes}
    new: Object = copy_json(old)
    kept = {path for paths in others.values() for path in paths}
    for path in mine - named.keys() - kept:
        _drop(new, path)
    new = _merge(new, wanted)
    fields = [(name, paths - taken) for name, paths in others.items()] + [(manager, set(named))]
    times = {each["manager"]: each["time"] for each in entries}
    if mine == named.keys() and not clashes and new == old:
        return old
    new["metadata"]["managedFields"] = [
        {
            "manager": name,
            "operation": "Apply",
            "apiVersion": resource.api_version,
            "time": now() if name == manager else times[name],
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(paths),
        }
        for name, paths in fields
        if paths
    ]
    return new


def _leaves(obj: Object) -> Iterator[tuple[Path, Any]]:
    """The fields of an object that one can own, with their values."""
    meta = {key: each for key, each in (obj.get("metadata") or {}).items() if key not in _IDENTITY_META}
    rest = {key: each for key, each in obj.items() if key not in _IDENTITY and key != "metadata"}
    yield from _walk("", {"metadata": meta, **rest}, ())


def _walk(field: str, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _walk(key, each, (*path, f"f:{key}"))
    elif _is_keyed(field, value):
        key = MERGE_KEYS[field]
        for each in value:
            step = (*path, f"k:{_json({key: each[key]})}")
            yield (*step, "."), True
            yield from _walk("", each, step)
    elif isinstance(value, dict) and not path[1:]:
        return
    else:
        yield path, value


def _is_keyed(field: str, value: Any) -> bool:
    key = MERGE_KEYS.get(field)
    keyed = key is not None and isinstance(value, list) and bool(value)
    return keyed and all(isinstance(each, dict) and key in each for each in value)


def _merge(target: Any, wanted: Any, field: str = "") -> Any:
    if isinstance(wanted, dict):
        merged = dict(target) if isinstance(target, dict) else {}
        for key, value in wanted.items():
            merged[key] = _merge(merged.get(key), value, key)
        return merged
    if _is_keyed(field, wanted):
        key = MERGE_KEYS[field]
        held = list(target or [])
        for each in wanted:
            at = next((i for i, old in enumerate(held) if old.get(key) == each[key]), None)
            if at is None:
                held.append(copy_json(each))
            else:
                held[at] = _merge(held[at], each)
        return held
    return copy_json(wanted)


def _drop(obj: Any, path: Path) -> None:
    """Take the field at the path out, and list items whose own existence the path names."""
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        key = step[2:]
        if not isinstance(obj, dict) or key not in obj:
            return
        if not rest:
            del obj[key]
        else:
            _drop(obj[key], rest)
            if obj[key] in ({}, []) and key != "metadata":
                del obj[key]
    elif step.startswith("k:") and isinstance(obj, list):
        wanted = _parse(step[2:])
        for each in [each for each in obj if all(each.get(key) == value for key, value in wanted.items())]:
            if rest == (".",):
                obj.remove(each)
            else:
                _drop(each, rest)


def _paths(fields: Mapping[str, Any], path: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for key, each in fields.items():
        found |= _paths(each, (*path, key)) if each else {(*path, key)}
    return found


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        held = tree
        for step in path:
            held = held.setdefault(step, {})
    return tree


def _conflicts(resource: Resource, wanted: Object, clashes: list[tuple[Path, str]]) -> StatusError:
    name = (wanted.get("metadata") or {}).get("name", "")
    shown = [("".join(_shown(step) for step in path), other) for path, other in clashes]
    plural = "conflict" if len(clashes) == 1 else "conflicts"
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{other}"', "field": field}
        for field, other in shown
    ]
    listed = "; ".join(f'conflict with "{other}": {field}' for field, other in shown)
    message = f"Apply failed with {len(clashes)} {plural}: {listed}"
    return StatusError(409, "Conflict", message, details={**details_of(resource, name), "causes": causes})


def _shown(step: str) -> str:
    if step.startswith("k:"):
        return "[" + ",".join(f'{key}="{value}"' for key, value in _parse(step[2:]).items()) + "]"
    return f".{step[2:]}" if step.startswith("f:") else ""


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _parse(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    return parsed
