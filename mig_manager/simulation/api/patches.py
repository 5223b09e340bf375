"""Merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

import json
from typing import Any

from mig_manager.simulation.api.status import bad_request, unprocessable
from mig_manager.simulation.values import copy_json


def merge_patch(target: Any, patch: Any) -> Any:
    """What an `application/merge-patch+json` makes of the target (which stays as it is)."""
    if not isinstance(patch, dict):
        return copy_json(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Any, operations: Any) -> Any:
    """What an `application/json-patch+json` makes of the target (which stays as it is).

    StatusError 422 if an operation does not apply or a `test` fails, 400 if it is no JSON patch at all.
    """
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
        )
    root = {"": copy_json(target)}
    for each in operations:
        try:
            _operate(root, each)
        except (KeyError, IndexError, ValueError, TypeError):
            raise unprocessable() from None
    return root[""]


def _operate(root: dict[str, Any], operation: dict[str, Any]) -> None:
    """Carry out one operation; what cannot be done raises a built-in error."""
    kind, path = operation["op"], _pointer(operation["path"])
    if kind == "add":
        _add(root, path, copy_json(operation["value"]))
    elif kind == "remove":
        _take(root, path)
    elif kind == "replace":
        _look(root, path)
        _set(root, path, copy_json(operation["value"]))
    elif kind == "move":
        _add(root, path, _take(root, _pointer(operation["from"])))
    elif kind == "copy":
        _add(root, path, copy_json(_look(root, _pointer(operation["from"]))))
    elif kind == "test":
        try:
            found = _look(root, path)
        except (KeyError, IndexError):
            found = None
        if json.dumps(found, sort_keys=True) != json.dumps(operation.get("value"), sort_keys=True):
            raise ValueError(path)
    else:
        raise ValueError(kind)


def _pointer(text: str) -> list[str]:
    """The steps of a JSON pointer, from above the root."""
    if text and not text.startswith("/"):
        raise ValueError(text)
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")]


def _look(held: Any, path: list[str]) -> Any:
    for step in path:
        held = held[_index(held, step)] if isinstance(held, list) else held[step]
    return held


def _index(held: list[Any], step: str) -> int:
    index = int(step)
    if not 0 <= index < len(held):
        raise IndexError(step)
    return index


def _set(root: Any, path: list[str], value: Any) -> None:
    parent = _look(root, path[:-1])
    if isinstance(parent, list):
        parent[_index(parent, path[-1])] = value
    else:
        parent[path[-1]] = value


def _add(root: Any, path: list[str], value: Any) -> None:
    parent = _look(root, path[:-1])
    if not isinstance(parent, list):
        parent[path[-1]] = value
    elif path[-1] == "-":
        parent.append(value)
    else:
        index = int(path[-1])
        if not 0 <= index <= len(parent):
            raise IndexError(index)
        parent.insert(index, value)


def _take(root: Any, path: list[str]) -> Any:
    parent = _look(root, path[:-1])
    return parent.pop(_index(parent, path[-1]) if isinstance(parent, list) else path[-1])
