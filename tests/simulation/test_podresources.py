"""What the simulated kubelet says of its devices, and what follows from it for a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.objects import Pod
from mig_manager.cluster.podreader import ask
from mig_manager.cluster.podresources import PodResources, PodResourcesError, plain_ids
from mig_manager.cluster.resources import expected_devices, wrong_devices
from mig_manager.cluster.scope import affected, held_devices
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.worker import GpuWorker
from mig_manager.layouts.layout import GpuTarget, NodeTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.node.podresources import RateLimit
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import is_finished, is_ready
from mig_manager.simulation.resources import PODS
from mig_manager.simulation.workloads import pod, pod_spec
from mig_manager.simulation.world import SimulatedCluster
from tests.simulation.kubelet_world import GPUS, clear, eventually, find, partition, set_labels, with_app

PLUGIN = "nvidia-device-plugin-daemonset"
GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
LARGE = "nvidia.com/mig-3g.40gb"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    """GPU 0 in three MIG devices, GPU 1 without MIG."""
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False)
    partition(cluster.gpus, ["1g.10gb", "1g.10gb", "3g.40gb"])
    with cluster:
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def kubelet(cluster: SimulatedCluster) -> Iterator[PodResources]:
    with PodResources(cluster.pod_resources.socket, timeout_s=20) as resources:
        yield resources


def inventory(cluster: SimulatedCluster) -> Inventory:
    """The GPUs as the daemon reads them."""
    loader = "mig_manager.simulation.nvml:install"
    with GpuWorker(NvmlSource(loader=loader, argument=str(cluster.gpus.path))) as worker:
        return worker.inventory()


def run(cluster: SimulatedCluster, name: str, spec: Object) -> None:
    """Create a pod on the node and wait until it is ready or has ended."""
    cluster.store.create(PODS, pod(name, {"nodeName": cluster.node, **spec}))
    cluster.wait_for(
        lambda: (now := find(cluster, name)) is not None and (is_ready(now) or is_finished(now)), name
    )


def uuids(found: Inventory, gpu: int, profile: str) -> list[str | None]:
    instances = found.gpus[gpu].instances
    return [each.compute[0].uuid for each in instances if each.profile == MigProfile.parse(profile)]


def held(kubelet: PodResources) -> dict[str, list[str]]:
    """Devices by pod and container."""
    found: dict[str, list[str]] = {}
    for each in kubelet.allocations():
        found.setdefault(f"{each.name}/{each.container}", []).extend(each.device_ids)
    return found


def test_the_kubelet_lists_what_it_gave_to_pods_that_have_not_ended(
    cluster: SimulatedCluster, kubelet: PodResources
) -> None:
    now = inventory(cluster)
    run(cluster, "whole", pod_spec("job", {GPU: 1}))
    # What an init container had goes on to the main one; what only it had is in no list.
    run(cluster, "first", pod_spec("job", {SMALL: 1}, init_resources={SMALL: 1, LARGE: 1}))
    run(cluster, "short", pod_spec("job", {SMALL: 1}) | {"restartPolicy": "Never"})
    small = [str(each) for each in uuids(now, 0, "1g.10gb")]
    whole = now.gpus[1].gpu.uuid
    assert held(kubelet) == {"whole/main": [whole], "first/main": [small[0]], "short/main": [small[1]]}

    cluster.store.delete(PODS, "ml", "short")
    cluster.wait_for(lambda: find(cluster, "short") is None, "short gone")
    assert held(kubelet) == {"whole/main": [whole], "first/main": [small[0]]}


def test_every_active_pod_is_listed_with_the_containers_that_stay(cluster: SimulatedCluster) -> None:
    spec = pod_spec("job", {SMALL: 1}, init_resources={SMALL: 1})
    spec["initContainers"].append({"name": "sidecar", "image": "proxy", "restartPolicy": "Always"})
    run(cluster, "job", spec)
    run(cluster, "done", {"containers": [{"name": "main", "command": ["true"]}], "restartPolicy": "Never"})
    answer = ask(str(cluster.pod_resources.socket), "List", 20)
    pods = answer["pod_resources"]
    assert isinstance(pods, list)
    containers = {each["name"]: [one["name"] for one in each["containers"]] for each in pods}
    operands = {
        each["metadata"]["name"]
        for each in cluster.store.list(PODS, "gpu-operator")[0]
        if not is_finished(each)
    }
    assert containers.keys() == {"job"} | operands
    assert containers["job"] == ["sidecar", "main"]


def test_old_devices_stay_listed_until_a_new_plugin_has_registered(
    cluster: SimulatedCluster, kubelet: PodResources
) -> None:
    before = expected_devices(inventory(cluster), "mixed")
    assert before is not None
    assert plain_ids(kubelet.offered()) == before
    # The same numbers as before, and yet other devices.
    clear(cluster.gpus, 0)
    partition(cluster.gpus, ["3g.40gb", "1g.10gb", "1g.10gb"])
    now = expected_devices(inventory(cluster), "mixed")
    assert now is not None
    assert plain_ids(kubelet.offered()) == before
    assert "still lists" in (wrong_devices(plain_ids(kubelet.offered()), now) or "")

    set_labels(cluster, device_plugin="false")
    cluster.wait_for(lambda: not with_app(cluster, PLUGIN), "no plugin")
    eventually(lambda: not plain_ids(kubelet.offered()), "devices of a plugin that is gone are unhealthy")
    assert "as healthy yet" in (wrong_devices(plain_ids(kubelet.offered()), now) or "")

    set_labels(cluster, device_plugin="true")
    eventually(lambda: wrong_devices(plain_ids(kubelet.offered()), now) is None, "the new devices")


def test_only_pods_on_devices_that_go_are_in_the_way(
    cluster: SimulatedCluster, kubelet: PodResources
) -> None:
    run(cluster, "small-1", pod_spec("job", {SMALL: 1}))
    run(cluster, "small-2", pod_spec("job", {SMALL: 1}))
    run(cluster, "large", pod_spec("job", {LARGE: 1}))
    run(cluster, "whole", pod_spec("job", {GPU: 1}))
    run(cluster, "none", pod_spec("job", {}))
    cluster.store.delete(PODS, "ml", "small-1")
    cluster.wait_for(lambda: find(cluster, "small-1") is None, "small-1 gone")
    pods = [Pod.from_json(each) for each in cluster.store.list(PODS)[0]]
    allocations = kubelet.allocations()
    found = inventory(cluster).held(held_devices(allocations))

    def in_the_way(*wanted: str | None) -> list[str]:
        """For a layout by GPU; None: without MIG."""
        targets = tuple(
            GpuTarget(
                state.gpu, text is not None, tuple(sorted(map(MigProfile.parse, (text or "").split()))), None
            )
            for state, text in zip(found.gpus, wanted, strict=True)
        )
        plan = plan_node(NodeTarget("test", targets, ()), found)
        return [one.name for one in affected(pods, allocations, plan.devices_lost, found.uuids)]

    assert in_the_way("1g.10gb 1g.10gb 3g.40gb", None) == []
    # One of two alike goes: the one that nobody holds.
    assert in_the_way("1g.10gb 3g.40gb", None) == []
    assert in_the_way("3g.40gb", None) == ["small-2"]
    assert in_the_way("1g.10gb 1g.10gb 3g.40gb", "7g.80gb") == ["whole"]
    assert in_the_way("7g.80gb", None) == ["large", "small-2"]
    assert in_the_way(None, "") == ["large", "small-2", "whole"]


def test_shared_devices_are_told_by_their_uuid(tmp_path: Path) -> None:
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False, replicas=2)
    partition(cluster.gpus, ["3g.40gb"])
    with cluster, PodResources(cluster.pod_resources.socket, timeout_s=20) as kubelet:
        cluster.wait_ready()
        assert cluster.allocatable() == {GPU: 2, LARGE: 2}
        assert cluster.kubelet.allocatable_devices()[LARGE][0].endswith("::0")
        now = inventory(cluster)
        assert plain_ids(kubelet.offered()) == expected_devices(now, "mixed")

        for name in ("one", "two"):
            run(cluster, name, pod_spec("job", {LARGE: 1}))
        device = uuids(now, 0, "3g.40gb")
        assert held(kubelet) == {"one/main": device, "two/main": device}
        eventually(lambda: f"{LARGE}.replicas" in cluster.node_object()["metadata"]["labels"], "labels")
        labels = cluster.node_object()["metadata"]["labels"]
        assert labels[f"{LARGE}.replicas"] == "2"
        assert labels[f"{LARGE}.product"] == "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb-SHARED"


def test_the_kubelet_may_serve_nothing(tmp_path: Path) -> None:
    off = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False, pod_resources=False)
    with off, PodResources(off.pod_resources.socket) as kubelet, pytest.raises(PodResourcesError):
        kubelet.allocations()


def test_a_directory_with_a_long_name_serves_too(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    cluster = SimulatedCluster(long, GPUS, delays=Delays.fast(), workloads=False)
    with cluster, PodResources(cluster.pod_resources.socket, timeout_s=20) as kubelet:
        assert kubelet.allocations() == ()
    assert not cluster.pod_resources.socket.parent.exists()


def test_calls_beyond_the_burst_wait_for_their_turn() -> None:
    limit = RateLimit(per_second=1e-3, burst=10)
    assert [limit.allow() for _ in range(12)] == [True] * 10 + [False] * 2
