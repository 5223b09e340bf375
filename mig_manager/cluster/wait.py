"""Waiting without polling: a signal that watchers give, deadlines, and a way to break a wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from mig_manager.errors import MigManagerError, Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time after which a wait is given up, by the monotonic clock."""

    at: float
    """Seconds as `time.monotonic()` counts them; infinite for never."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The point that lies `seconds` ahead."""
        return cls(time.monotonic() + seconds)

    @classmethod
    def never(cls) -> Deadline:
        """A deadline that does not come. Only for the daemon's own idle wait."""
        return cls(math.inf)

    def remaining(self) -> float:
        """Seconds left; never below zero."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self.at


class WaitTimeoutError(MigManagerError):
    """What was waited for did not come before the deadline."""


class Signal:
    """Says that something may have changed; every watcher notifies the same one.

    `interrupt` is called before each look of every wait. What it raises ends the wait and passes through:
    so the daemon breaks off a wait when the label changes or SIGTERM arrives. `looking` is told of each look.

    `notify` takes no lock and may be called from any thread and from signal handlers.
    """

    def __init__(
        self, interrupt: Callable[[], None] | None = None, looking: Callable[[], None] = lambda: None
    ) -> None:
        self.interrupt = interrupt
        self._looking = looking
        self._waiters: dict[int, SimpleQueue[None]] = {}

    def notify(self) -> None:
        """Make every wait look again."""
        for waiter in list(self._waiters.values()):
            waiter.put(None)

    def wait(self, look: Callable[[], T | None], deadline: Deadline, *, every: float = math.inf) -> T | None:
        """Look now and after every notification, until `look` gives anything but None or False.

        Gives that value, or None once the deadline has passed without one. Looks at least once, and once
        more at the deadline. `every`: also after so many seconds without any, for what nobody notifies of.
        """
        waiter: SimpleQueue[None] = SimpleQueue()
        self._waiters[id(waiter)] = waiter
        try:
            while True:
                last = deadline.passed
                self._looking()
                if self.interrupt is not None:
                    self.interrupt()
                found = look()
                if found is not None and found is not False:
                    return found
                if last:
                    return None
                self._await(waiter, min(deadline.remaining(), every))
        finally:
            del self._waiters[id(waiter)]

    def wait_for(
        self,
        look: Callable[[], T | None],
        deadline: Deadline,
        what: str | Callable[[], str],
        *,
        reason: Reason,
        every: float = math.inf,
    ) -> T:
        """As `wait`, but raises WaitTimeoutError with `reason` and the message `what` at the deadline."""
        found = self.wait(look, deadline, every=every)
        if found is None:
            raise WaitTimeoutError(reason, what if isinstance(what, str) else what())
        return found

    def pause(self, seconds: float) -> None:
        """Let time pass; only the interrupt hook ends it early."""
        self.wait(lambda: None, Deadline.after(seconds))

    @staticmethod
    def _await(waiter: SimpleQueue[None], seconds: float) -> None:
        """Block until notified, but not longer; several notifications count as one."""
        try:
            waiter.get(timeout=None if seconds == math.inf else seconds)
            while True:
                waiter.get_nowait()
        except Empty:
            return
