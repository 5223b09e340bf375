"""A drain evicts all pods that are in the way, or none."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mig_manager.cluster.drain import DrainReport, drain
from mig_manager.cluster.drainrules import DrainMode, DrainOptions
from mig_manager.cluster.eviction import delete, evict
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.pods import uses_gpu
from mig_manager.cluster.wait import Signal
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.errors import MigManagerError, Reason
from mig_manager.simulation.api.faults import Fault, Gate
from mig_manager.simulation.apiserver import ApiServer
from tests.cluster.cluster import Cluster

QUICK = DrainOptions(timeout_s=1.5, cap_s=1.5, margin_s=0.2, retry_s=0.3)
"""For drains that fail; time enough for what has to be asked before."""
PATIENT = DrainOptions(timeout_s=60, margin_s=60, retry_s=0.1)
"""For drains that succeed."""


def gpu_pods(pods: ObjectWatch[Pod]) -> list[Pod]:
    return sorted((pod for pod in pods.objects.values() if uses_gpu(pod)), key=str)


def drained(
    cluster: Cluster,
    options: DrainOptions = PATIENT,
    *,
    looked: Callable[[], object] = lambda: None,
    hindered: Callable[[str], None] = lambda obstacle: None,
    evicted: Callable[[Pod], None] = lambda pod: None,
) -> DrainReport:
    """Drain the GPU pods of the node. The callables are called when the drain gets so far."""
    with cluster.watching() as pods:

        def victims() -> list[Pod]:
            found = gpu_pods(pods)
            looked()
            return found

        return drain(cluster.api, pods, victims, options, cluster.signal, hindered=hindered, evicted=evicted)


def refused(cluster: Cluster, options: DrainOptions = QUICK) -> MigManagerError:
    with pytest.raises(MigManagerError) as caught:
        drained(cluster, options)
    return caught.value


def test_all_gpu_pods_go_and_nobody_else(cluster: Cluster) -> None:
    for number in range(6):
        cluster.run_pod(f"job-{number}")
    cluster.run_pod("slice", resource="nvidia.com/mig-1g.10gb")
    cluster.run_pod("shared", resource="nvidia.com/mig-1g.10gb.shared")
    cluster.run_pod("cpu", resource=None)
    cluster.run_pod("other-device", resource="example.com/nic")
    cluster.run_pod("done", phase="Succeeded", ready=False)
    cluster.together = 8  # not one after the other
    report = drained(cluster)
    assert {pod.name for pod in report.gone} == {*(f"job-{n}" for n in range(6)), "slice", "shared"}
    assert set(cluster.pods()) == {"cpu", "other-device", "done"}


def test_nothing_to_drain_is_done_at_once_without_a_request(cluster: Cluster, simulation: ApiServer) -> None:
    cluster.run_pod("cpu", resource=None)
    with cluster.watching() as pods:
        simulation.requests.clear()
        assert drain(cluster.api, pods, lambda: (), QUICK, cluster.signal) == DrainReport((), (), ())
        assert not [request for request in simulation.requests.all() if request.method != "GET"]


def test_every_eviction_is_rehearsed_before_the_first_real_one(
    cluster: Cluster, simulation: ApiServer
) -> None:
    for number in range(3):
        cluster.run_pod(f"job-{number}")
    simulation.requests.clear()
    drained(cluster)
    evictions = [
        request.query.get("dryRun", "real")
        for request in simulation.requests.all()
        if request.resource == "pods/eviction"
    ]
    assert evictions == ["All"] * 3 + ["real"] * 3


def test_a_budget_that_stays_blocks_everything_and_is_named(cluster: Cluster) -> None:
    cluster.run_pod("web", labels={"app": "web"})
    cluster.run_pod("free")
    cluster.protect("keep-web", {"app": "web"}, 1)
    error = refused(cluster)
    assert error.reason is Reason.EVICTION_BLOCKED
    assert re.match(r"Evictions were refused for \d+ s: ", error.message)
    assert f"pod {cluster.namespace}/web: PodDisruptionBudget keep-web needs 1 healthy pods" in error.message
    assert error.message.endswith("Nothing was evicted.")
    assert "free" not in error.message
    assert all(pod.deleted is None for pod in cluster.pods().values())


def test_a_budget_that_gives_way_in_time_lets_the_drain_go_on(cluster: Cluster) -> None:
    cluster.run_pod("web", labels={"app": "web"})
    cluster.run_pod("free")
    cluster.protect("keep-web", {"app": "web"}, 1)
    report = drained(cluster, hindered=lambda obstacle: cluster.allow("keep-web"))
    assert {pod.name for pod in report.gone} == {"web", "free"}


def test_a_budget_for_one_at_a_time_lets_them_go_one_after_the_other(cluster: Cluster) -> None:
    """Each passes alone; for real, the second waits until the budget has room again."""
    for name in ("one", "two"):
        cluster.run_pod(name, labels={"app": "web"})
    cluster.protect("one-at-a-time", {"app": "web"}, 1)
    went: list[str] = []
    waited: list[str] = []

    def hear(obstacle: str) -> None:
        waited.append(obstacle)
        cluster.allow("one-at-a-time")

    report = drained(cluster, hindered=hear, evicted=lambda pod: went.append(pod.name))
    assert {pod.name for pod in report.gone} == {"one", "two"}
    assert len(waited) == 1
    assert f"/{went[1]} " in waited[0]


def test_an_unready_pod_that_a_budget_holds_is_told_apart(cluster: Cluster) -> None:
    cluster.run_pod("broken", labels={"app": "web"}, ready=False)
    cluster.protect("keep-web", {"app": "web"}, 1)
    assert "the pod is not Ready; unhealthyPodEvictionPolicy" in refused(cluster).message


def test_two_budgets_for_one_pod_are_no_passing_trouble(cluster: Cluster) -> None:
    cluster.run_pod("web", labels={"app": "web"})
    cluster.run_pod("free")
    cluster.protect("first", {"app": "web"}, 0)
    cluster.protect("second", {"app": "web"}, 0)
    error = refused(cluster, replace(PATIENT, failures=3))
    assert error.reason is Reason.EVICTION_BLOCKED
    answer = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support"
    why = f"pod {cluster.namespace}/web: the API server answers 500: {answer}. Nothing was evicted."
    assert error.message == f"Evictions were refused for good: {why}"
    assert all(pod.deleted is None for pod in cluster.pods().values())


def test_throttling_is_no_budget_and_its_retry_after_is_honoured(
    cluster: Cluster, simulation: ApiServer
) -> None:
    cluster.run_pod("job")
    simulation.faults.add(Fault("POST", "/eviction", status=429, retry_after_s=1))
    began = time.monotonic()
    assert [pod.name for pod in drained(cluster).gone] == ["job"]
    assert time.monotonic() - began >= 1
    cluster.run_pod("job")
    simulation.faults.add(Fault("POST", "/eviction", status=429, times=None))
    message = refused(cluster).message
    assert "the API server asks to slow down" in message
    assert "Budget" not in message


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=503), Fault(how="drop")])
def test_passing_trouble_of_the_api_server_is_overcome(
    cluster: Cluster, simulation: ApiServer, fault: Fault
) -> None:
    cluster.run_pod("job")
    simulation.faults.add(replace(fault, method="POST", path="/eviction", times=3))
    assert [pod.name for pod in drained(cluster).gone] == ["job"]


def test_an_eviction_that_is_forbidden_ends_the_drain_at_once(
    cluster: Cluster, simulation: ApiServer
) -> None:
    cluster.run_pod("job")
    simulation.faults.add(Fault("POST", "/eviction", status=403))
    error = refused(cluster, PATIENT)
    assert error.reason is Reason.EVICTION_BLOCKED
    assert f"pod {cluster.namespace}/job: the API server answers 403: forbidden." in error.message


def test_a_pod_without_a_controller_blocks_unless_the_settings_say_otherwise(cluster: Cluster) -> None:
    cluster.run_pod("notebook", owner=None)
    cluster.run_pod("free")
    error = refused(cluster)
    assert error.reason is Reason.EVICTION_BLOCKED
    assert f"pod {cluster.namespace}/notebook: it has no controller that would bring it back" in error.message
    assert error.message.endswith("Delete such pods yourself, or set MIG_MANAGER_EVICT_BARE_PODS=true.")
    assert all(pod.deleted is None for pod in cluster.pods().values())
    drained(cluster, replace(PATIENT, bare_pods=True))
    assert not cluster.pods()


def test_a_pod_with_data_in_an_empty_dir_goes_unless_the_settings_say_otherwise(cluster: Cluster) -> None:
    cluster.run_pod("cache", volumes=({"name": "scratch", "emptyDir": {}},))
    error = refused(cluster, replace(QUICK, empty_dirs=False))
    assert f"pod {cluster.namespace}/cache: it keeps data in an emptyDir volume" in error.message
    assert error.message.endswith("Delete such pods yourself, or set MIG_MANAGER_EVICT_EMPTY_DIR_PODS=true.")
    assert [pod.name for pod in drained(cluster).gone] == ["cache"]


def test_a_blocking_pod_that_its_user_deletes_lets_the_drain_go_on(cluster: Cluster) -> None:
    cluster.run_pod("notebook", owner=None)
    cluster.run_pod("free")
    told: list[str] = []

    def hear(obstacle: str) -> None:
        told.append(obstacle)
        cluster.api.delete(cluster.path("pods", "notebook"))

    assert {pod.name for pod in drained(cluster, hindered=hear).gone} == {"notebook", "free"}
    assert told == [
        f"Pod {cluster.namespace}/notebook cannot be evicted yet: it has no controller that would bring it back"
    ]


def test_daemon_set_and_mirror_pods_are_left_and_reported(cluster: Cluster, simulation: ApiServer) -> None:
    cluster.run_pod("agent", owner="DaemonSet")
    cluster.run_pod("static", owner=None, annotations={"kubernetes.io/config.mirror": "abc"})
    cluster.run_pod("job")
    report = drained(cluster)
    assert [pod.name for pod in report.gone] == ["job"]
    assert [pod.name for pod in report.left] == ["agent", "static"]
    assert set(cluster.pods()) == {"agent", "static"}


def test_a_pod_that_appears_meanwhile_is_drained_too(cluster: Cluster) -> None:
    cluster.run_pod("first")
    cluster.together = 2

    def send_another(pod: Pod) -> None:
        if pod.name == "first":
            cluster.run_pod("second")

    report = drained(cluster, evicted=send_another)
    assert {pod.name for pod in report.gone} == {"first", "second"}


@pytest.mark.parametrize("at", ["the limit", "the end of the last"])
def test_pods_that_keep_coming_are_named_with_who_sends_them(
    cluster: Cluster, simulation: ApiServer, at: str
) -> None:
    """A controller whose pods tolerate the cordon is faster than any drain."""
    cluster.run_pod("web-0", grace_s=60)
    cluster.stuck.update(f"web-{number}" for number in range(4))

    def send_more(pod: Pod) -> None:
        if pod.name == "web-0":
            for number in (1, 2, 3):
                cluster.run_pod(f"web-{number}")
            cluster.free("web-0")

    options = DrainOptions(margin_s=0.2)
    with Gate() as gate:
        if at == "the limit":
            options = DrainOptions(cap_s=3)
            simulation.faults.add(Fault("POST", "/web-[123]/eviction", gate=gate, times=None))
        with pytest.raises(MigManagerError) as caught:
            drained(cluster, options, evicted=send_more)
    error = caught.value
    assert error.reason is Reason.DRAIN_TIMEOUT
    assert re.match(
        r"Pods keep coming although the node is cordoned, 3 in [\d.]+ s; the last: ", error.message
    )
    assert f"{cluster.namespace}/web-" in error.message
    assert "(by ConfigMap owner)" in error.message
    assert "node.kubernetes.io/unschedulable" in error.message


def test_a_pod_that_is_stuck_has_a_timeout_of_its_own(cluster: Cluster) -> None:
    cluster.run_pod("stuck", grace_s=1, finalizers=("example.com/volume",))
    error = refused(cluster, DrainOptions(timeout_s=3600, margin_s=0.3))
    assert error.reason is Reason.DRAIN_TIMEOUT
    assert f"{cluster.namespace}/stuck (held by finalizers example.com/volume)" in error.message


def test_a_pod_that_is_stuck_but_holds_nothing_is_not_waited_for(cluster: Cluster) -> None:
    cluster.run_pod("stuck", grace_s=1, finalizers=("example.com/volume",))
    cluster.run_pod("job")
    asked: list[str] = []

    def released(pod: Pod) -> bool:
        asked.append(pod.name)
        return True

    with cluster.watching() as pods:
        options = DrainOptions(margin_s=0.3)
        report = drain(
            cluster.api,
            pods,
            lambda: gpu_pods(pods),
            options,
            cluster.signal,
            released=released,
        )
    assert [pod.name for pod in report.gone] == ["job"]
    assert [pod.name for pod in report.released] == ["stuck"]
    assert asked == ["stuck"]
    assert set(cluster.pods()) == {"stuck"}


def test_a_long_grace_period_is_waited_for(cluster: Cluster) -> None:
    cluster.run_pod("training", grace_s=20)
    cluster.takes_s = 0.8
    assert drained(cluster, DrainOptions(timeout_s=0.5, margin_s=1)).gone
    cluster.stuck.add("endless")
    cluster.run_pod("endless", grace_s=600)
    error = refused(cluster, DrainOptions(timeout_s=1.5, cap_s=1.5))
    assert error.reason is Reason.DRAIN_TIMEOUT


def test_refusals_are_taken_for_as_long_as_the_longest_grace_period(cluster: Cluster) -> None:
    cluster.run_pod("training", grace_s=20, labels={"app": "web"})
    cluster.protect("keep-web", {"app": "web"}, 1)

    def hear(obstacle: str) -> None:
        threading.Timer(0.3, cluster.allow, ("keep-web",)).start()

    assert drained(cluster, DrainOptions(timeout_s=0.2, retry_s=0.1), hindered=hear).gone


def test_a_grace_period_from_the_settings_goes_before_the_pods_own(cluster: Cluster) -> None:
    cluster.run_pod("training", grace_s=600)
    cluster.stuck.add("training")
    error = refused(cluster, DrainOptions(grace_s=1, margin_s=0.3))
    assert error.reason is Reason.DRAIN_TIMEOUT
    assert cluster.pods()["training"].grace_s == 1


@pytest.mark.parametrize("blocked", [True, False], ids=["while refused", "while pods end"])
def test_an_interrupt_ends_it_at_once(cluster: Cluster, blocked: bool) -> None:
    class LabelChangedError(Exception):
        pass

    changed = threading.Event()

    def interrupt() -> None:
        if changed.is_set():
            raise LabelChangedError

    def change() -> None:
        changed.set()
        cluster.signal.notify()

    def soon(_: object) -> None:
        threading.Timer(0.1, change).start()

    cluster.run_pod("job", owner=None if blocked else "ConfigMap", grace_s=3600)
    cluster.stuck.add("job")
    cluster.signal = Signal(interrupt)
    began = time.monotonic()
    with pytest.raises(LabelChangedError):
        drained(cluster, hindered=soon, evicted=soon)
    assert time.monotonic() - began < 60


def test_mode_wait_evicts_nothing_and_waits_for_jobs_to_end(cluster: Cluster) -> None:
    cluster.run_pod("job")
    error = refused(cluster, replace(QUICK, mode=DrainMode.WAIT))
    assert error.reason is Reason.DRAIN_TIMEOUT
    assert re.search(r"were still running after \d+ s: .*/job\.$", error.message)
    report = drained(
        cluster, replace(PATIENT, mode=DrainMode.WAIT), looked=lambda: cluster.set_status("job", "Succeeded")
    )
    assert [pod.name for pod in report.gone] == ["job"]
    assert cluster.pods()["job"].deleted is None


def test_mode_delete_asks_no_budget(cluster: Cluster) -> None:
    cluster.run_pod("web", labels={"app": "web"})
    cluster.protect("keep-web", {"app": "web"}, 1)
    drained(cluster, replace(PATIENT, mode=DrainMode.DELETE))
    assert not cluster.pods()


def test_mode_off_names_the_pods_and_touches_none(cluster: Cluster) -> None:
    cluster.run_pod("job")
    error = refused(cluster, replace(QUICK, mode=DrainMode.OFF))
    assert error.reason is Reason.DRAIN_REQUIRED
    assert f"{cluster.namespace}/job" in error.message
    assert cluster.pods()["job"].deleted is None


def test_a_pod_of_the_same_name_that_came_after_is_not_evicted(
    cluster: Cluster, simulation: ApiServer
) -> None:
    """A StatefulSet's next pod has the old name; a late eviction must not hit it."""
    first = cluster.run_pod("db-0")
    gate = Gate()
    simulation.faults.add(Fault("POST", "/eviction$", gate=gate))

    def replace_it() -> None:
        with gate:
            gate.wait()
            cluster.api.delete(cluster.path("pods", "db-0"), {"gracePeriodSeconds": 0})
            cluster.run_pod("db-0")

    with ThreadPoolExecutor(1) as pool, cluster.watching() as pods:
        replaced = pool.submit(replace_it)
        drain(
            cluster.api, pods, lambda: [first] if first.uid in pods.objects else [], PATIENT, cluster.signal
        )
        replaced.result()
    assert simulation.requests.wait_for(
        lambda request: request.resource == "pods/eviction" and request.status == 409, 60
    )
    second = cluster.pods()["db-0"]
    assert second.uid != first.uid
    assert second.deleted is None


def test_a_pod_whose_name_another_one_has_by_now_is_gone(cluster: Cluster) -> None:
    """Also where no watch has told of it yet: the answer does, and it is no refusal."""
    first = cluster.run_pod("db-0")
    cluster.api.delete(cluster.path("pods", "db-0"), {"gracePeriodSeconds": 0})
    second = cluster.run_pod("db-0")
    for rehearsal in (True, False):
        assert evict(cluster.api, first, grace_s=None, rehearsal=rehearsal) is None
    assert delete(cluster.api, first, grace_s=None) is None
    assert cluster.pods()["db-0"].uid == second.uid
    assert cluster.pods()["db-0"].deleted is None
