"""Events on the Node, as `kubectl describe node` shows them."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Literal

from loguru import logger

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError

_NAMESPACE = "default"
_LONGEST_MESSAGE = 1024
_MOST_WAITING = 100
_PAUSES_S = (0.0, 0.5, 2.0, 8.0)
"""Before each attempt to send one Event."""
_MUTE_S = 600.0
"""How long Events are only logged once they were found not to be permitted."""


class EventRecorder:
    """Records Events on one Node. Best effort: it never raises and never makes the caller wait.

    A thread sends them; it starts with the first Event.
    """

    def __init__(self, api: Api, node: str, *, component: str = "mig-manager") -> None:
        self.node_uid = node
        """The Node's uid once known; its name until then, as the kubelet does. describe looks for both."""
        self._api = api
        self._node = node
        self._component = component
        self._waiting: Queue[JsonObject | None] = Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._muted_until = 0.0
        self._thread: threading.Thread | None = None

    def record(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Say that something happened; `reason` is one CamelCase word."""
        if time.monotonic() < self._muted_until:
            logger.info("Event {} (only logged): {}", reason, message)
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if len(message) > _LONGEST_MESSAGE:
            message = message[: _LONGEST_MESSAGE - 1] + "…"
        event: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._node}.", "namespace": _NAMESPACE},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": self.node_uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._waiting.put_nowait(event)
        except Full:
            logger.warning("Too many Events wait to be sent; dropped: {} {}", reason, message)
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="events", daemon=True)
                self._thread.start()

    def mute(self, mute: bool = True) -> None:
        """Only log Events for a while, since they are not permitted; or send them again."""
        self._muted_until = time.monotonic() + _MUTE_S if mute else 0.0

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

    def _send(self) -> None:
        while (event := self._waiting.get()) is not None:
            if not self._sent(event) and self._closing.is_set():
                return

    def _sent(self, event: JsonObject) -> bool:
        refused: ApiError | None = None
        for pause_s in _PAUSES_S:
            # Not the API's own pause: what breaks that off concerns the main thread alone.
            self._closing.wait(pause_s)
            try:
                self._api.create(collection_path("events", namespace=_NAMESPACE), event)
            except ApiError as error:
                refused = error
                if error.status == 403:
                    self.mute()
                if not error.passing:
                    break
            else:
                return True
        logger.warning("An Event could not be recorded ({}): {}", event["reason"], refused)
        return False
