"""Ages as kubectl shows them."""

from __future__ import annotations

from datetime import UTC, datetime


def age(timestamp: str | None) -> str:
    """The time since a Kubernetes timestamp: `5s`, `3m20s`, `2d4h`; `<unknown>` without one."""
    if not timestamp:
        return "<unknown>"
    return human(int((datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()))


def human(seconds: int) -> str:
    """A duration in at most two units, as Kubernetes rounds it."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"
