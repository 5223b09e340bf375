"""Programs that some tests need and not every machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

import pytest

REQUIRE = "MIG_MANAGER_REQUIRE"
"""Environment variable: what must be there, separated by commas, so that its tests fail instead of being skipped."""


def need(what: str, found: object) -> None:
    """Skip the test where it is not found, or fail it where it is required."""
    if found:
        return
    if what in os.environ.get(REQUIRE, "").split(","):
        pytest.fail(f"{what} is required by {REQUIRE}, and not there")
    pytest.skip(f"{what} is not there")


def need_dbus() -> None:
    """A real dbus-daemon."""
    need("dbus-daemon", shutil.which("dbus-daemon"))


@cache
def python_with_dbusmock() -> str | None:
    """A Python that has python-dbusmock. Its D-Bus binding has no wheels, so it is the distribution's as a rule."""
    for python in (sys.executable, "/usr/bin/python3"):
        if (
            shutil.which(python)
            and not subprocess.run(
                [python, "-c", "import dbusmock"], capture_output=True, check=False
            ).returncode
        ):
            return python
    return None


@cache
def chromium() -> str | None:
    """A Chromium that runs without a screen; Debian has the smallest one."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def need_chromium() -> str:
    """A real browser."""
    found = chromium()
    need("chromium", found)
    assert found is not None
    return found
