"""What has happened in the store, as far back as it is remembered."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.values import Key, key_of


class CompactedError(Exception):
    """The history no longer reaches back to the version asked for."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the history. Its objects are shared: read, never modify."""

    version: int
    change: Change
    previous: Object | None
    """The object before the change; None for an addition."""

    def step_back(self, held: dict[Key, Object]) -> None:
        """Make of what is held after the event what was held before it."""
        if self.previous is None:
            held.pop(key_of(self.change.object), None)
        else:
            held[key_of(self.previous)] = self.previous


class History:
    """Events by version, oldest first. Its owner does the locking."""

    def __init__(self, limit: int) -> None:
        """`limit`: events that `trim` leaves."""
        self._events: list[Event] = []
        self._limit = limit
        self._floor = 0

    def append(self, event: Event) -> None:
        """Add the latest event."""
        self._events.append(event)

    def pop(self) -> Event:
        """Take the latest event back."""
        return self._events.pop()

    def after(self, version: int) -> list[Event]:
        """Every event later than `version`; CompactedError if some of them are forgotten."""
        if version < self._floor:
            raise CompactedError(f"too old resource version: {version} ({self._floor})")
        return self._events[self._place(version) :]

    def forget(self, version: int) -> None:
        """Drop everything up to `version`."""
        self._floor = max(self._floor, version)
        del self._events[: self._place(version)]

    def trim(self) -> None:
        """Drop the oldest events once there are twice as many as the limit."""
        if len(self._events) > 2 * self._limit:
            self.forget(self._events[-self._limit].version - 1)

    def _place(self, version: int) -> int:
        return bisect_right(self._events, version, key=lambda event: event.version)
