"""What NVML calls are made, which are in hand, and whether another change may begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mig_manager.errors import MigManagerError, Reason


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One NVML call."""

    function: str
    """Name in the Python binding, such as `nvmlDeviceSetMigMode`."""
    code: int
    """nvmlReturn_t; 0 is success."""
    seconds: float
    gpu: int | None
    """Index of the GPU; None for a call that concerns none."""


@dataclass(frozen=True, slots=True)
class CallInHand:
    """An NVML call that has not come back yet."""

    function: str
    gpu: int | None
    started: float
    """time.monotonic()."""


class HaltedError(Exception):
    """Another GPU failed; this one stops before its next change. Never leaves the worker."""


class Control:
    """What the threads of one request share: the record of their calls, and two ways to stop them.

    Both ways let a call in hand finish and forbid the next change; reads stay allowed.
    """

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped` is asked before each change whether somebody wants the work to end, though nobody has told."""
        self._stopped = stopped
        self.records: list[CallRecord] = []
        self._in_hand: dict[int, CallInHand] = {}
        self._wake = threading.Event()
        self._interrupted = False

    def begin(self, function: str, gpu: int | None) -> float:
        """Note that a call begins; the result goes to `end`."""
        started = time.monotonic()
        self._in_hand[threading.get_ident()] = CallInHand(function, gpu, started)
        return started

    def end(self, started: float, code: int) -> None:
        """Note that the call of this thread came back."""
        call = self._in_hand.pop(threading.get_ident())
        self.records.append(CallRecord(call.function, code, time.monotonic() - started, call.gpu))

    def oldest_call(self) -> CallInHand | None:
        """The call that has been in hand for longest."""
        return min(tuple(self._in_hand.values()), key=lambda call: call.started, default=None)

    def interrupt(self) -> None:
        """Somebody wants the work to end: the next change fails with Reason.INTERRUPTED."""
        self._interrupted = True
        self._wake.set()

    def halt(self) -> None:
        """One GPU failed: the others stop before their next change."""
        self._wake.set()

    def check(self) -> None:
        """Come back only if another change may begin.

        Raises:
            MigManagerError: INTERRUPTED.
            HaltedError: another GPU failed.
        """
        if self._interrupted or self._stopped():
            raise MigManagerError(Reason.INTERRUPTED, "The change of the GPUs was interrupted.")
        if self._wake.is_set():
            raise HaltedError

    def pause(self, seconds: float) -> None:
        """Wait that long before trying again; a stop ends the wait. Raises as `check` does."""
        self._wake.wait(seconds)
        self.check()
