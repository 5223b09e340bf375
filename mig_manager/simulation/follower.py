"""Following one kind on an API server, change by change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.refusal import ApiError, refusal
from mig_manager.cluster.stream import BrokenStreamError, json_lines
from mig_manager.cluster.wait import Deadline
from mig_manager.simulation.objects import Change, Object, Resource

if TYPE_CHECKING:
    import urllib3

_STREAM_S = 300
_SILENCE_S = 20.0
_PATIENCE_S = 10.0
_PAUSE_S = 0.2


class Follower:
    """Hands on every change of all objects of one kind, from `start` to `stop`, in a thread of its own.

    Where a watch breaks off for good, the objects are read as a whole and compared with what was known.
    """

    def __init__(self, api: Api, resource: Resource, deliver: Callable[[Change], None]) -> None:
        """`deliver` is called in the follower's thread, and must not raise."""
        self._api = api
        self._resource = resource
        self._deliver = deliver
        self._path = collection_path(resource.plural, group=resource.api_version)
        self._known: dict[str, Object] = {}
        self._version: str | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._stream: urllib3.BaseHTTPResponse | None = None
        name = f"follow {resource.plural}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Read what there is, and follow it. ApiError 404 where the server has no such kind."""
        self._list()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, also while it reads."""
        self._stopping.set()
        with self._lock, suppress(ValueError, RuntimeError, OSError):
            if self._stream is not None:
                self._stream.shutdown()
        if self._thread.is_alive():
            self._thread.join(_SILENCE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._version is None:
                    for change in self._list():
                        self._deliver(change)
                self._watch()
            except BrokenStreamError:
                self._stopping.wait(_PAUSE_S)
            except ApiError as error:
                if error.status == 410:
                    self._version = None
                self._stopping.wait(_PAUSE_S)

    def _list(self) -> list[Change]:
        """Read all objects; gives what has changed since they were last known."""
        read = self._api.get(self._path, deadline=Deadline.after(_PATIENCE_S))
        before, self._known = self._known, {each["metadata"]["uid"]: each for each in read.get("items") or []}
        for each in self._known.values():
            self._complete(each)
        self._version = str(read["metadata"]["resourceVersion"])
        gone = [self._change("DELETED", each) for uid, each in before.items() if uid not in self._known]
        now = [
            self._change("MODIFIED" if uid in before else "ADDED", each)
            for uid, each in self._known.items()
            if each != before.get(uid)
        ]
        return gone + now

    def _watch(self) -> None:
        query = {
            "watch": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(_STREAM_S),
            "allowWatchBookmarks": "true",
        }
        stream = self._api.stream(self._path, query, silence_s=_STREAM_S + _SILENCE_S)
        try:
            with self._lock:
                self._stream = stream
            if self._stopping.is_set():
                return
            for event in json_lines(stream):
                self._take(event["type"], event["object"])
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _take(self, kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"], obj: Object) -> None:
        if kind == "ERROR":
            raise refusal(f"The watch of {self._path}", int(obj["code"]), str(obj["message"]), obj)
        if kind != "BOOKMARK":
            uid = obj["metadata"]["uid"]
            if kind == "DELETED":
                self._known.pop(uid, None)
            else:
                self._known[uid] = obj
            self._deliver(self._change(kind, obj))
        self._version = str(obj["metadata"]["resourceVersion"])

    def _change(self, kind: Literal["ADDED", "MODIFIED", "DELETED"], obj: Object) -> Change:
        return Change(kind, self._resource, self._complete(obj))

    def _complete(self, obj: Object) -> Object:
        """A list leaves out what kind its items are."""
        obj.setdefault("apiVersion", self._resource.api_version)
        obj.setdefault("kind", self._resource.kind)
        return obj
