"""The worker: NVML in a process of its own, as seen from the process that uses it.

A hung driver call can be killed, a crash in the driver takes nothing along, a library that an upgrade has
replaced is never stale, and nothing of NVML stays open here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Self, cast

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.control import CallRecord
from mig_manager.gpu.nvml import LIB_RM_VERSION_MISMATCH, NvmlCallError, NvmlSource
from mig_manager.gpu.readings import GpuUsage
from mig_manager.gpu.serve import GAVE_UP, Operation, Payload, Reply, Request, Result, Setup
from mig_manager.gpu.work import WorkerOptions
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

__all__ = ["GpuWorker", "LostWorkerError", "WorkerOptions"]

_GRACE_S = 5.0
"""How much later than its own deadline a worker may answer before it is killed unheard."""


def uncounted(calls: Sequence[CallRecord]) -> None:
    """Nobody counts."""


class LostWorkerError(MigManagerError):
    """The worker process died, or was killed because a call never came back. What it had done is not known.

    `hung` tells the second from the first: the GPU may hang on.
    """

    def __init__(self, message: str, *, hung: bool) -> None:
        super().__init__(Reason.NVML_ERROR, message)
        self.hung = hung

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(type(self), hung=self.hung), (self.message,))


class GpuWorker:
    """The GPUs of this node, through a worker process. One request at a time; use as a context manager.

    The process starts at the first request, or earlier with `start`, and ends with `close`.
    """

    def __init__(
        self,
        source: NvmlSource,
        *,
        options: WorkerOptions | None = None,
        heard: Callable[[str], None] | None = None,
        counted: Callable[[Sequence[CallRecord]], None] = uncounted,
    ) -> None:
        """Nothing is started yet.

        Args:
            source: of NVML.
            options: how the process goes about its work.
            heard: is given each line that the process prints, as a driver library may, in a thread; None: to stderr.
            counted: is given the NVML calls of each answer, and the one that never came back.
        """
        self.source = source
        self._heard = heard
        self.options = options or WorkerOptions()
        self.calls: list[CallRecord] = []
        """Every NVML call so far, in the order of its return; also those of failed requests."""
        self._counted = counted
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stop_fd = -1
        self._stopped = False
        self._served = False
        """Whether the library that the process has loaded fitted the driver at the last request."""
        self._lock = threading.Lock()
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the process, if none is there, and come back at once; it gets ready meanwhile.

        Raises:
            MigManagerError: NVML_ERROR; the system starts no process.
        """
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._end(0)
                self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        hear, say = os.pipe()
        try:
            fds = (theirs.fileno(), hear)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mig_manager.gpu", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=None if self._heard is None else subprocess.PIPE,
                stderr=None if self._heard is None else subprocess.STDOUT,
                pass_fds=fds,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            os.close(say)
            raise MigManagerError(
                Reason.NVML_ERROR, f"The GPU worker process cannot be started: {error.strerror or error}."
            ) from None
        finally:
            theirs.close()
            os.close(hear)
        if self._heard is not None and self._process.stdout is not None:
            threading.Thread(
                target=_listen, args=(self._process.stdout, self._heard), name="worker's words", daemon=True
            ).start()
        self._connection = Connection(ours.detach())
        self._stop_fd = say
        with suppress(OSError):  # a worker that died at once is told of by the first request
            self._connection.send(Setup(self.source, self.options))

    def inventory(self) -> Inventory:
        """What all GPUs look like now.

        Raises:
            MigManagerError: NVML_ERROR; LostWorkerError, as from every request.
        """
        return cast(Inventory, self._read("inventory"))

    def usage(self) -> tuple[GpuUsage, ...]:
        """Who uses the GPUs now, in the order of the inventory.

        Raises:
            MigManagerError: NVML_ERROR.
        """
        return cast("tuple[GpuUsage, ...]", self._read("usage"))

    def set_persistence(self, modes: Sequence[tuple[GpuIdentity, bool]]) -> None:
        """Set persistence modes; works after `stop_after_call` as well, for it is how they are put back.

        Raises:
            MigManagerError: NVML_ERROR; those before it are set.
        """
        self._request("persistence", tuple(modes))

    def release(self, plan: NodePlan) -> tuple[GpuIdentity, ...]:
        """Destroy what goes and set the MIG modes. Gives the GPUs whose mode is pending until a reset.

        Raises:
            MigManagerError: GPU_IN_USE, NVML_ERROR, VERIFY_FAILED, INTERRUPTED.
        """
        return cast("tuple[GpuIdentity, ...]", self._request("release", plan))

    def build(self, plan: NodePlan) -> None:
        """Create what is new.

        Raises:
            MigManagerError: GPU_IN_USE, NVML_ERROR (PlacementRefusedError where the GPU has no room for an
                instance), REBOOT_REQUIRED, VERIFY_FAILED, INTERRUPTED.
        """
        self._request("build", plan)

    def rebuild(self, plan: NodePlan) -> None:
        """Destroy what goes and create what is new in one NVML session. Only for a plan that changes no MIG mode.

        Raises:
            MigManagerError: as `release` and `build`.
        """
        self._request("rebuild", plan)

    def rest(self) -> None:
        """End the NVML session that reads leave open for a moment: nobody may have a GPU open that is reset.

        Raises:
            MigManagerError: NVML_ERROR.
        """
        if self._process is not None:
            self._request("rest", None)

    def stop_after_call(self) -> None:
        """Begin no further change: the request in hand fails with INTERRUPTED when its call comes back.

        So do all later `release` and `build`. May be called from any thread and from a signal handler.
        """
        self._stopped = True
        if self._stop_fd >= 0:
            with suppress(OSError):
                os.write(self._stop_fd, b"x")

    def close(self, patience_s: float = 10.0) -> None:
        """End the process: at once if it is idle, else when its NVML call comes back, in the end by force."""
        self._end(patience_s)

    def _read(self, operation: Operation) -> Result:
        """Ask for what only reads. A second time, in another session, where NVML opens and one of its calls fails:
        that often passes, and a failure here takes back what was changed just now."""
        try:
            return self._request(operation, None)
        except NvmlCallError as error:
            if error.function == "nvmlInit":
                raise
            return self._request(operation, None)

    def _request(self, operation: Operation, payload: Payload) -> Result:
        with self._lock:
            if self._stopped and isinstance(payload, NodePlan):
                raise MigManagerError(Reason.INTERRUPTED, "The change of the GPUs was interrupted.")
            request = Request(operation, payload)
            reply = self._exchange(request)
            if _stale(reply):
                self._end(_GRACE_S)
                if self._served:
                    reply = self._exchange(request)
            self._served = not _stale(reply)
        self.calls.extend(reply.records)
        self._counted(reply.records if reply.stuck is None else (*reply.records, reply.stuck))
        if reply.hung is not None:
            self._end(0)
            raise LostWorkerError(reply.hung, hung=True)
        if reply.error is not None:
            raise reply.error
        return reply.result

    def _exchange(self, request: Request, *, again: bool = False) -> Reply:
        """Ask the worker; `again`: a second one, since the first had not begun."""
        self.start()
        assert self._connection is not None
        timeout = self.options.request_timeout_s + _GRACE_S
        try:
            self._connection.send(request)
            if self._connection.poll(timeout):
                return cast(Reply, self._connection.recv())
        except (EOFError, OSError):
            status = self._end(_GRACE_S)
            if status == _status(GAVE_UP) and not again:
                return self._exchange(request, again=True)
            message = f"The GPU worker process died during {request.operation}: {status}."
            raise LostWorkerError(message, hung=False) from None
        self._end(0)
        raise LostWorkerError(
            f"The GPU worker process has not answered {request.operation} for {timeout:g} s and was killed.",
            hung=True,
        )

    def _end(self, patience_s: float) -> str:
        """End the process; says how it ended."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        stop_fd, self._stop_fd = self._stop_fd, -1
        if connection is not None:
            connection.close()
        if stop_fd >= 0:
            os.close(stop_fd)
        if process is None:
            return "not running"
        with suppress(subprocess.TimeoutExpired):
            return _status(process.wait(patience_s))
        process.kill()
        # A process that hangs inside the kernel outlives even this; it must not take us along.
        with suppress(subprocess.TimeoutExpired):
            return _status(process.wait(_GRACE_S))
        return f"pid {process.pid} does not end even by SIGKILL"


def _listen(words: IO[bytes], heard: Callable[[str], None]) -> None:
    with words:
        for line in words:
            heard(line.decode(errors="replace").rstrip())


def _stale(reply: Reply) -> bool:
    """Whether NVML did not even open because the driver was upgraded behind the library that the process has loaded."""
    error = reply.error
    return (
        isinstance(error, NvmlCallError)
        and error.function == "nvmlInit"
        and error.code == LIB_RM_VERSION_MISMATCH
    )


def _status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
