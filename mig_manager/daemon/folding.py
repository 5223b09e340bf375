"""Trouble that goes on is said once at first, and then as a number: `(and 37 more times in 5 min)`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

WINDOW_S = 300.0
"""How long what was said once is only counted."""
_MOST = 500
"""Different things that are counted at the same time; what is beyond them is not folded."""


@dataclass(slots=True)
class _Count(Generic[T]):
    since: float
    times: int = 0
    last: T | None = None


class Folding(Generic[T]):
    """Passes the first of its kind on at once, and the later ones of the next minutes as one. Safe in any thread.

    A thread wakes at the end of a window in which anything was held back, and at no other time.
    """

    def __init__(self, write: Callable[[T, int, float], None], window_s: float = WINDOW_S) -> None:
        """`write` is given the latest of its kind, how many it stands for beyond the first, and in how many seconds."""
        self._write = write
        self._window_s = window_s
        self._counts: dict[Hashable, _Count[T]] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def take(self, kind: Hashable, item: T) -> None:
        """Pass it on, or count it."""
        with self._lock:
            self._sweep()
            count = self._counts.get(kind)
            if count is not None:
                count.times, count.last = count.times + 1, item
                self._wake_later()
                return
            if len(self._counts) < _MOST:
                self._counts[kind] = _Count(time.monotonic())
        self._write(item, 0, 0.0)

    def close(self) -> None:
        """Say what was counted so far."""
        with self._lock:
            self._sweep(all_of_them=True)
            if self._timer is not None:
                self._timer.cancel()

    def _sweep(self, *, all_of_them: bool = False) -> None:
        """End the windows that are over. A kind that has come again is counted on in a window of its own."""
        now = time.monotonic()
        for kind, count in list(self._counts.items()):
            spent = now - count.since
            if spent < self._window_s and not all_of_them:
                continue
            del self._counts[kind]
            if count.last is not None:
                self._write(count.last, count.times, spent)
                self._counts[kind] = _Count(now)

    def _wake_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._window_s, self._wake)
            self._timer.name = "log"
            self._timer.daemon = True
            self._timer.start()

    def _wake(self) -> None:
        with self._lock:
            self._timer = None
            self._sweep()
            if any(count.times for count in self._counts.values()):
                self._wake_later()
