"""The worker process: takes requests from a pipe, one at a time, and answers each.

Its main thread only listens, so that it can tell a hung NVML call and hear that the work shall stop; a
request runs in a thread of its own. It heeds no signal: a SIGTERM to the whole process group must not cut a
change short. It ends when the pipe closes, also when the parent is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Literal

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu import work
from mig_manager.gpu.control import CallInHand, CallRecord, Control
from mig_manager.gpu.nvml import TIMEOUT, NvmlSource
from mig_manager.gpu.readings import GpuUsage
from mig_manager.gpu.sessions import Sessions
from mig_manager.gpu.work import WorkerOptions
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

Operation = Literal["inventory", "usage", "release", "build", "rebuild", "persistence", "rest"]
GAVE_UP = 75
"""Exit status of a worker that has not begun what it was asked for last: its session before did not end."""
Payload = NodePlan | tuple[tuple[GpuIdentity, bool], ...] | None
"""What a request is about: a plan, or persistence modes."""
Result = Inventory | tuple[GpuIdentity, ...] | tuple[GpuUsage, ...] | None


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker."""

    source: NvmlSource
    options: WorkerOptions


@dataclass(frozen=True, slots=True)
class Request:
    """Work to do."""

    operation: Operation
    payload: Payload


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request."""

    result: Result
    error: MigManagerError | None
    records: tuple[CallRecord, ...]
    hung: str | None = None
    """What the worker is stuck in, in words, when it must be killed."""
    stuck: CallRecord | None = None
    """The NVML call that it is stuck in, if it is one; its code is TIMEOUT."""


class _Job:
    """One request under way."""

    def __init__(self, server: _Server, request: Request, *, heard: bool, after: _Job | None = None) -> None:
        """`heard`: whether anybody waits for the answer. `after`: the job that this one may have to wait for."""
        self.control = Control(server.told_to_stop)
        self.heard = heard
        self._after = after
        self.started = time.monotonic()
        self._server = server
        self._request = request
        self._lock = threading.Lock()
        self.answered = False
        self.thread = threading.Thread(target=self._run, name=request.operation, daemon=True)

    def _run(self) -> None:
        try:
            result, error = self._work(), None
        except MigManagerError as failure:
            result, error = None, failure
        except Exception as failure:  # noqa: BLE001 -- the parent must hear of it, in words
            result, error = None, _unexpected(self._request.operation, failure)
        self.answer(Reply(result, error, tuple(self.control.records)))

    def _work(self) -> Result:
        operation, payload = self._request.operation, self._request.payload
        given = (self._server.sessions, self._server.setup.options, self.control)
        if isinstance(payload, NodePlan):
            do = {"release": work.release, "build": work.build, "rebuild": work.rebuild}
            return do[operation](payload, *given)
        if payload is not None:
            work.persistence(payload, *given)
            return None
        if operation == "rest":
            self._server.sessions.rest(self.control)
            return None
        return (work.usage if operation == "usage" else work.inventory)(*given)

    def answer(self, reply: Reply) -> None:
        """Send the reply, once."""
        with self._lock:
            if not self.answered:
                self.answered = True
                if not self.heard:
                    return
                with suppress(OSError):  # the parent is gone; the main thread notices
                    self._server.connection.send(reply)

    def _oldest_call(self) -> CallInHand | None:
        """The call that has been in hand for longest."""
        call = self.control.oldest_call()
        return self._after.control.oldest_call() if call is None and self._after is not None else call

    def stuck(self) -> CallRecord | None:
        """The call that has been in hand for longest, as one that never came back."""
        call = self._oldest_call()
        if call is None:
            return None
        return CallRecord(call.function, TIMEOUT, time.monotonic() - call.started, call.gpu)

    def overdue(self, options: WorkerOptions) -> tuple[float, str]:
        """Seconds until it counts as hung, and what to say then."""
        now = time.monotonic()
        call = self._oldest_call()
        spent = now - self.started
        what = "between NVML calls"
        left = min(options.call_timeout_s, options.request_timeout_s - spent)
        if call is not None:
            age = now - call.started
            place = "NVML" if call.gpu is None else f"GPU {call.gpu}"
            what = f"{place}: {call.function} has not come back for {age:.1f} s"
            left = min(options.call_timeout_s - age, options.request_timeout_s - spent)
        return left, f"{what}. The call is given up and its process ended."


class _Server:
    def __init__(self, connection: Connection, stop_fd: int) -> None:
        self.connection = connection
        self._stop_fd = stop_fd
        self.setup: Setup = connection.recv()
        self.sessions = Sessions(self.setup.source, self.setup.options.linger_s)
        self._job: _Job | None = None
        self._stopped = False

    def told_to_stop(self) -> bool:
        """Whether the work shall stop, though on a busy node the thread that listens may not have had its turn yet."""
        return bool(wait([self._stop_fd], 0))

    def run(self) -> None:
        """Listen until the pipe closes, or a session does not end; the next request starts another process then."""
        while True:
            job = self._job if self._job is not None and not self._job.answered else None
            if job is None:
                left = self.sessions.idle_left()
                if left is not None and left <= 0:
                    self._start(Request("rest", None), heard=False)
                    continue
            else:
                left, message = job.overdue(self.setup.options)
                if left <= 0 and not job.heard:
                    return
                if left <= 0:
                    stuck = job.stuck()
                    job.answer(Reply(None, None, tuple(job.control.records), hung=message, stuck=stuck))
                    continue
                # Nobody tells when it is done, and then its session rests.
                left = min(left, self.setup.options.linger_s or left)
            heard = wait([self.connection] if self._stopped else [self.connection, self._stop_fd], left)
            if self._stop_fd in heard:
                self._stopped = True
                if job is not None:
                    job.control.interrupt()
            if self.connection in heard:
                self._start(self.connection.recv())

    def _start(self, request: Request, *, heard: bool = True) -> _Job:
        resting = self._job if self._job is not None and not self._job.heard else None
        self._job = job = _Job(self, request, heard=heard, after=resting)
        if self._stopped:
            job.control.interrupt()
        job.thread.start()
        return job

    def finish(self) -> None:
        """The parent is gone: let the call in hand come back, begin no other, and leave no session."""
        if self._job is not None:
            self._job.control.interrupt()
            self._job.thread.join(self.setup.options.call_timeout_s)
        rest = self._start(Request("rest", None), heard=False)
        rest.thread.join(self.setup.options.call_timeout_s)


def _unexpected(operation: Operation, failure: Exception) -> MigManagerError:
    return MigManagerError(
        Reason.NVML_ERROR, f"The GPU worker failed in {operation}: {type(failure).__name__}: {failure}"
    )


def main() -> None:
    """Serve the pipe whose file descriptor is the first argument; the second one says stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server = None
    status = 0
    try:
        server = _Server(Connection(int(sys.argv[1])), int(sys.argv[2]))
        server.run()
        status = GAVE_UP
    except (EOFError, OSError):
        if server is not None:
            server.finish()
    finally:
        # Threads that hang in the driver must not keep the process alive.
        os._exit(status)
