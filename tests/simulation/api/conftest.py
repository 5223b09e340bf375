from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import PODS
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import Http, Kubectl


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def server(store: MemoryStore) -> Iterator[ApiServer]:
    with ApiServer(store) as running:
        yield running


@pytest.fixture
def http(server: ApiServer) -> Iterator[Http]:
    with Http(server.url) as client:
        yield client


@pytest.fixture
def swift_kubelet(store: MemoryStore) -> None:
    """Pods under deletion are gone at once."""

    def end(change: Change) -> None:
        meta = change.object["metadata"]
        if change.resource == PODS and "deletionTimestamp" in meta and change.type == "MODIFIED":
            store.remove(PODS, meta["namespace"], meta["name"], meta["uid"])

    store.subscribe(end)


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    return Kubectl(server, tmp_path)
