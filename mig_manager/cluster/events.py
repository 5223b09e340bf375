"""Events on the Node and on its pods, as `kubectl describe` and `kubectl get events` show them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Literal

from loguru import logger

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.objects import JsonObject, Pod
from mig_manager.cluster.refusal import ApiError

RUN_ANNOTATION = "mig-manager/run"
"""On an Event: id of the run that it tells of."""

_NAMESPACE = "default"
_LONGEST_MESSAGE = 1024
_MOST_WAITING = 300
_PAUSES_S = (0.0, 0.5, 2.0, 8.0)
"""Before each attempt to send one Event."""
_MUTE_S = 600.0
"""How long Events are only logged once they were found not to be permitted."""
_KEPT_S = 3000.0
"""How long one that comes again is counted on the first. API servers keep Events for an hour."""
_MOST_KEPT = 200
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*|\b\d+(\.\d+)? s\b")
"""What may differ in the messages of Events that say the same."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An Event that waits to be sent."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: JsonObject
    """involvedObject."""
    time: str
    run: str

    @property
    def namespace(self) -> str:
        """Where it has to lie: beside its object, or where Events about Nodes are."""
        return str(self.about.get("namespace", _NAMESPACE))

    @property
    def sense(self) -> Hashable:
        """Equal for those that say the same of the same."""
        return self.about["uid"], self.kind, self.reason, _TIME.sub("", self.message)

    @property
    def meta(self) -> JsonObject:
        return {"annotations": {RUN_ANNOTATION: self.run}} if self.run else {}


@dataclass(slots=True)
class _Sent:
    """One that is at the API server."""

    name: str
    count: int
    since: float


class EventRecorder:
    """Records Events on one Node and its pods. Best effort: it never raises and never makes the caller wait.

    A thread sends them; it starts with the first Event. One that comes again is counted, not made anew.
    """

    def __init__(self, api: Api, node: str, *, component: str = "mig-manager") -> None:
        self.node_uid = node
        """The Node's uid once known; its name until then, as the kubelet does. describe looks for both."""
        self.run = ""
        """Id of the run that is under way; empty between runs."""
        self.on_pods = True
        """Whether Events about pods may be written."""
        self.counting = True
        """Whether Events may be changed, so that one that comes again can be counted."""
        self._api = api
        self._node = node
        self._component = component
        self._waiting: Queue[_Event | None] = Queue(_MOST_WAITING)
        self._sent_before: dict[Hashable, _Sent] = {}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._muted_until: dict[str, float] = {}
        """By namespace."""
        self._thread: threading.Thread | None = None

    def record(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Say on the Node that something happened; `reason` is one CamelCase word."""
        about = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self.node_uid}
        if self._muted(_NAMESPACE):
            logger.info("Event {} (only logged): {}", reason, message)
        else:
            self._put(kind, reason, message, about)

    def record_on_pod(self, pod: Pod, reason: str, message: str) -> None:
        """Say on a pod what happened to it. Where that is not permitted, nobody misses more than a word."""
        about = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        if self.on_pods and not self._muted(pod.namespace):
            self._put("Normal", reason, message, about)

    def mute(self, mute: bool = True) -> None:
        """Only log Events on the Node for a while, since they are not permitted; or send them again."""
        self._muted_until[_NAMESPACE] = time.monotonic() + _MUTE_S if mute else 0.0

    def close(self, wait_s: float = 2.0) -> None:
        """Send what still waits, for at most `wait_s` seconds."""
        if self._thread is None:
            return
        self._closing.set()
        try:
            self._waiting.put_nowait(None)
        except Full:
            return
        self._thread.join(wait_s)

    def _muted(self, namespace: str) -> bool:
        return time.monotonic() < self._muted_until.get(namespace, 0.0)

    def _put(self, kind: Literal["Normal", "Warning"], reason: str, message: str, about: JsonObject) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = message[: _LONGEST_MESSAGE - 1] + "…"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self._waiting.put_nowait(_Event(kind, reason, message, about, now, self.run))
        except Full:
            logger.warning("Too many Events wait to be sent; dropped: {} {}", reason, message)
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="events", daemon=True)
                self._thread.start()

    def _send(self) -> None:
        while (event := self._waiting.get()) is not None:
            if not self._sent(event) and self._closing.is_set():
                return

    def _sent(self, event: _Event) -> bool:
        """Whether the API server has answered; else those that wait have no better chance now."""
        refused: ApiError | None = None
        for pause_s in _PAUSES_S:
            # Not the API's own pause: what breaks that off concerns the main thread alone.
            self._closing.wait(pause_s)
            try:
                if not self._counted(event):
                    self._create(event)
            except ApiError as error:
                refused = error
                if error.status == 403:
                    self._muted_until[event.namespace] = time.monotonic() + _MUTE_S
                if not error.passing:
                    break
            else:
                return True
        logger.warning("An Event could not be recorded ({}): {}", event.reason, refused)
        return refused is not None and not refused.passing

    def _counted(self, event: _Event) -> bool:
        """Count it on one that says the same; False where there is none (any more)."""
        sent = self._sent_before.get(event.sense)
        if sent is None or not self.counting or time.monotonic() > sent.since + _KEPT_S:
            return False
        change = {"message": event.message, "lastTimestamp": event.time, "count": sent.count + 1}
        try:
            path = object_path("events", sent.name, namespace=event.namespace)
            self._api.patch(path, {**change, "metadata": event.meta})
        except ApiError as error:
            if error.status == 403:
                self.counting = False
            if error.status in (403, 404):
                return False
            raise
        sent.count += 1
        return True

    def _create(self, event: _Event) -> None:
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{event.about['name']}.",
                "namespace": event.namespace,
                **event.meta,
            },
            "involvedObject": event.about,
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
            "firstTimestamp": event.time,
            "lastTimestamp": event.time,
            "count": 1,
        }
        made = self._api.create(collection_path("events", namespace=event.namespace), body)
        if len(self._sent_before) >= _MOST_KEPT:
            del self._sent_before[next(iter(self._sent_before))]
        self._sent_before[event.sense] = _Sent(str(made["metadata"]["name"]), 1, time.monotonic())
