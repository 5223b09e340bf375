from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.client import Api
from mig_manager.cluster.wait import Signal
from tests.cluster.hostile import HostileServer, hostile_server


@pytest.fixture
def signal() -> Signal:
    return Signal()


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    with hostile_server() as server:
        yield server


@pytest.fixture
def hostile_api(hostile: HostileServer, tmp_path: Path) -> Iterator[Api]:
    with Api.connect(hostile.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        yield api
