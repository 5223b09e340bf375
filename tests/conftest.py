from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two for each CPU, unless the environment says how many: tests wait for daemons more than half of their time."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else 2 * len(os.sched_getaffinity(0))
