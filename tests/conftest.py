from __future__ import annotations

import os

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """More than there are CPUs, unless the environment says how many: tests wait for daemons half of their time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    count = len(os.sched_getaffinity(0))
    return count + (count + 1) // 2
