"""Lists: selectors, pages, and the version at which they are read."""

from __future__ import annotations

import base64
import json

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.conversion import from_stored
from mig_manager.simulation.api.selectors import Match, field_selector, label_selector
from mig_manager.simulation.api.status import StatusError, bad_request, expired
from mig_manager.simulation.history import CompactedError
from mig_manager.simulation.objects import Object
from mig_manager.simulation.store import MemoryStore

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new "
    "list without the continue parameter."
)


def selection(call: Call) -> Match:
    """Whether an object belongs to the call: its namespace, name, label and field selectors."""
    labels = label_selector(call.query.get("labelSelector", ""))
    fields = field_selector(call.stored, call.query.get("fieldSelector", ""))

    def selected(obj: Object) -> bool:
        meta = obj["metadata"]
        return (
            (call.namespace is None or meta.get("namespace") == call.namespace)
            and (not call.name or meta["name"] == call.name)
            and labels(obj)
            and fields(obj)
        )

    return selected


def list_objects(store: MemoryStore, call: Call) -> Object:
    """The list object; its items carry no kind, as real ones do not."""
    selected = selection(call)
    at, after = _start(store, call)
    try:
        found, version = store.snapshot(call.stored, call.namespace, at=at)
    except CompactedError:
        raise expired(
            _TOO_OLD if after else "The resourceVersion for the provided list is too old."
        ) from None
    found = [each for each in found if selected(each) and _place(each) > after]
    meta: Object = {"resourceVersion": str(version)}
    limit = call.number("limit")
    if limit and limit < len(found):
        token = {"rv": version, "start": _place(found[limit - 1])}
        meta["continue"] = base64.urlsafe_b64encode(json.dumps(token).encode()).decode()
        if not call.query.get("labelSelector") and not call.query.get("fieldSelector"):
            meta["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    items = [from_stored(call.resource, each) for each in found]
    bare = [
        {key: value for key, value in each.items() if key not in ("apiVersion", "kind")} for each in items
    ]
    return {
        "kind": f"{call.resource.kind}List",
        "apiVersion": call.resource.api_version,
        "metadata": meta,
        "items": bare,
    }


def read_version(store: MemoryStore, text: str) -> int:
    """A resourceVersion that a client sends; StatusError 400 if it is no number, 504 if it lies ahead."""
    if not text.isdigit():
        raise bad_request(
            f'invalid resource version "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    version = int(text)
    if version > store.version:
        raise StatusError(
            504,
            "Timeout",
            f"Too large resource version: {version}, current: {store.version}",
            details={
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            },
            retry_after_s=1,
        )
    return version


def _start(store: MemoryStore, call: Call) -> tuple[int | None, list[str]]:
    """The version to read at (None: now), and the place after which the page begins."""
    text = call.query.get("continue", "")
    if text:
        try:
            token = json.loads(base64.urlsafe_b64decode(text))
            return int(token["rv"]), list(token["start"])
        except (ValueError, KeyError, TypeError):
            raise bad_request("continue key is not valid: the token cannot be read") from None
    version = call.query.get("resourceVersion", "")
    if version in ("", "0"):
        return None, []
    exact = call.query.get("resourceVersionMatch") == "Exact"
    number = read_version(store, version)
    return (number if exact else None), []


def _place(obj: Object) -> list[str]:
    return [obj["metadata"].get("namespace", ""), obj["metadata"]["name"]]
