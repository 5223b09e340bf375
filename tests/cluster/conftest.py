from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.client import Api
from mig_manager.cluster.wait import Signal
from mig_manager.simulation.api.authorization import ADMIN, stored_rbac
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.store import MemoryStore
from tests.cluster.accounts import Account, new_account
from tests.cluster.cluster import Cluster
from tests.cluster.hostile import HostileServer, hostile_server

TOKENS = {"simulation": ADMIN}
"""Bearer tokens of the simulated API server, and whose they are."""


@pytest.fixture
def signal() -> Signal:
    return Signal()


@pytest.fixture(scope="session")
def simulated_server() -> Iterator[ApiServer]:
    store = MemoryStore()
    with ApiServer(store, tokens=TOKENS, authorizer=stored_rbac(store)) as server:
        yield server


@pytest.fixture
def simulation(simulated_server: ApiServer) -> Iterator[ApiServer]:
    """The simulated API server, for tests that look into it; such tests do not run against a real one."""
    if "MIG_MANAGER_E2E_KUBECONFIG" in os.environ:
        pytest.skip("looks into the simulated API server")
    yield simulated_server
    simulated_server.faults.clear()


@pytest.fixture
def kubeconfig(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Of the real API server that MIG_MANAGER_E2E_KUBECONFIG names, else of the simulated one."""
    real = os.environ.get("MIG_MANAGER_E2E_KUBECONFIG")
    if real is not None:
        return Path(real)
    server: ApiServer = request.getfixturevalue("simulated_server")
    path = tmp_path / "kubeconfig"
    server.write_kubeconfig(path)
    return path


@pytest.fixture
def api(kubeconfig: Path) -> Iterator[Api]:
    with Api.connect(kubeconfig) as connected:
        yield connected


@pytest.fixture
def account(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> Iterator[Account]:
    """A service account that may do nothing yet."""
    real = "MIG_MANAGER_E2E_KUBECONFIG" in os.environ
    with new_account(cluster, kubeconfig, tmp_path, None if real else TOKENS) as made:
        yield made


@pytest.fixture
def cluster(api: Api, signal: Signal) -> Iterator[Cluster]:
    with Cluster(api, signal).running() as running:
        yield running


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    with hostile_server() as server:
        yield server


@pytest.fixture
def hostile_api(hostile: HostileServer, tmp_path: Path) -> Iterator[Api]:
    with Api.connect(hostile.write_kubeconfig(tmp_path / "hostile-kubeconfig")) as api:
        yield api
