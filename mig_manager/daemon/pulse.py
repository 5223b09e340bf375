"""Whether the loop still turns: it is asked to, and has to answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from mig_manager.daemon.settings import Settings
from mig_manager.gpu.work import WorkerOptions

_ALLOWANCE_S = 300.0
"""What requests to the API server may take beside the longest step."""


class Pulse:
    """The turns of the loop. A wait turns at each look, a run also at each step."""

    def __init__(self, fresh_s: float = 5.0) -> None:
        """`fresh_s`: seconds after a turn within which the loop is not asked for another."""
        self._fresh_s = fresh_s
        self._turned = time.monotonic()
        self._asked = self._turned

    def beat(self) -> None:
        """The loop turns."""
        self._turned = time.monotonic()

    def age(self) -> float:
        """Seconds since the last turn. A loop with nothing to do is in no hurry."""
        return time.monotonic() - self._turned

    def silence(self, wake: Callable[[], None]) -> float:
        """Seconds for which the loop was asked to turn and has not; 0 where it has just done so.

        `wake` makes every wait look again.
        """
        now = time.monotonic()
        if now - self._turned < self._fresh_s:
            return 0.0
        if self._asked <= self._turned:
            self._asked = now
        wake()
        return now - self._asked


def longest_silence(settings: Settings) -> float:
    """Seconds after which a loop that does not turn is stuck: no step of a run takes that long."""
    worker = WorkerOptions().request_timeout_s
    steps = (
        2 * worker,
        settings.reset_timeout,
        settings.cdi_timeout * max(1, len(settings.cdi_commands)),
        2 * settings.host_service_timeout,
    )
    return max(steps) + _ALLOWANCE_S
