from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mig_manager.simulation.delays import Delays
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import ANNOTATIONS, is_ready
from mig_manager.simulation.resources import PODS
from mig_manager.simulation.workloads import pod, pod_spec
from mig_manager.simulation.world import SimulatedCluster
from tests.simulation.kubelet_world import (
    GPUS,
    Recording,
    change_pod,
    clear,
    eventually,
    find,
    partition,
    phase,
    pynvml,
)

SMALL = "nvidia.com/mig-1g.10gb"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False)
    partition(cluster.gpus, ["1g.10gb"] * 2, ["1g.10gb"])
    with cluster:
        cluster.wait_ready()
        yield cluster


def run(cluster: SimulatedCluster, spec: Object, name: str = "job", **annotations: str) -> Object:
    """Create a pod on the node and wait until its containers run."""
    create(cluster, spec, name, **annotations)
    return cluster.wait_for(
        lambda: now if (now := find(cluster, name)) and is_ready(now) else None, f"{name} ready"
    )


def create(cluster: SimulatedCluster, spec: Object, name: str = "job", **annotations: str) -> Object:
    keys = {ANNOTATIONS + key.replace("_", "-"): value for key, value in annotations.items()}
    return cluster.store.create(PODS, pod(name, {"nodeName": cluster.node, **spec}, annotations=keys))


def gone(cluster: SimulatedCluster, name: str = "job") -> None:
    """Wait until the pod is not in the API any more."""
    cluster.wait_for(lambda: find(cluster, name) is None, f"{name} gone")


def users(cluster: SimulatedCluster) -> list[str]:
    """Names of the processes that run on a GPU instance."""
    return [each["name"] for each in cluster.gpus.processes() if each["gi"] is not None]


def test_a_pod_starts_runs_and_ends_in_the_order_of_life(cluster: SimulatedCluster) -> None:
    seen = Recording(cluster, PODS)
    run(cluster, pod_spec("job", {SMALL: 1}))
    cluster.store.delete(PODS, "ml", "job")
    eventually(lambda: seen.changes[-1].type == "DELETED", "the end")

    steps = []
    for change in seen.changes:
        obj = change.object
        if obj["metadata"]["name"] == "job":
            steps.append(
                (
                    change.type,
                    obj["status"]["phase"],
                    "startTime" in obj["status"],
                    is_ready(obj),
                    "deletionTimestamp" in obj["metadata"],
                )
            )
    assert list(dict.fromkeys(steps)) == [
        ("ADDED", "Pending", False, False, False),
        ("MODIFIED", "Pending", True, False, False),
        ("MODIFIED", "Running", True, True, False),
        ("MODIFIED", "Running", True, True, True),
        ("MODIFIED", "Succeeded", True, False, True),
        ("DELETED", "Succeeded", True, False, True),
    ]


def test_a_running_pod_keeps_its_instance_in_use(cluster: SimulatedCluster) -> None:
    run(cluster, pod_spec("job", {SMALL: 3}))
    assert users(cluster) == ["python"] * 3
    with pytest.raises(pynvml.NVMLError_InUse):
        clear(cluster.gpus, 0)

    cluster.store.delete(PODS, "ml", "job")
    gone(cluster)
    clear(cluster.gpus, 0)
    assert cluster.gpus.snapshot()["gpus"][0]["instances"] == []


def test_handles_can_close_later_than_the_pod_goes(tmp_path: Path) -> None:
    delays = replace(Delays.fast(), handles=1)
    cluster = SimulatedCluster(tmp_path, GPUS, delays=delays, workloads=False)
    partition(cluster.gpus, ["1g.10gb"], ["1g.10gb"])
    with cluster:
        cluster.wait_ready()
        run(cluster, pod_spec("job", {SMALL: 1}))
        cluster.store.delete(PODS, "ml", "job")
        gone(cluster)
        assert users(cluster) == ["python"]
        eventually(lambda: users(cluster) == [], "handles closed")


@pytest.mark.parametrize(
    ("grace", "own_end", "least", "last_phase"),
    [
        pytest.param(3600, None, 0.0, "Succeeded", id="as soon as pods end here"),
        pytest.param(3600, "0.4", 0.4, "Succeeded", id="when its own work is done"),
        pytest.param(1, "3600", 1.0, "Failed", id="killed when the grace period is over"),
    ],
)
def test_a_pod_ends_by_itself_or_with_its_grace_period(
    cluster: SimulatedCluster,
    grace: int,
    own_end: str | None,
    least: float,
    last_phase: str,
) -> None:
    run(cluster, pod_spec("job", {SMALL: 1}), **({} if own_end is None else {"end_seconds": own_end}))
    seen = Recording(cluster, PODS)
    began = time.monotonic()
    cluster.store.delete(PODS, "ml", "job", grace_seconds=grace)
    gone(cluster)
    assert time.monotonic() - began >= least
    assert seen.changes[-1].object["status"]["phase"] == last_phase


def test_a_second_deletion_shortens_the_first(cluster: SimulatedCluster) -> None:
    run(cluster, pod_spec("job", {}), end_seconds="3600")
    cluster.store.delete(PODS, "ml", "job", grace_seconds=3600)
    cluster.store.delete(PODS, "ml", "job", grace_seconds=1)
    gone(cluster)


def test_a_forced_deletion_takes_the_pod_from_the_api_but_not_at_once_from_the_gpu(
    cluster: SimulatedCluster,
) -> None:
    run(cluster, pod_spec("job", {SMALL: 1}), end_seconds="1")
    cluster.store.delete(PODS, "ml", "job", grace_seconds=0)
    assert find(cluster, "job") is None
    assert users(cluster) == ["python"]
    eventually(lambda: users(cluster) == [] and cluster.kubelet.allocations() == (), "the process ended")


@pytest.mark.parametrize(("how", "process_lives"), [("process", True), ("volume", False)])
def test_a_stuck_pod_stays_in_terminating_until_released(
    cluster: SimulatedCluster, how: str, process_lives: bool
) -> None:
    held = run(cluster, pod_spec("job", {SMALL: 1}), stuck=how)
    cluster.store.delete(PODS, "ml", "job", grace_seconds=1)
    time.sleep(0.2)
    assert "deletionTimestamp" in (find(cluster, "job") or {})["metadata"]
    eventually(lambda: bool(users(cluster)) is process_lives, "the process")
    change_pod(cluster, held, annotations={})
    gone(cluster)
    assert users(cluster) == []


def test_a_finalizer_keeps_a_pod_whose_containers_have_ended(cluster: SimulatedCluster) -> None:
    held = run(cluster, pod_spec("job", {SMALL: 1}))
    change_pod(cluster, held, finalizers=["example.com/hold"])
    cluster.store.delete(PODS, "ml", "job")
    cluster.wait_for(lambda: phase(find(cluster, "job")) == "Succeeded", "containers ended")
    assert users(cluster) == []
    change_pod(cluster, held, finalizers=[])
    gone(cluster)


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        pytest.param(
            pod_spec("x", {SMALL: 4}),
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/mig-1g.10gb. Requested: 4, Available: 3, which is unexpected",
            id="more devices than there are",
        ),
        pytest.param(
            pod_spec("x", {"cpu": 1000}),
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 0, capacity: 64",
            id="more CPUs than there are",
        ),
        pytest.param(
            pod_spec("x", {SMALL: 1, "memory": "9Ti"}, nodeSelector={}),
            "OutOfmemory",
            "Pod was rejected: Node didn't have enough resource: memory, requested: 9895604649984, used: 0, "
            "capacity: 540959645696",
            id="more memory than there is",
        ),
        pytest.param(
            pod_spec("x", {SMALL: 1}, nodeSelector={"disk": "ssd"}),
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed",
            id="a label that the node lacks",
        ),
    ],
)
def test_the_kubelet_rejects_what_the_node_cannot_run(
    cluster: SimulatedCluster, spec: Object, reason: str, message: str
) -> None:
    create(cluster, spec)
    failed = cluster.wait_for(
        lambda: now if phase(now := find(cluster, "job")) == "Failed" else None, "the rejection"
    )
    assert failed["status"]["reason"] == reason
    assert failed["status"]["message"] == message
    assert "startTime" in failed["status"]
    assert cluster.kubelet.allocations() == ()
    assert users(cluster) == []


def test_a_device_goes_to_one_pod_at_a_time(cluster: SimulatedCluster) -> None:
    for name in ("a", "b", "c"):
        run(cluster, pod_spec("x", {SMALL: 1}), name)
    held = cluster.kubelet.allocations()
    assert [(each.pod, each.container, each.resource) for each in held] == [
        (name, "main", SMALL) for name in ("a", "b", "c")
    ]
    assert {device for each in held for device in each.devices} == set(
        cluster.kubelet.allocatable_devices()[SMALL]
    )
    cluster.store.delete(PODS, "ml", "b")
    gone(cluster, "b")
    run(cluster, pod_spec("x", {SMALL: 1}), "d")
    assert cluster.kubelet.allocations()[-1].devices == held[1].devices


def test_an_init_container_comes_first_and_leaves_its_devices_to_the_next(cluster: SimulatedCluster) -> None:
    run(cluster, pod_spec("x", {SMALL: 2}, init_resources={SMALL: 3}))
    prepare, main = cluster.kubelet.allocations()
    assert (prepare.container, main.container) == ("prepare", "main")
    assert set(main.devices) < set(prepare.devices)
    assert len(users(cluster)) == 2
    status = (find(cluster, "job") or {})["status"]
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


@pytest.mark.parametrize(
    ("command", "policy", "annotations", "end", "restarts"),
    [
        pytest.param("true", "Never", {}, "Succeeded", False, id="done"),
        pytest.param("false", "Never", {}, "Failed", False, id="failed"),
        pytest.param("true", "OnFailure", {}, "Succeeded", False, id="done, failures would restart"),
        pytest.param("false", "OnFailure", {}, "Running", True, id="failures restart"),
        pytest.param("true", "Always", {}, "Running", True, id="always restarts"),
        pytest.param("python", "Never", {"run_seconds": "0.1"}, "Succeeded", False, id="done after a while"),
    ],
)
def test_containers_end_and_restart_by_policy(
    cluster: SimulatedCluster,
    command: str,
    policy: str,
    annotations: dict[str, str],
    end: str,
    restarts: bool,
) -> None:
    spec = pod_spec("x", {SMALL: 1}, restartPolicy=policy)
    spec["containers"][0]["command"] = [command]
    create(cluster, spec, **annotations)

    def settled() -> Object | None:
        now = find(cluster, "job")
        if now is None or phase(now) != end:
            return None
        count = now["status"]["containerStatuses"][0]["restartCount"]
        return now if not restarts or count >= 2 else None

    done = cluster.wait_for(settled, "the end")
    assert not is_ready(done) or restarts
    assert bool(cluster.kubelet.allocations()) is restarts
    if not restarts:
        assert users(cluster) == []
        assert done["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_failing_init_container_keeps_the_rest_from_starting(cluster: SimulatedCluster) -> None:
    spec = pod_spec("x", {SMALL: 1}, init_resources={})
    spec["initContainers"][0]["command"] = ["false"]
    create(cluster, spec)

    def failing() -> Object | None:
        now = find(cluster, "job")
        statuses = (now or {"status": {}})["status"].get("initContainerStatuses")
        return now if statuses and statuses[0]["restartCount"] >= 2 else None

    waiting = cluster.wait_for(failing, "restarts")
    assert phase(waiting) == "Pending"
    assert "waiting" in waiting["status"]["containerStatuses"][0]["state"]
    assert users(cluster) == []


def test_a_pod_that_is_given_an_instance_which_has_gone_cannot_start(cluster: SimulatedCluster) -> None:
    clear(cluster.gpus, 0)
    clear(cluster.gpus, 1)
    create(cluster, pod_spec("x", {SMALL: 1}))

    def refused() -> Any:
        statuses = (find(cluster, "job") or {"status": {}})["status"].get("containerStatuses")
        waiting = (statuses or [{"state": {}}])[0]["state"].get("waiting", {})
        return waiting if waiting.get("reason") == "RunContainerError" else None

    assert "unknown device" in cluster.wait_for(refused, "the refusal")["message"]


def test_a_deleted_pod_that_has_not_started_goes_at_once(tmp_path: Path) -> None:
    delays = replace(Delays.fast(), pod_start=3600)
    with SimulatedCluster(tmp_path, GPUS, delays=delays, workloads=False) as cluster:
        create(cluster, pod_spec("x", {}))
        cluster.wait_for(lambda: "startTime" in (find(cluster, "job") or {})["status"], "seen")
        cluster.store.delete(PODS, "ml", "job")
        gone(cluster)


def test_the_kubelet_can_take_a_while_to_notice_a_pod(tmp_path: Path) -> None:
    delays = replace(Delays.fast(), pod_notice=0.3)
    with SimulatedCluster(tmp_path, GPUS, delays=delays, workloads=False) as cluster:
        began = time.monotonic()
        create(cluster, pod_spec("x", {}))
        cluster.wait_for(lambda: "startTime" in (find(cluster, "job") or {})["status"], "seen")
        assert time.monotonic() - began >= 0.3
