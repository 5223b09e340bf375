"""When nodes may be changed, by the clock of a place."""

from __future__ import annotations

from datetime import datetime

import pytest

from mig_manager.daemon.settings import SettingsError, load_settings
from mig_manager.daemon.windows import Windows

NIGHTS = ["0 22 * * mon-fri 6h"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("windows", "zone", "now", "closes"),
    [
        (NIGHTS, "UTC", "2026-03-02T21:59:59+00:00", None),
        (NIGHTS, "UTC", "2026-03-02T22:00:00+00:00", "2026-03-03T04:00:00+00:00"),
        (NIGHTS, "UTC", "2026-03-03T03:59:59+00:00", "2026-03-03T04:00:00+00:00"),
        (NIGHTS, "UTC", "2026-03-03T04:00:00+00:00", None),
        (NIGHTS, "UTC", "2026-03-07T23:00:00+00:00", None),  # a Saturday
        (NIGHTS, "UTC", "2026-03-07T03:00:00+00:00", "2026-03-07T04:00:00+00:00"),  # since Friday
        (NIGHTS, "Europe/Berlin", "2026-03-02T21:30:00+00:00", "2026-03-03T03:00:00+00:00"),
        (NIGHTS, "Asia/Tokyo", "2026-03-02T13:30:00+00:00", "2026-03-02T19:00:00+00:00"),
        # The clock goes forward at two, and back at three: a window is as long as it says.
        (["0 1 * * * 3h"], "Europe/Berlin", "2026-03-29T02:30:00+00:00", "2026-03-29T03:00:00+00:00"),
        (["0 1 * * * 3h"], "Europe/Berlin", "2026-10-25T01:30:00+00:00", "2026-10-25T02:00:00+00:00"),
        (["0 * * * * 2h"], "UTC", "2026-03-02T10:30:00+00:00", "2026-03-02T12:00:00+00:00"),
        ([*NIGHTS, "0 0 * * * 1h30m"], "UTC", "2026-03-08T01:15:00+00:00", "2026-03-08T01:30:00+00:00"),
    ],
)
def test_when_windows_are_open(windows: list[str], zone: str, now: str, closes: str | None) -> None:
    assert Windows(windows, zone).closes(at(now)) == (closes and at(closes))


def test_the_next_window_is_told_in_its_own_time() -> None:
    windows = Windows([*NIGHTS, "30 12 * * sun 1h"], "Europe/Berlin")
    opens = windows.opens(at("2026-03-07T12:00:00+00:00"))
    assert opens.isoformat() == "2026-03-08T12:30:00+01:00"


def test_what_is_always_open_has_no_windows() -> None:
    assert not Windows()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "MAINTENANCE_WINDOWS",
            '["0 22 * * mon-fri"]',
            "'0 22 * * mon-fri': a window is five cron fields and",
        ),
        ("MAINTENANCE_WINDOWS", '["0 22 * * * 6"]', "such as '0 22 * * mon-fri 6h'"),
        ("MAINTENANCE_WINDOWS", '["0 22 * * * 0h"]', "lasts for no time"),
        ("MAINTENANCE_WINDOWS", '["0 25 * * * 6h"]', "Bad hour"),
        ("MAINTENANCE_WINDOWS", '["0 0 30 2 * 6h"]', "Bad day-of-month"),
        ("MAINTENANCE_WINDOWS", '[""]', "a window is five cron fields"),
        ("MAINTENANCE_WINDOWS", "0 22 * * * 6h", "a JSON list is wanted"),
        ("MAINTENANCE_TIMEZONE", "Europe/Nowhere", "'Europe/Nowhere' is no time zone; they are named as in"),
        ("MAINTENANCE_TIMEZONE", "/etc/passwd", "is no time zone"),
        ("POOL_LIMITS", '["a100"]', "'a100': a pool and its limit are wanted, such as 'a100=5'"),
        ("POOL_LIMITS", '["a100=-1"]', "such as 'a100=5'"),
        ("MAX_PARALLEL_NODES", "-1", "greater than or equal to 0"),
        ("EDITED_LAYOUTS", "never", "'slot', 'always' or 'report'"),
    ],
)
def test_what_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"MIG_MANAGER_{name}", value)
    with pytest.raises(SettingsError, match=f"^MIG_MANAGER_{name}: ") as caught:
        load_settings(node_name="n")
    assert says in str(caught.value)
