"""Which pods count as being on the GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.cluster.objects import Owner, Pod
from mig_manager.cluster.pods import name_pods, stays, unknown_to_kubelet, uses_gpu
from tests.cluster.cluster import Cluster

JsonObject = dict[str, Any]


def pod(spec: JsonObject | None = None, phase: str = "Running", **meta: Any) -> Pod:
    return Pod.from_json(
        {
            "metadata": {"namespace": "ml", "name": "job", "uid": "u", **meta},
            "spec": {"nodeName": "gpu-1", "containers": [{"name": "main"}], **(spec or {})},
            "status": {"phase": phase},
        }
    )


def asking(part: str, where: str, name: str, amount: str | int) -> JsonObject:
    return {where: [{"name": "x"}, {"name": "y", "resources": {part: {name: amount}}}]}


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize("part", ["requests", "limits"])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/mig-1g.10gb.shared", True),
        ("nvidia.com/mig-1c.3g.20gb", True),
        ("nvidia.com/rdma", False),
        ("example.com/nvidia.com-gpu", False),
        ("cpu", False),
    ],
)
def test_a_gpu_resource_counts_wherever_it_is_asked_for(
    where: str, part: str, name: str, counts: bool
) -> None:
    assert uses_gpu(pod(asking(part, where, name, "1"))) is counts


@pytest.mark.parametrize("amount", ["0", 0])
def test_an_amount_of_zero_does_not_count(amount: str | int) -> None:
    assert not uses_gpu(pod(asking("limits", "containers", "nvidia.com/gpu", amount)))


@pytest.mark.parametrize(
    ("phase", "counts"),
    [("Pending", True), ("Running", True), ("Unknown", True), ("Succeeded", False), ("Failed", False)],
)
def test_finished_pods_do_not_count(phase: str, counts: bool) -> None:
    assert uses_gpu(pod(asking("limits", "containers", "nvidia.com/gpu", "1"), phase)) is counts


def test_renamed_resources_count_by_pattern() -> None:
    one = pod(asking("limits", "containers", "acme.io/a100", "1"))
    assert uses_gpu(one, ("acme.io/*",))
    assert not uses_gpu(one)


def controlled_by(kind: str, controller: bool = True) -> JsonObject:
    return {"ownerReferences": [{"kind": kind, "name": "o", "uid": "o", "controller": controller}]}


@pytest.mark.parametrize(
    ("meta", "owner", "bare", "left"),
    [
        ({}, None, True, False),
        (controlled_by("ReplicaSet", controller=False), None, True, False),
        (controlled_by("Job"), Owner("Job", "o"), False, False),
        (controlled_by("DaemonSet"), Owner("DaemonSet", "o"), False, True),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, None, False, True),
    ],
)
def test_owners_decide_who_may_go(meta: JsonObject, owner: Owner | None, bare: bool, left: bool) -> None:
    one = pod(**meta)
    assert (one.owner, one.bare, stays(one)) == (owner, bare, left)


def test_the_grace_period_is_the_one_that_is_running() -> None:
    assert pod().grace_s == 30
    assert pod({"terminationGracePeriodSeconds": 0}).grace_s == 0
    assert pod({"terminationGracePeriodSeconds": 90}, deletionGracePeriodSeconds=5).grace_s == 5


def test_the_pods_of_a_node_are_followed_with_those_the_kubelet_has_not_seen(cluster: Cluster) -> None:
    cluster.run_pod("started")
    spec: JsonObject = {"nodeName": cluster.node, "containers": [{"name": "main", "image": "none"}]}
    cluster.create("pods", {"metadata": {"name": "bound"}, "spec": spec})
    spec["nodeName"] = "another-node"
    cluster.create("pods", {"metadata": {"name": "elsewhere"}, "spec": spec})
    with cluster.watching() as pods:
        assert sorted(one.name for one in pods.objects.values()) == ["bound", "started"]
        assert [one.name for one in unknown_to_kubelet(pods.objects.values())] == ["bound"]


def test_many_pods_are_named_in_short() -> None:
    many = [pod(name=f"job-{number}") for number in range(8)]
    assert name_pods(many, 2) == "ml/job-0, ml/job-1 and 6 more"
    assert name_pods(many[:2]) == "ml/job-0, ml/job-1"
