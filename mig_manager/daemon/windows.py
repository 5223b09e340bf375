"""Maintenance windows: cron says when they open, a duration for how long."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_HOW = "a window is five cron fields and a duration, such as '0 22 * * mon-fri 6h' or '30 1 * * sun 1h30m'"
_DURATION = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?")


@dataclass(frozen=True, slots=True)
class Window:
    """A window that opens again and again."""

    cron: str
    lasts: timedelta

    @classmethod
    def parse(cls, text: str) -> Window:
        """From `0 22 * * mon-fri 6h`. Raises ValueError for anything else, saying what is wrong."""
        *fields, duration = text.split() or [""]
        found = _DURATION.fullmatch(duration)
        if len(fields) != 5 or found is None:
            raise ValueError(f"{text!r}: {_HOW}")
        lasts = timedelta(hours=int(found[1] or 0), minutes=int(found[2] or 0))
        if not lasts:
            raise ValueError(f"{text!r} lasts for no time: {_HOW}")
        cron = " ".join(fields)
        try:
            next(CronSim(cron, datetime.now(UTC)))
        except CronSimError as error:
            raise ValueError(f"{text!r}: {error}: {_HOW}") from None
        except StopIteration:
            raise ValueError(f"{text!r} never opens") from None
        return cls(cron, lasts)

    def closes(self, now: datetime) -> datetime | None:
        """When the window that is open at that (local) time closes; None where it is closed."""
        begun = next(
            CronSim(self.cron, now.replace(microsecond=0) + timedelta(seconds=1), reverse=True), None
        )
        if begun is None:
            return None
        end = begun.astimezone(UTC) + self.lasts
        return end if now < end else None

    def opens(self, now: datetime) -> datetime:
        """When it opens next after that (local) time."""
        return next(CronSim(self.cron, now))


class Windows:
    """All windows of a node. Without any it is always open."""

    def __init__(self, texts: Iterable[str] = (), zone: str = "UTC") -> None:
        """Raises ValueError for what is no window, or no time zone."""
        self._windows = [Window.parse(text) for text in texts]
        self._zone = parse_zone(zone)

    def __bool__(self) -> bool:
        return bool(self._windows)

    def closes(self, now: datetime) -> datetime | None:
        """When the last of those that are open at that time closes; None where all are closed."""
        local = now.astimezone(self._zone)
        return max((end for each in self._windows if (end := each.closes(local))), default=None)

    def opens(self, now: datetime) -> datetime:
        """When the first of them opens next, in the windows' own time zone."""
        local = now.astimezone(self._zone)
        return min(each.opens(local) for each in self._windows)


def parse_zone(name: str) -> tzinfo:
    """A time zone by its name, such as `Europe/Berlin`. Raises ValueError where there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone; they are named as in 'Europe/Berlin' or 'UTC'") from None
