"""How long a GPU may refuse because of use, and how a destroy is known to have worked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mig_manager.gpu import nvml as codes
from mig_manager.gpu.device import Device
from mig_manager.gpu.nvml import NvmlCallError, call_error
from mig_manager.gpu.usage import processes

_T = TypeVar("_T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class Patience:
    """Tries again while a GPU is in use, within one window that opens at the first refusal.

    Handles close a little later than the pod vanishes that held them, so IN_USE often passes by itself.
    """

    def __init__(self, device: Device, window_s: float) -> None:
        self.device = device
        self.window_s = window_s
        self._give_up: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    @property
    def place(self) -> str:
        """The GPU, for messages."""
        return f"GPU {self.device.index}"

    def wait(self) -> bool:
        """Wait a moment before another attempt; false, at once, when the window has closed."""
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self.window_s
        if now >= self._give_up:
            return False
        self.device.nvml.control.pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True

    def insist(self, what: str, attempt: Callable[[], _T], instance_id: int | None = None) -> _T:
        """Try until it is no longer refused because of use.

        Args:
            what: what is tried, for messages.
            attempt: tries once.
            instance_id: the GPU instance whose users are named when the window closes; None: the whole GPU.

        Raises:
            NvmlCallError: any other refusal, at once; IN_USE when the window has closed.
        """
        while True:
            try:
                return attempt()
            except NvmlCallError as error:
                if error.code != codes.IN_USE:
                    raise call_error(error.function, error.code, error.gpu, what) from None
                if not self.wait():
                    found = f"{what} is refused for {self.window_s:g} s: in use"
                    raise self.in_use(error.function, found, instance_id) from None

    def until_gone(
        self, what: str, destroy: Callable[[], None], listed: Callable[[], bool], instance_id: int | None
    ) -> None:
        """Destroy something until the device no longer lists it; return codes are no evidence.

        Raises:
            NvmlCallError: as `insist`; IN_USE also where it is still listed when the window has closed.
        """
        while True:
            code = self.insist(what, lambda: _code(destroy), instance_id)
            if not listed():
                return
            if code != codes.SUCCESS:
                raise call_error("", code, self.device.index, what)
            if not self.wait():
                found = f"{what} succeeds by NVML's word, but the device still lists it"
                raise self.in_use("", found, instance_id)

    def in_use(self, function: str, found: str, instance_id: int | None) -> NvmlCallError:
        """The error for a GPU or an instance that somebody holds: what was found, and who."""
        try:
            running = processes(self.device)
        except NvmlCallError:
            running = ()
        pids = sorted({p.pid for p in running if instance_id is None or p.gpu_instance == instance_id})
        who = f"It is used by {', '.join(f'pid {pid}' for pid in pids)}."
        if not pids:
            who = "NVML shows no process on it: a client (DCGM, monitoring, a persistence daemon) holds it."
        return NvmlCallError(function, codes.IN_USE, self.device.index, f"{self.place}: {found}. {who}")


def _code(destroy: Callable[[], None]) -> int:
    """The return code of a destroy, where it may mean that there is nothing to destroy any more."""
    try:
        destroy()
    except NvmlCallError as error:
        if error.code not in (codes.NOT_FOUND, codes.INVALID_ARGUMENT):
            raise
        return error.code
    return codes.SUCCESS
