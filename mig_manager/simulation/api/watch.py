"""Watches: the store's history as the lines of a stream."""

from __future__ import annotations

from typing import Literal

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.conversion import from_stored
from mig_manager.simulation.api.listing import read_version, selection
from mig_manager.simulation.api.negotiation import Form, dump
from mig_manager.simulation.api.status import Cause, StatusError, expired, invalid
from mig_manager.simulation.history import CompactedError, Event
from mig_manager.simulation.objects import Object
from mig_manager.simulation.store import MemoryStore

_EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Watch:
    """One watch: where it stands in the history, and the lines that come next."""

    def __init__(self, store: MemoryStore, call: Call, form: Form) -> None:
        """Raises StatusError for a version or selector that cannot be read."""
        self._store = store
        self._call = call
        self._form = form
        self._selected = selection(call)
        self._headers = True
        self.bookmarks = call.flag("allowWatchBookmarks")
        self.ended = False
        version = call.query.get("resourceVersion", "")
        sends_initial = _sends_initial(call)
        self._cursor = read_version(store, version) if version not in ("", "0") else store.version
        self._first: list[bytes] = []
        if sends_initial:
            found, self._cursor = store.snapshot(call.stored, call.namespace)
            self._first = [self._line("ADDED", each) for each in found if self._selected(each)]
            if "sendInitialEvents" in call.query:
                self._first.append(self.bookmark(initial_end=True))

    def lines(self) -> list[bytes]:
        """What has happened since the last call, at first the objects that were there already."""
        lines, self._first = self._first, []
        try:
            events = self._store.events_after(self._cursor)
        except CompactedError as error:
            self.ended = True
            return [*lines, error_line(expired(str(error)))]
        for event in events:
            self._cursor = event.version
            if event.change.resource == self._call.stored:
                lines += self._event_lines(event)
        return lines

    def bookmark(self, *, initial_end: bool = False) -> bytes:
        """A BOOKMARK at the place where the watch stands."""
        meta: Object = {"resourceVersion": str(self._cursor), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {_INITIAL_EVENTS_END: "true"}
        resource = self._call.resource
        mark: Object = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if self._form.kind == "Table":
            shaped = self._form.shape(resource, {**mark, "items": []}, headers=self._headers)
            return dump({"type": "BOOKMARK", "object": shaped}) + b"\n"
        return dump({"type": "BOOKMARK", "object": self._form.shape(resource, mark)}) + b"\n"

    def _event_lines(self, event: Event) -> list[bytes]:
        obj, previous = event.change.object, event.previous
        was = previous is not None and self._selected(previous)
        if event.change.type == "DELETED":
            return [self._line("DELETED", obj)] if was else []
        if self._selected(obj):
            return [self._line("MODIFIED" if was else "ADDED", obj)]
        if was and previous is not None:
            meta = {**previous["metadata"], "resourceVersion": str(event.version)}
            return [self._line("DELETED", {**previous, "metadata": meta})]
        return []

    def _line(self, kind: _EventType, obj: Object) -> bytes:
        resource = self._call.resource
        shaped = self._form.shape(resource, from_stored(resource, obj), headers=self._headers)
        self._headers = False
        return dump({"type": kind, "object": shaped}) + b"\n"


def error_line(error: StatusError) -> bytes:
    """An ERROR event."""
    return dump({"type": "ERROR", "object": error.body}) + b"\n"


def _sends_initial(call: Call) -> bool:
    """Whether the watch begins with the objects that are there already."""
    if "sendInitialEvents" not in call.query:
        return call.query.get("resourceVersion", "") in ("", "0")
    if call.query.get("resourceVersionMatch") != "NotOlderThan":
        text = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid(call.resource, "", [Cause("FieldValueForbidden", text, "resourceVersionMatch")])
    if call.flag("sendInitialEvents") and not call.flag("allowWatchBookmarks"):
        text = "Forbidden: sendInitialEvents requires setting allowWatchBookmarks to true"
        raise invalid(call.resource, "", [Cause("FieldValueForbidden", text, "allowWatchBookmarks")])
    return call.flag("sendInitialEvents")
