"""The daemon does what it is permitted to do, says what it goes without, and asks for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.daemon.permissions import needs
from mig_manager.daemon.settings import load_settings
from mig_manager.simulation.api.grants import Grant
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import CLUSTER_ROLES, DEPLOYMENTS
from mig_manager.simulation.workloads import NAMESPACE as WORKLOADS
from mig_manager.simulation.world import NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, GpuNode
from tests.daemon.roles import GPU_OPERATOR, NODES, documented, rule
from tests.daemon.workloads import running, web

SMALL = [f"1g.10gb@{start}" for start in range(7)]
QUICK_RETRY = {"MIG_MANAGER_RETRY_FIRST": "0.3", "MIG_MANAGER_RETRY_LONGEST": "0.6"}


def denied(node: GpuNode) -> frozenset[tuple[str, str]]:
    return node.cluster.api.requests.denied(node.cluster.account.name)


def used(node: GpuNode) -> frozenset[tuple[str, str]]:
    return node.cluster.api.requests.used(node.cluster.account.name)


def remove_web(node: GpuNode) -> None:
    node.cluster.store.delete(DEPLOYMENTS, WORKLOADS, "web")
    node.wait(lambda: running(node, "web") is None, "the end of the pod")


def test_with_the_role_of_the_gpu_operator_it_changes_gpus_and_drains_nobody(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(grants=GPU_OPERATOR)
    layouts = tmp_path / "config.yaml"
    layouts.write_text(LAYOUTS)
    node.start(CONFIG_FILE=str(layouts), **QUICK_RETRY)
    node.becomes("small")
    assert node.instances == [SMALL, SMALL]
    assert node.allocatable == {"mig-1g.10gb": 14}
    assert node.clients_run
    assert denied(node) == frozenset()
    node.eventually(lambda: "Event Applied (only logged): small" in node.logged(), "the end in the log")
    for lacking in (
        "No permission to create pods/eviction: GPU pods are not evicted: the drain mode is off",
        "No permission to list pods: of pods outside the namespace",
        "No permission to create events in namespace default: Events are only logged",
        "No permission to list leases.coordination.k8s.io in namespace mig-manager: an edit of the layout that",
    ):
        assert lacking in node.logged()
    assert "watch pods" not in node.logged()

    name = web(node)
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "DrainRequired"
    assert "no permission to create pods/eviction, list pods (see docs/permissions.md)" in status["message"]
    assert f"{WORKLOADS}/{name}" in status["message"]
    assert not node.cordoned
    assert running(node, "web") == name
    assert node.instances == [SMALL, SMALL]
    remove_web(node)
    node.wait(lambda: node.state == "success", "the retry")
    assert denied(node) == frozenset()
    assert node.events() == []


def test_with_the_documented_rules_nothing_is_denied_and_no_verb_is_unused(make_node: MakeNode) -> None:
    grants = documented("gpu-node-1", NAMESPACE)
    node = make_node(grants=grants)
    node.start()
    node.becomes("small")
    web(node)
    node.becomes("balanced")
    node.wait_event("Applied", "balanced")
    node.set_layouts(LAYOUTS.replace('"1g.10gb": 2, "2g.20gb": 1', '"1g.10gb": 1, "2g.20gb": 1'))
    node.wait(lambda: node.allocatable.get("mig-1g.10gb") == 2 and node.state == "success", "the edit")
    assert node.terminate() == 0
    node.start()  # It reads the Node, and finds nothing to do.
    node.wait_requests(lambda each: (each.verb, each.resource) == ("get", "nodes"))
    assert denied(node) == frozenset()
    granted = {
        (verb, resource)
        for each in grants
        for rules in each.rules
        for resource in rules["resources"]
        for verb in rules["verbs"]
    }
    assert used(node) - {("create", "selfsubjectaccessreviews")} == granted
    assert "No permission" not in node.logged()


def test_pods_that_may_only_be_listed_are_drained_all_the_same_and_the_lack_is_said_in_an_event(
    make_node: MakeNode,
) -> None:
    pods = rule("list delete", "pods")
    cluster = Grant([NODES, pods, rule("create", "events", "pods/eviction")])
    node = make_node(grants=[cluster, Grant([rule("get", "configmaps")], namespace=NAMESPACE)])
    node.start()
    node.becomes("small")
    web(node)
    node.becomes("balanced")
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    node.wait_event("PermissionsMissing", "no permission to watch pods: pods are listed every 2 s")
    node.wait_event("PermissionsMissing", "no permission to list configmaps mig-manager-layouts")
    assert denied(node) == {("watch", "pods"), ("list", "configmaps"), ("watch", "configmaps")}


def test_without_the_node_nothing_is_tried_until_it_is_granted(make_node: MakeNode) -> None:
    reading = rule("get list watch", "nodes")
    everything = documented("gpu-node-1", NAMESPACE)
    others = [each for grant in everything[:1] for each in grant.rules if each["resources"] != ["nodes"]]
    node = make_node(grants=[Grant([reading]), Grant(others), *everything[1:]])
    node.label("small")
    node.start(**QUICK_RETRY)
    node.wait_event("PermissionsMissing", "no permission to patch nodes gpu-node-1: nothing can be done")
    node.eventually(lambda: "no permission to patch nodes gpu-node-1" in node.logged(), "the log line")
    assert node.state is None
    assert denied(node) == frozenset()

    def grant(role: Object) -> Object:
        return {**role, "rules": [NODES]}

    node.cluster.store.update(CLUSTER_ROLES, None, "mig-manager-0", grant)
    assert node.ended("small")["state"] == "success"
    assert "Permissions granted meanwhile: patch nodes gpu-node-1" in node.logged()


def test_between_runs_nothing_is_asked_about_permissions(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    node.becomes("small")
    node.forget()
    node.becomes("balanced")
    assert not any(each.resource == "selfsubjectaccessreviews" for each in node.cluster.api.requests.all())


@pytest.mark.parametrize(
    ("settings", "not_needed"),
    [
        ({"drain_mode": "off"}, "pods/eviction"),
        ({"drain_mode": "wait"}, "pods/eviction"),
        ({"drain_mode": "delete"}, "pods/eviction"),
        ({"config_file": "/etc/layouts.yaml"}, "configmaps"),
    ],
)
def test_what_the_settings_make_superfluous_is_not_asked_for(
    settings: dict[str, str], not_needed: str
) -> None:
    wanted = [each.permission for each in needs(load_settings(node_name="gpu-1", **settings))]
    assert not_needed not in {each.resource for each in wanted}
