"""Who has to go for a change, beyond pods that ask for GPUs, and who is told that he is in the way."""

from __future__ import annotations

from typing import Any

from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)
from mig_manager.simulation.workloads import NAMESPACE, claim_template, claiming, deployment, pod_spec
from tests.daemon.conftest import MakeNode
from tests.daemon.node import OPERATOR, GpuNode
from tests.daemon.workloads import QUICK, mark_stuck, running, stick_operand, web
from tests.shipped import component_verbs

JOURNAL = "mig-manager/journal"

SMALL = [f"1g.10gb@{start}" for start in range(7)]
CLIENT = "nvidia.com/gpu.deploy.client"


def daemon_set(node: GpuNode, name: str, resources: dict[str, int], **spec: Any) -> str:
    """A DaemonSet of a user; gives the name of its pod once that runs."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec("example/image", resources, **spec)}
    body = {"selector": {"matchLabels": labels}, "template": template}
    node.cluster.store.create(DAEMON_SETS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": body})
    return str(node.wait(lambda: running(node, name), name))


def process_of(node: GpuNode, pod: str, gpu: int) -> int:
    """A process of a pod on the first instance of a GPU, which the pod has not asked for."""
    uid = node.pods()[pod]["metadata"]["uid"].replace("-", "_")
    cgroup = f"/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{'0' * 64}.scope"
    instance = node.cluster.gpus.snapshot()["gpus"][gpu]["instances"][0]
    return node.cluster.gpus.add_process(
        gpu, instance["id"], 0, pid=9_000_001, name="python", kind="handle", cgroup=cgroup
    )


def test_pods_with_claims_are_drained_before_the_dra_driver_goes_and_its_slices_are_waited_for(
    make_node: MakeNode,
) -> None:
    node = make_node(dra=True, rules=["dra"])
    node.start(MIG_MANAGER_EVICT_BARE_PODS="true")
    node.becomes("small")
    node.cluster.store.create(RESOURCE_CLAIM_TEMPLATES, claim_template("one", "mig.nvidia.com"))
    for number in range(2):
        node.cluster.store.create(PODS, claiming(f"job-{number}", template="one"))
    node.wait(lambda: running(node, "job-0") and running(node, "job-1"), "the pods")
    paused: list[bool] = []
    node.cluster.store.subscribe(
        lambda change: (
            paused.append(PAUSED in node.deploy_labels.values())
            if change.resource is PODS
            and change.type == "DELETED"
            and change.object["spec"].get("resourceClaims")
            else None
        )
    )
    node.becomes("one-gpu")  # GPU 0 stays as it is, and so does whoever is on it.
    kept = set(node.pods())
    node.becomes("all-disabled")
    assert node.pods() == {}
    assert node.instances == [["off"], ["off"]]
    assert paused
    assert not any(paused)
    assert kept <= {"job-0", "job-1"}
    devices = [
        each["name"] for one in node.cluster.store.list(RESOURCE_SLICES)[0] for each in one["spec"]["devices"]
    ]
    assert devices == ["gpu-0", "gpu-1"]
    assert node.clients_run
    assert node.used >= component_verbs("dra")


def test_a_pod_that_holds_a_gpu_without_asking_for_one_is_evicted(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    node.becomes("small")
    node.cluster.store.create(DEPLOYMENTS, deployment("sneaky", 1, pod_spec("example/image", {})))
    name = str(node.wait(lambda: running(node, "sneaky"), "the pod"))
    job = process_of(node, name, 1)
    node.label("one-gpu")
    node.wait(lambda: name not in node.pods(), "the eviction")
    node.cluster.gpus.remove_process(job)
    assert node.ended("one-gpu")["state"] == "success"
    node.wait_event("Drained", f"gone: {NAMESPACE}/{name}")


def test_a_daemon_set_on_a_gpu_that_changes_is_named_before_anybody_goes(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK)
    node.becomes("small")
    name = daemon_set(node, "agent", {"nvidia.com/mig-1g.10gb": 14})
    status = node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("DrainRequired", "Draining")
    assert f"{NAMESPACE}/{name}" in status["message"]
    assert f"node selector {CLIENT}" in status["message"]
    assert node.instances == [SMALL, SMALL]
    assert not node.cordoned
    assert name in node.pods()


def test_a_daemon_set_that_has_a_gpu_open_for_a_moment_is_waited_for(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_HOLDER_WINDOW": "60"})
    node.becomes("small")
    name = daemon_set(node, "monitor", {})
    job = process_of(node, name, 1)
    node.label("one-gpu")
    node.wait(lambda: node.status.get("phase") == "Draining", "the look at processes")
    assert node.instances == [SMALL, SMALL]
    node.cluster.gpus.remove_process(job)
    assert node.ended("one-gpu")["state"] == "success"
    assert name in node.pods()


def test_clients_of_others_are_paused_by_the_label_that_they_go_by(make_node: MakeNode) -> None:
    node = make_node()
    node.patch_node(labels={CLIENT: "true"})
    monitor = daemon_set(node, "monitor", {}, nodeSelector={CLIENT: "true"})
    spec = pod_spec("example/image", {}, nodeSelector={CLIENT: "true"})
    node.cluster.store.create(DEPLOYMENTS, deployment("exporter", 1, spec))
    exporter = str(node.wait(lambda: running(node, "exporter"), "exporter"))
    node.start()
    node.becomes("small")
    assert monitor not in node.pods()
    assert exporter not in node.pods()
    assert node.labels[CLIENT] == "true"
    node.wait(lambda: running(node, "monitor"), "the monitor to be back")


def test_a_pod_that_does_not_end_but_holds_nothing_is_not_waited_for(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK)
    node.becomes("small")
    name = web(node)
    mark_stuck(node, NAMESPACE, name, "volume")
    node.becomes("balanced")
    assert "deletionTimestamp" in node.pods()[name]["metadata"]
    assert f"pod {NAMESPACE}/{name} does not end, but holds no GPU any more" in node.logged()
    node.wait_event("Drained", f"do not end, but hold no GPU any more: {NAMESPACE}/{name}")
    mark_stuck(node, NAMESPACE, name, None)


def test_a_cordon_that_somebody_takes_off_is_set_again_before_the_gpus_change(make_node: MakeNode) -> None:
    node = make_node()
    node.patch_node(unschedulable=True)  # An admin's, who changes his mind later on.
    stuck = stick_operand(node)
    node.start()
    node.label("small")
    node.wait(lambda: PAUSED in node.deploy_labels.values(), "the pause")
    node.patch_node(unschedulable=False)
    mark_stuck(node, OPERATOR, stuck, None)
    assert node.ended("small")["state"] == "success"
    applying = [each for each in node.history.versions if each.phase == "Applying"]
    assert applying
    assert all(each.cordoned for each in applying)
    assert not node.cordoned


def test_a_node_whose_run_somebody_has_put_back_by_hand_is_never_cordoned_without_a_journal(
    make_node: MakeNode,
) -> None:
    """Whoever takes the journal off a Node has the daemon for dead; a cordon without one would stay for ever."""
    node = make_node()
    stuck = stick_operand(node)
    node.start()
    node.label("small")
    node.wait(lambda: PAUSED in node.deploy_labels.values(), "the pause")
    node.patch_node(annotations={JOURNAL: None}, unschedulable=False)
    mark_stuck(node, OPERATOR, stuck, None)
    assert node.ended("small")["state"] == "success"
    assert any(each.phase == "Applying" and each.cordoned for each in node.history.versions)
    assert all(each.journal for each in node.history.versions if each.cordoned)
    assert not node.cordoned
