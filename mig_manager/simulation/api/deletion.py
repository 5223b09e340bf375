"""Deletions: options, preconditions, propagation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.garbage import FOREGROUND, ORPHAN, with_finalizer
from mig_manager.simulation.api.status import bad_request, conflict, not_found, success
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import PODS, SERVICE_ACCOUNTS
from mig_manager.simulation.store import MemoryStore

_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_SHOWS_DELETED = frozenset({PODS, SERVICE_ACCOUNTS})
"""Kinds whose deletion answers with the object, where others answer with a Status."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The parts of DeleteOptions that have an effect here."""

    grace_seconds: int | None = None
    propagation: str = "Background"
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str], body: Object | None) -> DeleteOptions:
        """From the query and the body, which wins; StatusError 400 for an unknown propagation."""
        held = body or {}
        grace = held.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        propagation = held.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
        if held.get("orphanDependents") or query.get("orphanDependents") == "true":
            propagation = "Orphan"
        if propagation not in ("Background", *_FINALIZERS):
            raise bad_request(f"invalid propagationPolicy: {propagation}")
        conditions = held.get("preconditions") or {}
        return cls(
            None if grace in (None, "") else int(grace),
            propagation,
            conditions.get("uid") or "",
            conditions.get("resourceVersion") or "",
        )


def check_preconditions(call: Call, obj: Object, options: DeleteOptions) -> None:
    """StatusError 409 where the object is another one, or another version, than the client thinks."""
    meta = obj["metadata"]
    if options.uid and options.uid != meta["uid"]:
        raise conflict(
            call.resource, call.name, _differs("UID", options.uid, meta["uid"], "deleted and then recreated")
        )
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = _differs("ResourceVersion", options.resource_version, meta["resourceVersion"], "modified")
        raise conflict(call.resource, call.name, why)


def _differs(what: str, wanted: str, found: str, then: str) -> str:
    """In the words of the server's first look, which comes before the storage has one of its own."""
    return (
        f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found})."
        f" The object might have been {then}"
    )


def delete(store: MemoryStore, call: Call, options: DeleteOptions) -> Object:
    """Begin or finish a deletion; the object while it lives on, else what the API answers for its kind."""
    obj = store.get(call.stored, call.namespace, call.name)
    if obj is None:
        raise not_found(call.resource, call.name)
    check_preconditions(call, obj, options)
    finalizer = _FINALIZERS.get(options.propagation)
    if finalizer:
        store.update(call.stored, call.namespace, call.name, lambda held: with_finalizer(held, finalizer))
    deleted = store.delete(call.stored, call.namespace, call.name, grace_seconds=options.grace_seconds)
    alive = store.get(call.stored, call.namespace, call.name) is not None
    if deleted is not None and (alive or call.stored in _SHOWS_DELETED):
        return deleted
    details = {"name": call.name, "kind": call.resource.plural, "uid": obj["metadata"]["uid"]}
    if call.resource.group:
        details["group"] = call.resource.group
    return success(code=200, details=details)
