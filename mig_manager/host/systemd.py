"""Units of the host's systemd, over its D-Bus system bus: looked at, stopped, started."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jeepney import DBusAddress, DBusErrorResponse, MatchRule, Properties, message_bus, new_method_call
from jeepney.auth import AuthenticationError
from jeepney.bus import get_bus
from jeepney.io.blocking import DBusConnection, prep_socket
from jeepney.low_level import Message
from jeepney.wrappers import unwrap_msg

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.units import Unit

_LOOK_S = 5.0
"""How often a job that is waited for is looked up, in case that the signal of its end was lost."""
_SLICE_S = 0.2
"""How soon an interrupt is noticed while a job is waited for."""
_SOCKETS = (Path("run/dbus/system_bus_socket"), Path("var/run/dbus/system_bus_socket"))

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = DBusAddress(_PATH, bus_name=_NAME, interface=f"{_NAME}.Manager")
_STOPPED_TOGETHER = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""Properties that name the units which systemd stops with one (systemd.unit(5))."""
_TROUBLE = (OSError, AuthenticationError, DBusErrorResponse, ValueError, RuntimeError)


class InterruptedWaitError(Exception):
    """A wait for a job was broken off; the job goes on."""


def find_bus(host_root: Path) -> str | None:
    """The D-Bus address of the host's system bus: below the mount point of its root.

    Where nothing is mounted there, this process is taken to run on the host itself. None: there is no bus.
    """
    root = host_root if host_root.is_dir() else Path("/")
    path = next((root / each for each in _SOCKETS if (root / each).is_socket()), None)
    return None if path is None else f"unix:path={quote(str(path))}"


class Systemd:
    """A connection to systemd; `connected` makes it."""

    def __init__(self, connection: DBusConnection, ended: deque[Message], answer_s: float) -> None:
        """`ended`: where the signals of ended jobs arrive. `answer_s`: how long a call may take."""
        self._connection = connection
        self._ended = ended
        self._answer_s = answer_s

    def unit(self, name: str) -> Unit:
        """The unit of that name, or with that alias, as it is now. Raises MigManagerError."""
        path = self._call(name, new_method_call(_MANAGER, "LoadUnit", "s", (name,)))
        address = DBusAddress(path, bus_name=_NAME, interface=f"{_NAME}.Unit")
        found = {key: value for key, (_, value) in self._call(name, Properties(address).get_all()).items()}
        _, job = found.get("Job", (0, "/"))
        lasting = found["LoadState"] == "loaded" and not found.get("Transient", False)
        return Unit(
            name=found["Id"],
            load=found["LoadState"],
            active=found["ActiveState"],
            sub=found.get("SubState", ""),
            job="" if job == "/" else self._job_type(job),
            stoppable=found.get("CanStop", True),
            startable=lasting and found.get("CanStart", True),
            dependents=tuple(each for key in _STOPPED_TOGETHER for each in found.get(key, ())),
            triggers=tuple(found.get("TriggeredBy", ())),
        )

    def stop(self, name: str, timeout_s: float, interrupted: threading.Event | None = None) -> None:
        """Stop a unit, and come back once it is down.

        Raises:
            MigManagerError: HostServiceError; it is not, and why.
            InterruptedWaitError: the event was set meanwhile.
        """
        job = self._call(name, new_method_call(_MANAGER, "StopUnit", "ss", (name, "replace")))
        result = self._result(name, job, timeout_s, interrupted)
        unit = self.unit(name)
        if unit.down:
            return
        if result is None:
            raise _error(f"{name} did not stop within {timeout_s:g} s: it is {unit.state}.")
        by = ", ".join(unit.triggers)
        hint = f"; {by} may have started it again: list that as well" if by else ""
        raise _error(f"{name} was stopped, but is {unit.state} again (the job ended as {result!r}){hint}.")

    def start(self, name: str, timeout_s: float, interrupted: threading.Event | None = None) -> None:
        """Start a unit, and come back once systemd has. Raises as `stop`."""
        # A target would pull in whatever it wants, also what somebody has stopped since.
        mode = "ignore-dependencies" if name.endswith(".target") else "replace"
        job = self._call(name, new_method_call(_MANAGER, "StartUnit", "ss", (name, mode)))
        result = self._result(name, job, timeout_s, interrupted)
        unit = self.unit(name)
        if result is None:
            raise _error(f"{name} did not start within {timeout_s:g} s: it is {unit.state}.")
        if result not in ("done", "") or unit.active == "failed":
            words = [f"the job ended as {result!r}"] if result not in ("done", "") else []
            words += self._service_result(name)
            raise _error(f"{name} could not be started: it is {unit.state}; {', '.join(words)}.")

    def forget_failure(self, name: str) -> None:
        """Let a unit that has failed be started again, however often it was tried."""
        with suppress(MigManagerError):
            self._call(name, new_method_call(_MANAGER, "ResetFailedUnit", "s", (name,)))

    def _result(
        self, name: str, job: str, timeout_s: float, interrupted: threading.Event | None
    ) -> str | None:
        """How a job ended, in systemd's word; empty: it has, but nobody heard how; None: not in time."""
        end = time.monotonic() + timeout_s
        look = time.monotonic() + _LOOK_S
        while True:
            while self._ended:
                _, path, _, result = self._ended.popleft().body
                if path == job:
                    return str(result)
            now = time.monotonic()
            if interrupted is not None and interrupted.is_set():
                raise InterruptedWaitError
            if now >= end:
                return None
            if now >= look:
                if not self._job_type(job):
                    return ""
                look = now + _LOOK_S
            with _translated(name), suppress(TimeoutError):
                self._connection.recv_messages(timeout=min(end - now, _SLICE_S))

    def _job_type(self, job: str) -> str:
        """Of a job that is not done yet; empty: it is."""
        address = DBusAddress(job, bus_name=_NAME, interface=f"{_NAME}.Job")
        with suppress(MigManagerError):
            return str(self._call(job, Properties(address).get("JobType"))[1])
        return ""

    def _service_result(self, name: str) -> list[str]:
        """What systemd says of how a service ended, such as `result 'exit-code'`; nothing for other units."""
        path = self._call(name, new_method_call(_MANAGER, "LoadUnit", "s", (name,)))
        address = DBusAddress(path, bus_name=_NAME, interface=f"{_NAME}.Service")
        with suppress(MigManagerError):
            return [f"result {self._call(name, Properties(address).get('Result'))[1]!r}"]
        return []

    def _call(self, about: str, message: Message) -> Any:
        """The first value of the reply, if it has any. Raises MigManagerError that says what it was about."""
        with _translated(about):
            values = unwrap_msg(self._connection.send_and_get_reply(message, timeout=self._answer_s))
        return values[0] if values else None


@contextmanager
def connected(address: str, *, answer_s: float = 10.0) -> Iterator[Systemd]:
    """A connection to systemd, by the D-Bus address of its bus.

    Args:
        answer_s: how long the bus and systemd may take for each answer. A systemd that reads its units anew is
            busy for seconds.

    Raises:
        MigManagerError: HostServiceError; there is no such bus, it does not answer in time, or refuses us.
    """
    with ExitStack() as stack:
        with _translated(f"the system bus at {address}"):
            connection = stack.enter_context(_connect(address, answer_s))
        ended: deque[Message] = deque()
        with _translated(f"systemd on the system bus at {address}"):
            rule = MatchRule(type="signal", interface=_MANAGER.interface, member="JobRemoved", path=_PATH)
            stack.enter_context(connection.filter(rule, queue=ended))
            for message in (
                message_bus.AddMatch(f"{rule.serialise()},sender='{_NAME}'"),
                new_method_call(_MANAGER, "Subscribe"),
            ):
                unwrap_msg(connection.send_and_get_reply(message, timeout=answer_s))
        yield Systemd(connection, ended, answer_s)


def _connect(address: str, answer_s: float) -> DBusConnection:
    opened = prep_socket(get_bus(address), timeout=answer_s)
    # The library waits for ever for the first answer.
    limit = threading.Timer(answer_s, _shut, (opened,))
    limit.start()
    try:
        return DBusConnection(opened)
    except BaseException:
        opened.close()
        raise
    finally:
        limit.cancel()


def _shut(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


@contextmanager
def _translated(about: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise _error(f"{about}: no answer in time.") from None
    except DBusErrorResponse as error:
        words = str(error.data[0]) if error.data else "no further words"
        raise _error(f"{about}: {words.rstrip('.')} ({error.name}).") from None
    except _TROUBLE as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error(f"{about}: {words or type(error).__name__}.") from None


def _error(message: str) -> MigManagerError:
    return MigManagerError(Reason.HOST_SERVICE_ERROR, message)
