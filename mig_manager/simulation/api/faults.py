"""Trouble on request, and the log of what clients asked for."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from mig_manager.simulation.api.status import StatusError
from mig_manager.simulation.objects import Object

How = Literal["answer", "drop", "cut", "silent"]
"""`answer`: with the fault's status. `drop`: close the connection without a word. `cut`: close it inside a
chunk of the answer. `silent`: keep the connection open and send nothing (more)."""

_POLL_S = 0.005

_REASONS: Mapping[int, tuple[str, str]] = {
    400: ("BadRequest", "bad request"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    410: ("Expired", "too old resource version"),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred: simulated"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


class Gate:
    """Requests come here and wait until it is opened; `open`, or the end of a `with` block, opens it for good."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def wait(self, timeout_s: float = 60) -> None:
        """Come back when a request stands before it. Raises TimeoutError."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError("no request has come to the gate")

    def open(self) -> None:
        """Let the requests go on."""
        self._open.set()

    async def pass_through(self) -> None:
        """Wait until it is open."""
        self._reached.set()
        while not self._open.is_set():
            await asyncio.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Fault:
    """Requests that go wrong, and how."""

    method: str = ".*"
    """Regular expression for the whole method."""
    path: str = ".*"
    """Regular expression found anywhere in path and query: `^/api/v1/nodes/n$`, `watch=true`."""
    how: How = "answer"
    status: int | None = None
    """None: the request is answered as usual (after `delay_s`)."""
    body: Object | None = None
    """None: a Status that suits the code."""
    text: str | None = None
    """A plain text instead of a body: how a server that throttles, or a proxy, answers."""
    retry_after_s: int | None = None
    delay_s: float = 0
    gate: Gate | None = None
    """What the request has to wait for before anything else."""
    lines: int = 0
    """Of a watch that is cut or falls silent: lines that it sends before."""
    times: int | None = 1
    """Requests that it hits; None: all."""
    skip: int = 0
    """Requests that pass before."""
    act: Callable[[], None] | None = None
    """Called before the request goes wrong: after its effect, or without one where it is dropped."""

    def error(self) -> StatusError:
        """The failure to answer with."""
        code = self.status or 500
        reason, message = _REASONS.get(code, ("", "simulated failure"))
        return StatusError(code, reason, message, retry_after_s=self.retry_after_s)


class Faults:
    """The faults in force; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[int, tuple[Fault, int | None]] = {}
        self._skip: dict[int, int] = {}
        self._next = 0

    def add(self, fault: Fault) -> Callable[[], None]:
        """Put a fault in force; returns what takes it out again."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._left[number] = (fault, fault.times)
            self._skip[number] = fault.skip

        def remove() -> None:
            with self._lock:
                self._left.pop(number, None)

        return remove

    def clear(self) -> None:
        """Take all faults out."""
        with self._lock:
            self._left.clear()

    def hit(self, method: str, path_and_query: str) -> Fault | None:
        """The first fault that a request meets; counts it."""
        with self._lock:
            for number, (fault, left) in self._left.items():
                if re.fullmatch(fault.method, method) and re.search(fault.path, path_and_query):
                    if self._skip[number] > 0:
                        self._skip[number] -= 1
                        continue
                    if left is not None and left <= 1:
                        del self._left[number]
                    elif left is not None:
                        self._left[number] = (fault, left - 1)
                    return fault
        return None


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was answered (or dropped)."""

    method: str
    path: str
    query: Mapping[str, str]
    status: int
    """0: no answer was sent."""
    user_agent: str
    content_type: str
    accept: str
    user: str
    """Empty where none was found out."""
    verb: str
    """As RBAC names it; empty for paths without objects."""
    resource: str
    """`pods/eviction`; empty for paths without objects."""
    group: str
    namespace: str
    name: str
    body: Object | None = None
    """Of a request that writes."""
    at: float = field(default_factory=time.monotonic)
    """`time.monotonic()` when the answer began."""


class RequestLog:
    """Requests in the order of their answers; thread-safe. A watch is logged when its stream opens."""

    def __init__(self) -> None:
        self._held: list[Request] = []
        self._changed = threading.Condition()

    def add(self, request: Request) -> None:
        """Append."""
        with self._changed:
            self._held.append(request)
            self._changed.notify_all()

    def all(self) -> tuple[Request, ...]:
        """Everything since the start or the last `clear`."""
        with self._changed:
            return tuple(self._held)

    def used(self, user: str) -> frozenset[tuple[str, str]]:
        """Verb and resource of every request of that user that was let through."""
        return self._accesses(user, lambda status: status != 403)

    def denied(self, user: str) -> frozenset[tuple[str, str]]:
        """The same of those that were answered with 403."""
        return self._accesses(user, lambda status: status == 403)

    def _accesses(self, user: str, counts: Callable[[int], bool]) -> frozenset[tuple[str, str]]:
        return frozenset(
            (each.verb, each.resource)
            for each in self.all()
            if each.user == user and each.verb and counts(each.status)
        )

    def clear(self) -> None:
        """Forget."""
        with self._changed:
            self._held.clear()

    def wait_for(self, wanted: Callable[[Request], bool], timeout_s: float, *, count: int = 1) -> bool:
        """Wait until `count` logged requests are wanted ones; False if the time runs out."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(map(wanted, self._held)) >= count, timeout_s)
