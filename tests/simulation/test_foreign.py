"""The node on a control plane that is another program, over HTTP as kubelets reach it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.refusal import ApiError
from mig_manager.simulation.api.grants import Grant
from mig_manager.simulation.control.foreign import OccupiedError
from mig_manager.simulation.control.plane import NotSimulatedError
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import is_ready
from mig_manager.simulation.remote import RemoteStore
from mig_manager.simulation.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from mig_manager.simulation.workloads import NAMESPACE, claim, claiming, deployment, pod_spec
from mig_manager.simulation.world import SimulatedCluster


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig of the simulation's control plane, in a process of its own."""
    kubeconfig = tmp_path_factory.mktemp("control-plane") / "kubeconfig"
    command = [sys.executable, "-m", "mig_manager.simulation.control", str(kubeconfig)]
    with subprocess.Popen(command) as process:
        while not kubeconfig.exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield kubeconfig
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.fixture
def others(control_plane: Path) -> Iterator[RemoteStore]:
    """The cluster as somebody else sees it."""
    with Api.connect(control_plane) as api:
        yield RemoteStore(api)


def on(control_plane: Path, directory: Path, *, dra: bool = False) -> SimulatedCluster:
    return SimulatedCluster(
        directory, delays=Delays.fast(), workloads=False, dra=dra, control_plane=control_plane
    )


def test_a_node_registers_runs_pods_and_ends_them_and_leaves_nothing_behind(
    control_plane: Path, others: RemoteStore, tmp_path: Path
) -> None:
    with on(control_plane, tmp_path) as cluster:
        cluster.wait_ready()
        assert cluster.allocatable()["nvidia.com/gpu"] == 2
        store = cluster.store
        store.create(DEPLOYMENTS, deployment("web", 1, pod_spec("example/image", {"nvidia.com/gpu": 1})))

        def ready() -> Object | None:
            return next((each for each in store.list(PODS, NAMESPACE)[0] if is_ready(each)), None)

        first = cluster.wait_for(ready, "the pod")
        assert len([one for each in cluster.kubelet.allocations() for one in each.devices]) == 1
        store.delete(PODS, NAMESPACE, first["metadata"]["name"])
        cluster.wait_for(
            lambda: (pod := ready()) and pod["metadata"]["uid"] != first["metadata"]["uid"], "another pod"
        )
        with pytest.raises(NotSimulatedError):
            cluster.api.requests.clear()
    for resource in (PODS, DAEMON_SETS, DEPLOYMENTS, NODES):
        assert others.list(resource)[0] == []


def test_the_daemon_has_a_token_for_what_is_granted(control_plane: Path, tmp_path: Path) -> None:
    granted = Grant([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}])
    cluster = SimulatedCluster(
        tmp_path, delays=Delays.fast(), workloads=False, grants=[granted], control_plane=control_plane
    )
    with cluster, Api.connect(cluster.daemon_kubeconfig) as daemon:
        assert daemon.get(object_path("nodes", cluster.node))["kind"] == "Node"
        with pytest.raises(ApiError, match='mig-manager:mig-manager" cannot list'):
            daemon.get(collection_path("nodes"))


def test_claims_are_prepared_from_the_slices_that_the_driver_publishes(
    control_plane: Path, others: RemoteStore, tmp_path: Path
) -> None:
    with on(control_plane, tmp_path, dra=True) as cluster:
        cluster.wait_ready()
        cluster.store.create(RESOURCE_CLAIMS, claim("whole", "gpu.nvidia.com"))
        cluster.store.create(PODS, claiming("user", named="whole"))
        cluster.wait_for(
            lambda: (pod := cluster.store.get(PODS, NAMESPACE, "user")) and is_ready(pod), "the pod"
        )
        assert len(cluster.kubelet.claimed_devices()) == 1
    assert others.list(RESOURCE_SLICES)[0] == []


def test_what_is_somebody_elses_stays(control_plane: Path, others: RemoteStore, tmp_path: Path) -> None:
    for resource, name in ((NODES, "gpu-node-1"), (NAMESPACES, NAMESPACE)):
        others.delete(resource, None, name)
        others.create(resource, {"metadata": {"name": name}})
        with pytest.raises(OccupiedError, match=f"{name} is there already"), on(control_plane, tmp_path):
            pass
        assert others.get(resource, None, name) is not None
        others.delete(resource, None, name)
