"""Lengths of time as kubectl writes and takes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import typer

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_WRITTEN = re.compile(r"(?:\d+(?:\.\d+)?[hms])+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)([hms])")


def parse_duration(text: str, option: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, or of a plain number of seconds, as given to an option.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if not _WRITTEN.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r} is no length of time; write 90s, 10m or 1h30m; 0 is no limit", param_hint=option
        )
    parts = _PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)


def age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago that was, as the AGE of `kubectl get`: `45s`, `3m12s`, `5h`, `12d`; `-` where it is not known."""
    if since is None:
        return "-"
    return short(max(0.0, ((now or datetime.now(UTC)) - since).total_seconds()))


def short(seconds: float) -> str:
    """A length in the two units that matter at most."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{_rest(whole % 60, 's')}"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{_rest(minutes % 60, 'm')}"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d{_rest(hours % 24, 'h')}" if days < 8 else f"{days}d"


def _rest(count: int, unit: str) -> str:
    return f"{count}{unit}" if count else ""
