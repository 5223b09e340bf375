"""The systemd of a simulated host: org.freedesktop.systemd1 on a message bus, with jobs that take their time.

Only what manages units: loading, stopping and starting them, their jobs and properties, dependencies by Requires=.
Error names and words are systemd's own.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from jeepney import DBusAddress, message_bus, new_error, new_method_return, new_signal
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.low_level import HeaderFields, Message, MessageType

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = DBusAddress(_PATH, bus_name=_NAME, interface=f"{_NAME}.Manager")
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(service|socket|target|timer|path|mount|slice|scope)")
_INVALID = "org.freedesktop.DBus.Error.InvalidArgs"
_POLL_S = 0.01


@dataclass(slots=True)
class UnitFile:
    """A unit, and how it behaves."""

    name: str
    active: str = "active"
    load: str = "loaded"
    alias: str = ""
    requires: tuple[str, ...] = ()
    """It stops with these, and starts after them."""
    stop_seconds: float = 0.0
    start_seconds: float = 0.0
    failures: float = 0
    """As many of the next starts fail."""
    manual: bool = True
    """Whether it may be started and stopped by hand."""
    socket: str = ""
    """The unit that triggers it: it starts anew as soon as it has been stopped."""
    result: str = "success"


@dataclass(slots=True)
class _Job:
    id: int
    unit: UnitFile
    kind: str
    began: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return f"{_PATH}/job/{self.id}"


class _Refusal(Exception):  # noqa: N818 - not an error of ours
    """What is answered with an error."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(words)
        self.name = name if "." in name else f"{_NAME}.{name}"
        self.words = words


class SimulatedSystemd:
    """Runs from enter to exit of the context manager, in a thread."""

    def __init__(
        self,
        address: str,
        *units: UnitFile,
        changed: Callable[[str, bool], None] = lambda name, up: None,
    ) -> None:
        """`changed` is called when a unit has come up or has gone down, with its name."""
        self.units = {unit.name: unit for unit in units}
        self.requests: list[str] = []
        """`StopUnit NAME`, `StartUnit NAME` and the like, in the order in which they came."""
        self.silent = False
        """Whether no call is answered."""
        self.before: Callable[[str], bool] = lambda request: True
        """Called with each request; whether that still has effect, and is answered."""
        self._address = address
        self._changed = changed
        self._jobs: dict[str, _Job] = {}
        self._numbers = 0
        self._subscribed = False
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="systemd", daemon=True)

    def __enter__(self) -> Self:
        self._connection: DBusConnection = open_dbus_connection(self._address, auth_timeout=10.0)
        self._connection.send_and_get_reply(message_bus.RequestName(_NAME), timeout=10.0)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()
        self._connection.close()

    def states(self) -> dict[str, str]:
        """ActiveState of each unit."""
        return {name: unit.active for name, unit in self.units.items()}

    def begin(self, name: str, kind: str) -> None:
        """Let somebody else begin a job, such as a `stop` that is then under way."""
        with self._lock:
            self._enqueue(self.units[name], kind)

    # The bus.

    def _serve(self) -> None:
        with suppress(ConnectionError):  # The bus has ended.
            while not self._end.is_set():
                with suppress(TimeoutError):
                    self._hear(self._connection.receive(timeout=_POLL_S))
                with self._lock:
                    for job in list(self._jobs.values()):
                        self._work(job)

    def _hear(self, message: Message) -> None:
        if message.header.message_type is MessageType.method_call and not self.silent:
            with self._lock:
                self._connection.send(self._reply(message))

    def _reply(self, call: Message) -> Message:
        fields = call.header.fields
        member, path = fields[HeaderFields.member], fields[HeaderFields.path]
        try:
            signature, body = self._answer(member, path, call.body)
        except _Refusal as refusal:
            error: Message = new_error(call, refusal.name, "s", (refusal.words,))
            return error
        reply: Message = new_method_return(call, signature, body)
        return reply

    def _answer(self, member: str, path: str, body: tuple[Any, ...]) -> tuple[str | None, tuple[Any, ...]]:
        match member:
            case "Subscribe":
                self._subscribed = True
                return None, ()
            case "LoadUnit":
                return "o", (_unit_path(self._load(body[0]).name),)
            case "StopUnit" | "StartUnit" | "ResetFailedUnit":
                request = f"{member} {body[0]}"
                self.requests.append(request)
                if not self.before(request):
                    raise _Refusal("org.freedesktop.DBus.Error.NoReply", "Nobody waits for it any more.")
                return self._order(member, self._load(body[0]))
            case "GetAll":
                return "a{sv}", (self._properties(path),)
            case "Get":
                return "v", (self._property(path, body[1]),)
        raise _Refusal("org.freedesktop.DBus.Error.UnknownMethod", f"Unknown method {member}.")

    def _order(self, member: str, unit: UnitFile) -> tuple[str | None, tuple[Any, ...]]:
        if member == "ResetFailedUnit":
            unit.active = "inactive" if unit.active == "failed" else unit.active
            return None, ()
        starts = member == "StartUnit"
        if starts and unit.load == "masked":
            raise _Refusal("UnitMasked", f"Unit {unit.name} is masked.")
        if starts and unit.load == "not-found":
            raise _Refusal("NoSuchUnit", f"Unit {unit.name} not found.")
        if not starts and unit.load == "not-found" and unit.active == "inactive":
            raise _Refusal("NoSuchUnit", f"Unit {unit.name} not loaded.")
        if not unit.manual:
            words = f"Operation refused, unit {unit.name} may be requested by dependency only"
            raise _Refusal("OnlyByDependency", f"{words} (it is configured to refuse manual start/stop).")
        return "o", (self._enqueue(unit, "start" if starts else "stop").path,)

    # Units and jobs.

    def _load(self, name: str) -> UnitFile:
        if not _UNIT_NAME.fullmatch(name):
            raise _Refusal(_INVALID, f"Unit name {name} is not valid.")
        known = next((unit for unit in self.units.values() if name in (unit.name, unit.alias)), None)
        return known or UnitFile(name, active="inactive", load="not-found")

    def _dependents(self, unit: UnitFile) -> Iterator[UnitFile]:
        return (each for each in self.units.values() if unit.name in each.requires)

    def _enqueue(self, unit: UnitFile, kind: str) -> _Job:
        present = self._jobs.get(unit.name)
        if present is not None and present.kind == kind:
            return present
        if present is not None:
            self._finish(present, "canceled")
        if kind == "stop":
            for each in self._dependents(unit):
                if each.active != "inactive":
                    self._enqueue(each, "stop")
        else:
            for name in unit.requires:
                if self.units[name].active != "active":
                    self._enqueue(self.units[name], "start")
        self._numbers += 1
        job = self._jobs[unit.name] = _Job(self._numbers, unit, kind)
        if kind == "stop" and unit.active not in ("inactive", "failed"):
            unit.active = "deactivating"
        return job

    def _work(self, job: _Job) -> None:
        unit = job.unit
        if job.kind == "start" and unit.active != "active":
            if any(self.units[name].active != "active" for name in unit.requires):
                job.began = time.monotonic()
                return
            unit.active = "activating"
        took = time.monotonic() - job.began
        if self._jobs.get(unit.name) is not job or took < self._seconds(job):
            return
        if job.kind == "stop":
            unit.active = unit.active if unit.active == "failed" else "inactive"
            self._changed(unit.name, False)
        elif unit.failures:
            unit.failures -= 1
            unit.active, unit.result = "failed", "exit-code"
        else:
            unit.active, unit.result = "active", "success"
            self._changed(unit.name, True)
        self._finish(job, "failed" if unit.active == "failed" and job.kind == "start" else "done")
        if job.kind == "stop" and unit.socket:
            self._enqueue(unit, "start")

    @staticmethod
    def _seconds(job: _Job) -> float:
        return job.unit.stop_seconds if job.kind == "stop" else job.unit.start_seconds

    def _finish(self, job: _Job, result: str) -> None:
        del self._jobs[job.unit.name]
        if self._subscribed:
            body = (job.id, job.path, job.unit.name, result)
            self._connection.send(new_signal(_MANAGER, "JobRemoved", "uoss", body))

    # Properties.

    def _properties(self, path: str) -> dict[str, tuple[str, Any]]:
        unit = self._at(path)
        job = self._jobs.get(unit.name)
        loaded = unit.load == "loaded"
        return {
            "Id": ("s", unit.name),
            "LoadState": ("s", unit.load),
            "ActiveState": ("s", unit.active),
            "SubState": ("s", {"active": "running", "inactive": "dead"}.get(unit.active, unit.active)),
            "CanStart": ("b", loaded and unit.manual),
            "CanStop": ("b", unit.manual),
            "Transient": ("b", False),
            "Job": ("(uo)", (job.id, job.path) if job is not None else (0, "/")),
            "RequiredBy": ("as", [each.name for each in self._dependents(unit)]),
            "TriggeredBy": ("as", [unit.socket] if unit.socket else []),
        }

    def _property(self, path: str, name: str) -> tuple[str, Any]:
        if name == "Result":
            return "s", self._at(path).result
        job = next((job for job in self._jobs.values() if job.path == path), None)
        if job is None:
            raise _Refusal("org.freedesktop.DBus.Error.UnknownObject", f"Unknown object '{path}'.")
        return "s", job.kind

    def _at(self, path: str) -> UnitFile:
        escaped = path.rpartition("/")[2]
        return self._load(re.sub("_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), escaped))


def _unit_path(name: str) -> str:
    escaped = re.sub("[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):02x}", name)
    return f"{_PATH}/unit/{escaped}"
