"""NVML sessions of one worker process.

Reads come in bursts, and opening a session takes as long as a hundred of them; so a session that only reads may stay
open for a moment. One that changed anything ends with its request: what is read back afterwards is read anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mig_manager.gpu.control import Control
from mig_manager.gpu.nvml import Nvml, NvmlCallError, NvmlSource, load


class Sessions:
    """At most one session at a time. Safe in any thread."""

    def __init__(self, source: NvmlSource, linger_s: float) -> None:
        """Nothing is opened or loaded yet. `linger_s`: how long a session outlives a request that only reads."""
        self._source = source
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._open: Nvml | None = None
        self._idle_since: float | None = None

    @contextmanager
    def session(self, control: Control, *, linger: bool = False) -> Iterator[Nvml]:
        """NVML for the length of a block; with `linger`, and if nothing fails, the session stays open afterwards.

        Raises:
            NvmlCallError: the library is not there, or the driver does not answer.
        """
        with self._lock:
            self._idle_since = None
            nvml = self._opened(control)
            try:
                yield nvml
            except BaseException:
                self._shut(control)
                raise
            if linger and self._linger_s:
                self._idle_since = time.monotonic()
            else:
                self._shut(control)

    def rest(self, control: Control) -> None:
        """End the session, if one is open."""
        with self._lock:
            self._shut(control)

    def idle_left(self) -> float | None:
        """Seconds until the session should `rest`; None where none is idle."""
        since = self._idle_since
        return None if since is None else since + self._linger_s - time.monotonic()

    def _opened(self, control: Control) -> Nvml:
        if self._open is None:
            load(self._source)
            nvml = Nvml(control)
            nvml.call("nvmlInit")
            self._open = nvml
        self._open.control = control
        return self._open

    def _shut(self, control: Control) -> None:
        self._idle_since = None
        nvml, self._open = self._open, None
        if nvml is None:
            return
        nvml.control = control
        # A session that stays open blocks a GPU reset. A second try is all that can be done about it.
        try:
            nvml.call("nvmlShutdown")
        except NvmlCallError:
            with suppress(NvmlCallError):
                nvml.call("nvmlShutdown")
