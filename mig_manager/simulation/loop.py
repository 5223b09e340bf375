"""One thread that runs everything the simulated node and its controllers do."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
Action = Callable[[], None]


@dataclass(slots=True, order=True)
class Timer:
    """An action that is due at some time."""

    due: float
    """`time.monotonic()`."""
    number: int
    """Timers that are due at the same time run in the order in which they were set."""
    action: Action = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Do not run the action, if it has not run yet."""
        self.cancelled = True


class Loop:
    """Runs actions one after the other in its own thread: posted ones at once, timers when they are due.

    It sleeps while there is nothing to do. An action that raises does not stop the others; `close` raises
    what they raised.
    """

    def __init__(self, name: str) -> None:
        self._posted: deque[Action] = deque()
        self._timers: list[Timer] = []
        self._set = 0
        self._changed = threading.Condition()
        self._closing = False
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to run what was posted."""
        self._thread.start()

    def close(self) -> None:
        """End after the action in hand; later ones never run. ExceptionGroup if actions raised."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._errors:
            errors, self._errors = self._errors, []
            raise ExceptionGroup(f"errors in {self._thread.name}", errors)

    def post(self, action: Action) -> None:
        """Run the action soon, behind those that were posted before. From any thread."""
        with self._changed:
            self._posted.append(action)
            self._changed.notify()

    def after(self, seconds: float, action: Action) -> Timer:
        """Run the action when that many seconds have passed. From any thread."""
        with self._changed:
            self._set += 1
            timer = Timer(time.monotonic() + max(seconds, 0.0), self._set, action)
            heapq.heappush(self._timers, timer)
            self._changed.notify()
        return timer

    def call(self, function: Callable[[], T], *, timeout: float = 60.0) -> T:
        """Run a function in the loop and wait for what it returns or raises."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)

        self.post(run)
        return future.result(timeout)

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - kept for `close`
                self._errors.append(error)

    def _next(self) -> Action | None:
        with self._changed:
            while not self._closing:
                while self._timers and self._timers[0].cancelled:
                    heapq.heappop(self._timers)
                wait = self._timers[0].due - time.monotonic() if self._timers else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._timers).action
                if self._posted:
                    return self._posted.popleft()
                self._changed.wait(wait)
        return None


class Wake:
    """Runs an action once, soon after any number of calls: what a controller's work queue does."""

    def __init__(self, loop: Loop, action: Action, *, delay: float = 0.0) -> None:
        self._loop = loop
        self._action = action
        self._delay = delay
        self._timer: Timer | None = None

    def __call__(self) -> None:
        """Ask for a run. Only from the loop's own thread."""
        if self._timer is None:
            self._timer = self._loop.after(self._delay, self._run)

    def _run(self) -> None:
        self._timer = None
        self._action()
