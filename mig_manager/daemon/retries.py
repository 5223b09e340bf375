"""When a failed run is tried again without anybody's help."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.before import USERS_IN_THE_WAY
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.status import Outcome, Phase, State, Status
from mig_manager.daemon.wish import Wish
from mig_manager.errors import Reason


class Retries:
    """Counts the attempts at one wish, and knows when the next is due."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._due: float | None = None
        self._attempt = 1
        self._another = False
        """Whether the attempt that comes next is one more at the same wish."""
        self._reached = False
        """Whether the last attempt was a success."""
        self._of: tuple[str, str | None] | None = None
        """Layout of the wish whose attempts are counted, and its hash once that is known."""

    def begin_anew(self) -> None:
        """A new wish, or none: forget the attempts at the former one."""
        self._due = None
        self._attempt = 1
        self._another = self._reached = False
        self._of = None

    def begin(self) -> None:
        """An attempt begins. After a success it is the first again, such as a repair of what has drifted since."""
        self._attempt = 1 if self._reached else self._attempt + self._another
        self._another = self._reached = False

    def go_on_from(self, said: Status | None, layout: str) -> None:
        """Count on from what the Node says of an earlier process's attempts at that layout.

        One that was cut short is gone on with, under its number.
        """
        if said is not None and said.layout == layout and said.state is not State.SUCCESS:
            self._attempt, self._another = said.attempt, said.state is State.FAILED
            self._of = (layout, said.hash)

    def attempt_at(self, wish: Wish) -> int:
        """The number of the attempt that is under way, at that wish; 1 for the first."""
        layout, known = self._of or (wish.layout, None)
        if wish.layout != layout:
            self._attempt, known = 1, None  # The label was changed in mid-run.
        elif None not in (known, wish.hash) and wish.hash != known:
            self._attempt = 1  # The layout was edited, in mid-run or while nobody was there.
        self._of = (wish.layout, wish.hash or known)
        return self._attempt

    def schedule(self, outcome: Outcome, unfinished: bool = False) -> str | None:
        """Note how an attempt ended; `unfinished`: it left something on the node that must still be put back.

        Gives the time of the next one, RFC 3339. None: there is none, or it is one of the looks for a driver,
        which follow each other too closely to be written down.
        """
        self._reached = outcome.reason is None
        if outcome.reason is Reason.NVML_ERROR and outcome.phase is Phase.VALIDATING:
            self._due = time.monotonic() + self._settings.driver_retry
            return None
        delay = self._delay(outcome.reason, unfinished)
        self._due = None if delay is None else time.monotonic() + delay
        if delay is None:
            return None
        self._another = True
        at = datetime.now(UTC) + timedelta(seconds=delay)
        return at.isoformat(timespec="seconds").replace("+00:00", "Z")

    @property
    def due(self) -> bool:
        """Whether the next attempt's time has come."""
        return self._due is not None and time.monotonic() >= self._due

    def deadline(self) -> Deadline:
        """When the next attempt is due; never, if none is planned."""
        return Deadline.never() if self._due is None else Deadline(self._due)

    def _delay(self, reason: Reason | None, unfinished: bool) -> float | None:
        if reason is None or (reason is Reason.ROLLBACK_FAILED and not unfinished):
            return None
        if not unfinished:
            tired = reason in USERS_IN_THE_WAY and self._attempt >= self._settings.retry_attempts
            if tired or not reason.transient:
                return None
        doubled = self._settings.retry_first * 2.0 ** min(self._attempt - 1, 20)
        return min(doubled, self._settings.retry_longest)
