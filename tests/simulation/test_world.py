from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.refusal import ApiError
from mig_manager.layouts.book import resolve
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.catalogue import catalogue, find_model, parse_gpus
from mig_manager.simulation import power
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.examples import layout_file
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import ANNOTATIONS, is_ready, quantity, requests
from mig_manager.simulation.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
)
from mig_manager.simulation.workloads import deployment, disruption_budget, pod, pod_spec
from mig_manager.simulation.world import SimulatedCluster
from tests.simulation.kubelet_world import (
    GPUS,
    Recording,
    eventually,
    find,
    partition,
    phase,
    set_labels,
    with_app,
)

GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
PLUGIN = "nvidia-device-plugin-daemonset"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SimulatedCluster]:
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False)
    partition(cluster.gpus, ["1g.10gb"] * 2, None)
    with cluster:
        cluster.wait_ready()
        yield cluster


def cordon(cluster: SimulatedCluster, on: bool) -> None:
    def change(node: Object) -> Object:
        node["spec"].pop("unschedulable", None)
        if on:
            node["spec"]["unschedulable"] = True
        return node

    cluster.store.update(NODES, None, cluster.node, change)


def not_scheduled(cluster: SimulatedCluster, name: str) -> str | None:
    """Why the scheduler left the pod without a node; None as long as it has not said."""
    for each in ((find(cluster, name) or {}).get("status") or {}).get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each["message"])
    return None


def ready_pods(cluster: SimulatedCluster, app: str) -> list[Object]:
    return [
        each
        for each in with_app(cluster, app)
        if is_ready(each) and "deletionTimestamp" not in each["metadata"]
    ]


# The scheduler


def test_pods_wait_for_a_cordoned_node_and_daemon_pods_do_not(cluster: SimulatedCluster) -> None:
    cordon(cluster, True)
    cluster.store.create(PODS, pod("job", pod_spec("x", {SMALL: 1})))
    why = cluster.wait_for(lambda: not_scheduled(cluster, "job"), "the verdict")
    assert why == "0/1 nodes are available: 1 node(s) were unschedulable."

    old = with_app(cluster, PLUGIN)[0]
    cluster.store.delete(PODS, "gpu-operator", old["metadata"]["name"])
    cluster.wait_for(
        lambda: [p for p in ready_pods(cluster, PLUGIN) if p["metadata"]["uid"] != old["metadata"]["uid"]],
        "the plugin on the cordoned node",
    )
    assert "nodeName" not in (find(cluster, "job") or {})["spec"]
    cordon(cluster, False)
    cluster.wait_for(lambda: phase(find(cluster, "job")) == "Running", "the job")


def test_a_cordon_brings_a_taint_and_takes_it_away_again(cluster: SimulatedCluster) -> None:
    def change(node: Object) -> Object:
        node["spec"]["taints"] = [{"key": "mine", "effect": "NoSchedule"}]
        return node

    def keys() -> list[str]:
        return [each["key"] for each in cluster.node_object()["spec"].get("taints", [])]

    cluster.store.update(NODES, None, cluster.node, change)
    cordon(cluster, True)
    cluster.wait_for(lambda: keys() == ["mine", "node.kubernetes.io/unschedulable"], "the taint")
    cordon(cluster, False)
    cluster.wait_for(lambda: keys() == ["mine"], "no taint")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (pod_spec("x", {SMALL: 3}), "Insufficient nvidia.com/mig-1g.10gb"),
        (pod_spec("x", {"nvidia.com/mig-3g.40gb": 1}), "Insufficient nvidia.com/mig-3g.40gb"),
        (pod_spec("x", {}, init_resources={GPU: 2}), "Insufficient nvidia.com/gpu"),
        (pod_spec("x", {"cpu": "64001m"}), "Insufficient cpu"),
        (pod_spec("x", {}, nodeSelector={"a": "b"}), "node(s) didn't match Pod's node affinity/selector"),
    ],
)
def test_a_pod_that_does_not_fit_waits_with_a_reason(
    cluster: SimulatedCluster, spec: Object, reason: str
) -> None:
    cluster.store.create(PODS, pod("job", spec))
    why = cluster.wait_for(lambda: not_scheduled(cluster, "job"), "the verdict")
    assert why == f"0/1 nodes are available: 1 {reason}."


def test_taints_keep_pods_away_that_do_not_tolerate_them(cluster: SimulatedCluster) -> None:
    def change(node: Object) -> Object:
        node["spec"]["taints"] = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
        return node

    cluster.store.update(NODES, None, cluster.node, change)
    tolerates = [
        {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
        {"key": GPU, "value": "present"},
        {"operator": "Exists"},
    ]
    others: list[Object] = [
        {"key": GPU, "value": "absent"},
        {"key": GPU, "operator": "Exists", "effect": "NoExecute"},
    ]
    for number, each in enumerate([*tolerates, *others]):
        cluster.store.create(PODS, pod(f"job-{number}", pod_spec("x", {}, tolerations=[each])))
    for number in range(len(tolerates)):
        cluster.wait_for(lambda n=number: phase(find(cluster, f"job-{n}")) == "Running", "tolerant")  # type: ignore[misc]
    for number in range(len(tolerates), len(tolerates) + len(others)):
        why = cluster.wait_for(lambda n=number: not_scheduled(cluster, f"job-{n}"), "intolerant")  # type: ignore[misc]
        assert why == "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}."


def test_devices_go_to_the_oldest_pod_first_and_are_given_again(cluster: SimulatedCluster) -> None:
    for name in ("first", "second", "third"):
        cluster.store.create(PODS, pod(name, pod_spec("x", {SMALL: 1})))
    cluster.wait_for(lambda: phase(find(cluster, "second")) == "Running", "two of three")
    assert phase(find(cluster, "first")) == "Running"
    assert (
        not_scheduled(cluster, "third") == "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.10gb."
    )
    cluster.store.delete(PODS, "ml", "first")
    cluster.wait_for(lambda: phase(find(cluster, "third")) == "Running", "the third")


# Controllers


def test_operands_go_and_come_with_their_deploy_labels(cluster: SimulatedCluster) -> None:
    before = with_app(cluster, PLUGIN)[0]["metadata"]
    for value in ("paused-for-mig-change", "false", None):
        set_labels(cluster, device_plugin=value)
        cluster.wait_for(lambda: not with_app(cluster, PLUGIN), f"no plugin with {value}")
        set_labels(cluster, device_plugin="true")
        after = cluster.wait_for(lambda: ready_pods(cluster, PLUGIN), "the plugin")[0]["metadata"]
        assert after["uid"] != before["uid"]
        assert after["ownerReferences"][0]["kind"] == "DaemonSet"
        before = after
    held = cluster.store.get(DAEMON_SETS, "gpu-operator", PLUGIN)
    assert held is not None
    assert held["status"]["desiredNumberScheduled"] == 1


def test_a_daemon_pod_that_takes_its_time_to_end_has_no_successor_yet(tmp_path: Path) -> None:
    with SimulatedCluster(
        tmp_path, GPUS, delays=replace(Delays.fast(), pod_end=0.3), workloads=False
    ) as cluster:
        cluster.wait_ready()
        seen = Recording(cluster, PODS)
        old = with_app(cluster, PLUGIN)[0]["metadata"]
        cluster.store.delete(PODS, "gpu-operator", old["name"])
        cluster.wait_for(lambda: ready_pods(cluster, PLUGIN), "the next")
        kinds = [
            (each.type, each.object["metadata"]["uid"] == old["uid"])
            for each in seen.changes
            if each.object["metadata"]["labels"]["app"] == PLUGIN and each.type != "MODIFIED"
        ]
        assert kinds == [("DELETED", True), ("ADDED", False)]


def test_an_evicted_replica_comes_back_as_another_pod_at_once(cluster: SimulatedCluster) -> None:
    keys = {ANNOTATIONS + "end-seconds": "0.3"}
    cluster.store.create(DEPLOYMENTS, deployment("infer", 2, pod_spec("x", {SMALL: 1}), annotations=keys))
    cluster.wait_for(lambda: len(ready_pods(cluster, "infer")) == 2, "two replicas")
    old = with_app(cluster, "infer")[0]["metadata"]
    cluster.store.delete(PODS, "ml", old["name"])
    cluster.wait_for(lambda: len(with_app(cluster, "infer")) == 3, "the successor beside the ending pod")
    waiting = next(p for p in with_app(cluster, "infer") if p["status"]["phase"] == "Pending")
    assert "nodeName" not in waiting["spec"]
    cluster.wait_for(lambda: phase(find(cluster, waiting["metadata"]["name"])) == "Running", "its device")
    status = cluster.wait_for(
        lambda: (
            now["status"]
            if (now := cluster.store.get(DEPLOYMENTS, "ml", "infer"))
            and now["status"].get("readyReplicas") == 2
            else None
        ),
        "the status",
    )
    assert (status["replicas"], status["unavailableReplicas"]) == (2, 0)


def test_a_deployment_scales_changes_its_template_and_goes_with_its_pods(cluster: SimulatedCluster) -> None:
    def change(**spec: Any) -> None:
        def apply(now: Object) -> Object:
            now["spec"].update(spec)
            return now

        cluster.store.update(DEPLOYMENTS, "ml", "web", apply)

    cluster.store.create(DEPLOYMENTS, deployment("web", 3, pod_spec("x", {})))
    cluster.wait_for(lambda: len(ready_pods(cluster, "web")) == 3, "three")
    change(replicas=1)
    cluster.wait_for(lambda: len(with_app(cluster, "web")) == 1, "one")
    old = with_app(cluster, "web")[0]["metadata"]["uid"]
    change(template=deployment("web", 1, pod_spec("y", {}))["spec"]["template"])
    cluster.wait_for(
        lambda: [p["spec"]["containers"][0]["image"] for p in ready_pods(cluster, "web")] == ["y"],
        "the new one",
    )
    assert ready_pods(cluster, "web")[0]["metadata"]["uid"] != old
    cluster.store.delete(DEPLOYMENTS, "ml", "web")
    cluster.wait_for(lambda: not with_app(cluster, "web"), "none")


# Through the API


def test_a_client_can_cordon_scale_and_evict(cluster: SimulatedCluster) -> None:
    cluster.store.create(DEPLOYMENTS, deployment("infer", 1, pod_spec("x", {SMALL: 1})))
    cluster.store.create(POD_DISRUPTION_BUDGETS, disruption_budget("infer", "infer", minAvailable=1))
    cluster.wait_for(lambda: ready_pods(cluster, "infer"), "a replica")
    name = ready_pods(cluster, "infer")[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "ml"}}
    path = f"{collection_path('pods', namespace='ml')}/{name}/eviction"
    with Api.connect(cluster.kubeconfig) as api:
        cordoned = api.patch(f"/api/v1/nodes/{cluster.node}", {"spec": {"unschedulable": True}})
        assert cordoned["spec"]["unschedulable"]
        assert cordoned["status"]["allocatable"][SMALL] == "2"
        with pytest.raises(ApiError) as refused:
            api.create(path, eviction)
        assert refused.value.status == 429

        api.patch(f"/api/v1/nodes/{cluster.node}", {"spec": {"unschedulable": None}})
        infer = f"{collection_path('deployments', namespace='ml', group='apps/v1')}/infer"
        api.patch(infer, {"spec": {"replicas": 2}})
        cluster.wait_for(lambda: len(ready_pods(cluster, "infer")) == 2, "two replicas")
        cluster.wait_for(
            lambda: cluster.store.list(POD_DISRUPTION_BUDGETS)[0][0]["status"]["disruptionsAllowed"] == 1,
            "room",
        )
        api.create(path, eviction)
    cluster.wait_for(lambda: find(cluster, name) is None, "evicted")


def test_node_status_names_what_kubectl_shows(cluster: SimulatedCluster) -> None:
    node = cluster.node_object()
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == cluster.node
    assert node["status"]["nodeInfo"]["bootID"] == cluster.gpus.boot_id
    addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
    assert addresses["Hostname"] == cluster.node
    assert node["status"]["capacity"]["pods"] == "110"


# The world as a whole


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_the_workloads_of_a_fresh_world_run_as_far_as_its_gpus_allow(tmp_path: Path, strategy: Any) -> None:
    with SimulatedCluster(tmp_path, delays=Delays.fast(), strategy=strategy) as cluster:
        cluster.wait_ready()
        cluster.wait_for(lambda: ready_pods(cluster, "training"), "training")
        cluster.wait_for(lambda: phase(find(cluster, "dashboard")) == "Running", "the dashboard")
        waiting = {
            p["metadata"]["labels"]["app"] for p in cluster.store.list(PODS, "ml")[0] if not is_ready(p)
        }
        assert waiting == ({"inference", "finetune"} if strategy == "mixed" else set())


def test_a_repartition_by_hand_frees_the_gpus_and_brings_waiting_pods_to_life(tmp_path: Path) -> None:
    paused = dict.fromkeys(("device_plugin", "gpu_feature_discovery", "dcgm_exporter"), "paused")
    with SimulatedCluster(tmp_path, "2xA100-SXM4-80GB", delays=Delays.fast()) as cluster:
        cluster.wait_ready()
        old = cluster.wait_for(lambda: ready_pods(cluster, "training"), "training")[0]["metadata"]

        cordon(cluster, True)
        cluster.store.delete(PODS, "ml", old["name"])
        cluster.wait_for(lambda: find(cluster, old["name"]) is None, "drained")
        set_labels(cluster, **paused)
        apps = (PLUGIN, "gpu-feature-discovery", "nvidia-dcgm-exporter")
        cluster.wait_for(lambda: not any(with_app(cluster, app) for app in apps), "operands gone")
        assert cluster.gpus.processes() == []
        partition(cluster.gpus, ["3g.40gb"] + ["1g.10gb"] * 4, ["1g.10gb"] * 7)
        set_labels(cluster, **dict.fromkeys(paused, "true"))
        cluster.wait_ready()
        assert cluster.allocatable() == {GPU: 0, SMALL: 11, "nvidia.com/mig-3g.40gb": 1}
        assert not ready_pods(cluster, "inference")

        cordon(cluster, False)
        cluster.wait_for(lambda: len(ready_pods(cluster, "inference")) == 2, "inference")
        cluster.wait_for(lambda: ready_pods(cluster, "finetune"), "finetune")
        (waiting,) = with_app(cluster, "training")
        assert waiting["status"]["phase"] == "Pending"
        assert len({each["gi"] for each in cluster.gpus.processes() if each["name"] == "python"}) == 3


def test_a_plugin_can_be_told_to_publish_late(cluster: SimulatedCluster) -> None:
    def change(now: Object) -> Object:
        meta = now["spec"]["template"]["metadata"]
        meta.setdefault("annotations", {})[ANNOTATIONS + "publish-seconds"] = "1"
        return now

    old = with_app(cluster, PLUGIN)[0]["metadata"]["uid"]
    cluster.store.update(DAEMON_SETS, "gpu-operator", PLUGIN, change)
    cluster.wait_for(
        lambda: [each for each in ready_pods(cluster, PLUGIN) if each["metadata"]["uid"] != old], "the next"
    )
    began = time.monotonic()
    assert cluster.allocatable() == {SMALL: 0, GPU: 0}
    cluster.wait_for(lambda: cluster.allocatable() == {SMALL: 2, GPU: 1}, "resources")
    assert time.monotonic() - began > 0.2


def test_closing_is_quick_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    cluster = SimulatedCluster(tmp_path, delays=Delays.fast())
    with cluster:
        cluster.wait_ready()
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert {each for each in threading.enumerate() if each not in before} == set()


def test_a_world_that_is_left_alone_changes_nothing(tmp_path: Path) -> None:
    with SimulatedCluster(tmp_path, delays=replace(Delays.fast(), node_sync=0.1)) as cluster:
        cluster.wait_ready()
        cluster.wait_for(lambda: ready_pods(cluster, "training"), "training")

        def at_rest() -> bool:
            """For the most part; the kubelet renews its Lease now and then."""
            before, cpu = cluster.api.store.version, time.process_time()
            time.sleep(0.5)
            return cluster.api.store.version == before and time.process_time() - cpu < 0.05

        eventually(at_rest, "rest")


@pytest.mark.parametrize("model", [each.title for each in catalogue()])
def test_the_example_layouts_are_valid_for_every_model(model: str) -> None:
    text = layout_file(parse_gpus(f"2x{model},1xA30"))
    book = parse_layouts(text, file="config.yaml")
    gpus = [
        GpuIdentity(
            index=index,
            uuid=f"GPU-{index}",
            bus_id=f"00000000:0{index}:00.0",
            model=each.name,
            device_id=each.device_ids[0],
            subsystem_id=0,
            mig_capable=each.geometry is not None,
        )
        for index, each in enumerate(parse_gpus(f"2x{model},1xA30"))
    ]
    assert list(book.layouts) == list(yaml.safe_load(text)["mig-configs"])
    assert {"all-disabled", "small", "mixed", "balanced"} == set(book.layouts)
    for layout in book.layouts.values():
        for target in resolve(layout, gpus).gpus:
            geometry = find_model(target.gpu.model).geometry
            assert geometry is not None
            assert set(target.devices) <= {each.name for each in geometry.profiles}


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), ("500m", 0.5), ("16Gi", 16 * 1024**3), ("1k", 1000), ("3M", 3_000_000), (4, 4), ("0", 0)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: object, value: float) -> None:
    assert float(quantity(text)) == value


def test_a_pod_asks_for_its_containers_together_or_its_largest_init_container() -> None:
    spec: Object = {
        "containers": [
            {"name": "a", "resources": {"limits": {GPU: "1", "cpu": "1"}, "requests": {"cpu": "500m"}}},
            {"name": "b", "resources": {"requests": {GPU: "2"}}},
        ],
        "initContainers": [
            {"name": "c", "resources": {"limits": {GPU: "5"}}},
            {"name": "d", "restartPolicy": "Always", "resources": {"limits": {GPU: "1", "memory": "1Gi"}}},
            {"name": "e", "resources": {"limits": {GPU: "1"}}},
        ],
    }
    asked = {name: float(amount) for name, amount in requests({"spec": spec}).items()}
    assert asked == {GPU: 5, "cpu": 0.5, "memory": 1024**3}


# Reboots


def test_a_reboot_ends_every_pod_and_what_may_start_again_does(cluster: SimulatedCluster) -> None:
    store, boot = cluster.store, cluster.node_object()["status"]["nodeInfo"]["bootID"]
    plugin = ready_pods(cluster, PLUGIN)[0]["metadata"]["uid"]
    store.create(PODS, pod("on-gpu", pod_spec("example/image", {SMALL: 1})))
    store.create(PODS, pod("once", pod_spec("example/image", {}, restartPolicy="Never")))

    def both(wanted: str) -> bool:
        return {phase(find(cluster, name)) for name in ("on-gpu", "once")} == {wanted}

    cluster.wait_for(lambda: both("Running"), "the pods")
    cluster.reboot()
    assert cluster.node_object()["status"]["nodeInfo"]["bootID"] != boot
    cluster.wait_for(lambda: both("Failed"), "the end of what cannot start again")
    assert (find(cluster, "on-gpu") or {})["status"]["reason"] == "UnexpectedAdmissionError"
    cluster.wait_for(
        lambda: [restarts(each) for each in ready_pods(cluster, PLUGIN)] == [1], "the plugin's pod again"
    )
    assert ready_pods(cluster, PLUGIN)[0]["metadata"]["uid"] == plugin
    # From Hopper on, MIG mode does not outlive the node.
    cluster.wait_for(lambda: cluster.allocatable() == {GPU: 2, SMALL: 0}, "what the GPUs are now")


def test_the_reboot_command_reboots_the_node_and_fails_where_no_node_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SimulatedCluster(tmp_path, GPUS, delays=Delays.fast(), workloads=False)
    boot, command = cluster.gpus.boot_id, ["--state", str(cluster.gpus.path)]
    assert power.main(command) == 1
    with cluster:
        assert power.main(command) == 0
        cluster.wait_for(
            lambda: cluster.node_object()["status"]["nodeInfo"]["bootID"] != boot, "a new boot id"
        )
    assert power.main(command) == 1
    assert capsys.readouterr().err.count("Failed to talk to init daemon.") == 2


def restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
