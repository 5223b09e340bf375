"""The garbage collector: what happens to dependents when their owner, or their namespace, goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mig_manager.simulation.objects import Change, Object, Resource
from mig_manager.simulation.resources import EVENTS, NAMESPACES, RESOURCES
from mig_manager.simulation.store import MemoryStore

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


def collect_garbage(store: MemoryStore) -> Callable[[], None]:
    """Follow the store's deletions until the returned function is called."""

    def follow(change: Change) -> None:
        meta = change.object["metadata"]
        if change.type == "DELETED":
            for resource, dependent in list(_dependents(store, meta["uid"])):
                _delete(store, resource, dependent)
            if change.resource == NAMESPACES:
                _empty(store, meta["name"])
            for owner in meta.get("ownerReferences") or []:
                _finish_foreground(store, owner["uid"])
        elif "deletionTimestamp" in meta and ORPHAN in (meta.get("finalizers") or []):
            for resource, dependent in list(_dependents(store, meta["uid"])):
                _disown(store, resource, dependent, meta["uid"])
            _drop_finalizer(store, change.resource, change.object, ORPHAN)
        elif "deletionTimestamp" in meta and FOREGROUND in (meta.get("finalizers") or []):
            for resource, dependent in list(_dependents(store, meta["uid"])):
                if "deletionTimestamp" not in dependent["metadata"]:
                    _delete(store, resource, dependent, foreground=True)
            _finish_foreground(store, meta["uid"])

    return store.subscribe(follow)


def _all(store: MemoryStore) -> Iterator[tuple[Resource, Object]]:
    for resource in RESOURCES:
        if resource != EVENTS:
            for each in store.snapshot(resource)[0]:
                yield resource, each


def _dependents(store: MemoryStore, uid: str) -> Iterator[tuple[Resource, Object]]:
    for resource, each in _all(store):
        owners = each["metadata"].get("ownerReferences") or []
        if any(owner["uid"] == uid for owner in owners):
            yield resource, each


def _delete(store: MemoryStore, resource: Resource, obj: Object, *, foreground: bool = False) -> None:
    """Delete it if it is still the same; `foreground`: only after what it owns, if it owns anything."""
    meta = obj["metadata"]
    with store.transaction():
        held = store.get(resource, meta.get("namespace"), meta["name"])
        if held is None or held["metadata"]["uid"] != meta["uid"]:
            return
        if foreground and any(_dependents(store, meta["uid"])):
            store.update(
                resource, meta.get("namespace"), meta["name"], lambda each: with_finalizer(each, FOREGROUND)
            )
        store.delete(resource, meta.get("namespace"), meta["name"])


def with_finalizer(obj: Object, finalizer: str) -> Object:
    """The object with one more finalizer."""
    held = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in held:
        held.append(finalizer)
    return obj


def _disown(store: MemoryStore, resource: Resource, obj: Object, uid: str) -> None:
    def without(held: Object) -> Object:
        owners = held["metadata"].get("ownerReferences") or []
        held["metadata"]["ownerReferences"] = [each for each in owners if each["uid"] != uid]
        return held

    store.update(resource, obj["metadata"].get("namespace"), obj["metadata"]["name"], without)


def _drop_finalizer(store: MemoryStore, resource: Resource, obj: Object, finalizer: str) -> None:
    def without(held: Object) -> Object:
        finalizers = held["metadata"].get("finalizers") or []
        held["metadata"]["finalizers"] = [each for each in finalizers if each != finalizer]
        return held

    store.update(resource, obj["metadata"].get("namespace"), obj["metadata"]["name"], without)


def _finish_foreground(store: MemoryStore, uid: str) -> None:
    """Let an owner go that waits for its dependents, once none is left."""
    for resource, each in list(_all(store)):
        meta = each["metadata"]
        waits = "deletionTimestamp" in meta and FOREGROUND in (meta.get("finalizers") or [])
        if meta["uid"] == uid and waits and not any(_dependents(store, uid)):
            _drop_finalizer(store, resource, each, FOREGROUND)


def _empty(store: MemoryStore, namespace: str) -> None:
    for resource in RESOURCES:
        if resource.namespaced:
            for each in store.snapshot(resource, namespace)[0]:
                _delete(store, resource, each)
