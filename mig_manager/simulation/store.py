"""The objects of the simulated cluster, their versions, and the history that watches read."""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from mig_manager.simulation.defaults import with_defaults
from mig_manager.simulation.history import Event, History
from mig_manager.simulation.objects import Change, Object, Resource
from mig_manager.simulation.resources import PODS, WITH_GENERATION
from mig_manager.simulation.values import Key, copy_json, key_of, now

Objects = list[Object]
Events = list[Event]

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_DEFAULT_GRACE_S = 30


class ObjectExistsError(Exception):
    """`create` of an object that is there already."""


class MemoryStore:
    """The `Store` of objects.py, in memory, with a history for watches.

    Stored objects are never modified in place, so `events_after`, `snapshot` and the changes that
    subscribers get share them; `get`, `list` and the results of writes are copies.
    """

    def __init__(self, *, history: int = 20_000) -> None:
        """`history`: events to keep, at least; older ones are compacted away."""
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self._version = 1
        self._history = History(history)
        self._pending: deque[Event] = deque()
        self._receivers: dict[object, tuple[int, Callable[[Change], None]]] = {}
        self._lock = threading.RLock()
        self._depth = 0
        self._delivering = False

    @contextmanager
    def transaction(self, *, dry_run: bool = False) -> Iterator[None]:
        """Hold the store over several reads and writes; subscribers hear of them afterwards.

        With `dry_run`, or when the block raises, everything is as before and nobody hears of it.
        """
        with self._lock:
            before = self._version
            keep = False
            self._depth += 1
            try:
                yield
                keep = not dry_run
            finally:
                self._depth -= 1
                outermost = self._depth == 0
                if not keep:
                    self._undo(before)
                if outermost:
                    self._history.trim()
        if outermost:
            self._deliver()

    def create(self, resource: Resource, obj: Object) -> Object:
        """Add an object (to `default` if it names no namespace); ObjectExistsError if there is one."""
        new = with_defaults(resource, copy_json(obj))
        meta = new.setdefault("metadata", {})
        new.update(apiVersion=resource.api_version, kind=resource.kind)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
        if resource.namespaced:
            meta.setdefault("namespace", "default")
        else:
            meta.pop("namespace", None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(key, None)
        if resource in WITH_GENERATION:
            meta["generation"] = 1
        with self.transaction():
            if key_of(new) in self._objects.get(resource, {}):
                raise ObjectExistsError(f'{resource.plural} "{meta["name"]}" already exists')
            self._record("ADDED", resource, new, None)
        return copy_json(new)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """A copy, or None."""
        with self._lock:
            found = self._objects.get(resource, {}).get((namespace or "", name))
        return None if found is None else copy_json(found)

    def list(self, resource: Resource, namespace: str | None = None) -> tuple[Objects, str]:
        """Copies of all (of one namespace) by namespace and name, and the resourceVersion of the reading."""
        found, version = self.snapshot(resource, namespace)
        return [copy_json(each) for each in found], str(version)

    def snapshot(
        self, resource: Resource, namespace: str | None = None, *, at: int | None = None
    ) -> tuple[Objects, int]:
        """The stored objects themselves, as `list` gives them; or as they were `at` an earlier version.

        Raises CompactedError where the history does not reach back that far.
        """
        with self._lock:
            held = self._objects.get(resource, {})
            version = self._version
            if at is not None and at < version:
                held = dict(held)
                for event in reversed(self.events_after(at)):
                    if event.change.resource == resource:
                        event.step_back(held)
                version = at
            found = [held[key] for key in sorted(held) if namespace is None or key[0] == namespace]
        return found, version

    def update(
        self, resource: Resource, namespace: str | None, name: str, change: Callable[[Object], Object | None]
    ) -> Object | None:
        """Replace an object by what `change` makes of a copy, atomically; see `Store`.

        Identity (name, namespace, uid, creationTimestamp) stays whatever `change` says; the last
        finalizer that goes from an object under deletion takes it out for good.
        """
        with self.transaction():
            old = self._objects.get(resource, {}).get((namespace or "", name))
            if old is None:
                return None
            new = change(copy_json(old))
            if new is None:
                return copy_json(old)
            meta = new.setdefault("metadata", {})
            new.update(apiVersion=resource.api_version, kind=resource.kind)
            for key in (
                "name",
                "namespace",
                "uid",
                "creationTimestamp",
                "resourceVersion",
                "generation",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ):
                _carry(old["metadata"], meta, key)
            if new == old:
                return copy_json(old)
            if resource in WITH_GENERATION and new.get("spec") != old.get("spec"):
                meta["generation"] = old["metadata"].get("generation", 1) + 1
            stored = copy_json(new)
            self._record("DELETED" if _is_finished(stored) else "MODIFIED", resource, stored, old)
            meta["resourceVersion"] = stored["metadata"]["resourceVersion"]
            return new

    def delete(
        self, resource: Resource, namespace: str | None, name: str, *, grace_seconds: int | None = None
    ) -> Object | None:
        """Begin or finish a deletion, as the API server does; None: no such object.

        A pod that a node runs keeps living for its grace period (`grace_seconds`, else the pod's own, else
        30 s) until `remove`; a second call can only shorten that. Finalizers hold any object.
        """
        with self.transaction():
            old = self._objects.get(resource, {}).get((namespace or "", name))
            if old is None:
                return None
            new = copy_json(old)
            meta = new["metadata"]
            grace = _grace(resource, old, grace_seconds)
            if "deletionTimestamp" in meta:
                grace = min(grace, meta.get("deletionGracePeriodSeconds") or 0)
                if grace == (meta.get("deletionGracePeriodSeconds") or 0):
                    return new
            meta["deletionTimestamp"] = now(grace)
            meta["deletionGracePeriodSeconds"] = grace
            if resource in WITH_GENERATION and "deletionTimestamp" not in old["metadata"]:
                meta["generation"] = meta.get("generation", 1) + 1
            if _is_finished(new):
                new = copy_json(old)
                self._record("DELETED", resource, new, old)
            else:
                self._record("MODIFIED", resource, new, old)
            return copy_json(new)

    def remove(self, resource: Resource, namespace: str | None, name: str, uid: str) -> None:
        """Take an object out for good, if it is still the one with that uid."""
        with self.transaction():
            old = self._objects.get(resource, {}).get((namespace or "", name))
            if old is not None and old["metadata"]["uid"] == uid:
                self._record("DELETED", resource, copy_json(old), old)

    def subscribe(self, receiver: Callable[[Change], None]) -> Callable[[], None]:
        """Call `receiver` for every later change, in order and outside the lock; returns the way out.

        Calls come from whichever thread writes; a receiver may write to the store, and must not raise.
        """
        ticket = object()
        with self._lock:
            self._receivers[ticket] = (self._version, receiver)

        def leave() -> None:
            with self._lock:
                self._receivers.pop(ticket, None)

        return leave

    @property
    def version(self) -> int:
        """The resourceVersion of the latest change."""
        with self._lock:
            return self._version

    def events_after(self, version: int) -> Events:
        """Every change later than `version`, oldest first; CompactedError if some of them are forgotten."""
        with self._lock:
            return self._history.after(version)

    def compact(self, version: int | None = None) -> None:
        """Forget the history up to `version` (all of it by default): what makes a watch end with 410 Gone."""
        with self._lock:
            self._history.forget(self._version if version is None else version)

    def _record(
        self,
        kind: Literal["ADDED", "MODIFIED", "DELETED"],
        resource: Resource,
        obj: Object,
        previous: Object | None,
    ) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        held = self._objects.setdefault(resource, {})
        if kind == "DELETED":
            del held[key_of(obj)]
        else:
            held[key_of(obj)] = obj
        event = Event(self._version, Change(kind, resource, obj), previous)
        self._history.append(event)
        self._pending.append(event)

    def _undo(self, version: int) -> None:
        """Take back every change later than `version`, none of which was delivered yet."""
        while self._pending and self._pending[-1].version > version:
            self._pending.pop()
            event = self._history.pop()
            event.step_back(self._objects[event.change.resource])
        self._version = version

    def _deliver(self) -> None:
        """Hand pending changes out, one at a time; a thread that finds another at it leaves them to it."""
        while True:
            with self._lock:
                if self._delivering or not self._pending:
                    return
                event = self._pending.popleft()
                receivers = [receive for since, receive in self._receivers.values() if since < event.version]
                self._delivering = True
            try:
                for receive in receivers:
                    receive(event.change)
            finally:
                with self._lock:
                    self._delivering = False


def _carry(source: Object, target: Object, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _is_finished(obj: Object) -> bool:
    meta = obj["metadata"]
    return (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
    )


def _grace(resource: Resource, obj: Object, wanted: int | None) -> int:
    """Seconds that a deletion leaves the object."""
    if resource != PODS or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if wanted is not None:
        return max(wanted, 0)
    own = obj["spec"].get("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_S if own is None else int(own)
