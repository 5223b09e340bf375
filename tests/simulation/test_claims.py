"""GPUs by ResourceClaim: what the simulated DRA driver offers, and what is read of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.claims import GPU_DRIVER, Claims, by_hardware, current_devices
from mig_manager.cluster.client import Api
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.podresources import PodDevices, PodResources
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.podspec import is_ready
from mig_manager.simulation.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from mig_manager.simulation.workloads import claim, claim_template, claiming
from mig_manager.simulation.world import SimulatedCluster
from tests.simulation.kubelet_world import GPUS, eventually, find, partition, set_labels


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    """GPU 0 in two MIG devices, GPU 1 without MIG; one pod claims from a template, one by name."""
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False, dra=True)
    partition(cluster.gpus, ["1g.10gb", "3g.40gb"])
    with cluster:
        cluster.wait_ready()
        cluster.store.create(RESOURCE_CLAIM_TEMPLATES, claim_template("one-mig", "mig.nvidia.com"))
        cluster.store.create(RESOURCE_CLAIMS, claim("shared", "gpu.nvidia.com"))
        cluster.store.create(PODS, claiming("own", template="one-mig"))
        cluster.store.create(PODS, claiming("named", named="shared"))
        for name in ("own", "named"):
            cluster.wait_for(lambda name=name: is_ready(find(cluster, name) or {"status": {}}), name)  # type: ignore[misc]
        yield cluster


@pytest.fixture
def claims(cluster: SimulatedCluster) -> Iterator[Claims]:
    with Api.connect(cluster.kubeconfig) as api:
        yield Claims(api, cluster.node)


def pods(cluster: SimulatedCluster) -> list[Pod]:
    return [Pod.from_json(each) for each in cluster.store.list(PODS, "ml")[0]]


def uuid(cluster: SimulatedCluster, gpu: int) -> str:
    """Of the GPU, or of its first MIG device."""
    found = cluster.hardware.gpus()[gpu]
    return found.devices[0].uuid if found.mig_enabled else found.uuid


def test_claims_direct_and_from_templates_lead_to_the_hardware(
    cluster: SimulatedCluster, claims: Claims
) -> None:
    node = cluster.node
    found = claims.allocations(pods(cluster))
    assert found == (
        PodDevices("ml", "named", "", GPU_DRIVER, (f"{node}/gpu-1",)),
        PodDevices("ml", "own", "", GPU_DRIVER, (f"{node}/gpu-0-mig-3g40gb-0",)),
    )
    mig = claims.devices()[f"{node}/gpu-0-mig-3g40gb-0"]
    assert (mig.parent, len(mig.memory_slices)) == (cluster.hardware.gpus()[0].uuid, 4)
    hardware = by_hardware(found, claims.hardware)
    assert [one.device_ids for one in hardware] == [(uuid(cluster, 1),), (uuid(cluster, 0),)]
    with PodResources(cluster.pod_resources.socket, timeout_s=20) as kubelet:
        listed = by_hardware(kubelet.allocations(), claims.hardware)
    assert {(one.name, one.container, one.device_ids) for one in listed} == {
        ("named", "main", (uuid(cluster, 1),)),
        ("own", "main", (uuid(cluster, 0),)),
    }


def test_a_claim_that_cannot_be_read_counts_unless_the_kubelet_tells(
    cluster: SimulatedCluster, claims: Claims
) -> None:
    cluster.api.faults.add(Fault("GET", "/resourceclaims/", status=403, times=None))
    found = claims.allocations(pods(cluster), told={("ml", "own")})
    assert [(one.name, one.device_ids) for one in found] == [("named", ("claim shared",))]
    cluster.api.requests.clear()
    assert claims.allocations(pods(cluster), told={("ml", "own")}) == found
    assert not [each for each in cluster.api.requests.all() if each.resource == "resourceclaims"]


@pytest.mark.parametrize("status", [404, 403])
def test_an_api_that_is_not_there_or_forbidden_offers_nothing(
    cluster: SimulatedCluster, claims: Claims, status: int
) -> None:
    cluster.api.faults.add(Fault("GET", "^/apis/resource.k8s.io$", status=status, times=None))
    assert claims.hardware() == {}
    assert claims.watch_slices(Signal(), WatchOptions()) is None
    unknown = [one.device_ids for one in claims.allocations(pods(cluster))]
    assert all(each[0].startswith("claim ") for each in unknown)
    assert len(unknown) == (0 if status == 404 else 2)


def test_slices_follow_the_hardware(cluster: SimulatedCluster, claims: Claims) -> None:
    signal = Signal()
    watch = claims.watch_slices(signal, WatchOptions())
    assert watch is not None
    with watch:
        watch.wait_synced(Deadline.after(60))
        before = set(current_devices(watch.objects.values()).values())
        partition(cluster.gpus, ["1g.10gb"])
        set_labels(cluster, dra_driver="false")
        cluster.wait_for(lambda: not cluster.kubelet.services.claims.knows(GPU_DRIVER), "the plugin to go")
        set_labels(cluster, dra_driver="true")
        found = signal.wait(
            lambda: set(current_devices(watch.objects.values()).values()) - before or None, Deadline.after(60)
        )
        assert found is not None
        assert len(found) == 1


def test_a_pod_with_a_claim_ends_only_while_the_driver_is_there(cluster: SimulatedCluster) -> None:
    set_labels(cluster, dra_driver="false")
    eventually(lambda: not cluster.kubelet.services.claims.knows(GPU_DRIVER), "the plugin to go")
    cluster.store.delete(PODS, "ml", "own", grace_seconds=0)
    with pytest.raises(TimeoutError):
        cluster.wait_for(lambda: not cluster.kubelet.claimed_devices()[1:], "the end", timeout=0.5)
    set_labels(cluster, dra_driver="true")
    eventually(lambda: not cluster.kubelet.claimed_devices()[1:], "the end")
