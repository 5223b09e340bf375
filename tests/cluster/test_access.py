"""What an account may do is asked of the API server, and what it may not is done without where that is possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mig_manager.cluster.access import Permission, denied
from mig_manager.cluster.client import collection_path
from mig_manager.cluster.eviction import evict
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions, watch_config_map, watch_node_meta, watch_pods
from mig_manager.errors import Reason
from tests.cluster.accounts import Account
from tests.cluster.cluster import PATIENCE_S, Cluster

OFTEN = WatchOptions(poll_s=0.05)


def soon(signal: Signal, look: Callable[[], bool]) -> None:
    signal.wait_for(look, Deadline.after(PATIENCE_S), "it was not seen", reason=Reason.API_ERROR)


def test_the_answer_tells_verb_resource_namespace_and_name_apart(account: Account, cluster: Cluster) -> None:
    account.may("get", "patch", resource="nodes", name=cluster.node, everywhere=True)
    account.may("list", resource="pods")
    account.may("create", resource="pods/eviction", everywhere=True)
    own = cluster.namespace
    granted = {
        Permission("get", "nodes", name=cluster.node),
        Permission("list", "pods", namespace=own),
        Permission("create", "pods/eviction"),
        Permission("create", "pods/eviction", namespace=own),
    }
    refused = {
        Permission("get", "nodes"),
        Permission("patch", "nodes", name="another"),
        Permission("delete", "nodes", name=cluster.node),
        Permission("list", "pods"),
        Permission("watch", "pods", namespace=own),
        Permission("create", "pods"),
        Permission("create", "leases", group="coordination.k8s.io", namespace=own),
    }
    assert denied(account.api, granted | refused, deadline=Deadline.after(PATIENCE_S)) == refused


def test_who_may_can_ask_about_another_account(account: Account, cluster: Cluster) -> None:
    account.may("get", resource="nodes", everywhere=True)
    user = f"system:serviceaccount:{cluster.namespace}:tested"
    wanted = {Permission("get", "nodes"), Permission("list", "pods")}
    soon = Deadline.after(PATIENCE_S)
    assert denied(cluster.api, wanted, deadline=soon, user=user) == {Permission("list", "pods")}
    with pytest.raises(ApiError, match="cannot create resource"):
        denied(account.api, wanted, deadline=soon, user=user)


def test_a_refusal_says_who_may_not_do_what(account: Account, cluster: Cluster) -> None:
    account.may("get", resource="nodes", everywhere=True)
    node = NodeClient(account.api, cluster.node)
    node.get()
    with pytest.raises(ApiError) as caught:
        node.patch(NodeChange(labels={"a": "b"}))
    assert (caught.value.status, caught.value.status_reason) == (403, "Forbidden")
    user = f"system:serviceaccount:{cluster.namespace}:tested"
    assert caught.value.message.endswith(
        f'nodes "{cluster.node}" is forbidden: User "{user}" cannot patch resource "nodes" in API group "" at '
        "the cluster scope"
    )


def test_the_name_of_a_field_selector_counts_as_the_name_of_the_object(
    account: Account, cluster: Cluster, signal: Signal
) -> None:
    """So rules with resourceNames are enough to follow our own Node and our own ConfigMap."""
    account.may("list", "watch", resource="nodes", name=cluster.node, everywhere=True)
    with watch_node_meta(account.api, cluster.node, signal) as watch:
        watch.wait_synced(Deadline.after(PATIENCE_S))
        NodeClient(cluster.api, cluster.node).patch(NodeChange(labels={"seen": "yes"}))
        soon(signal, lambda: watch.sole is not None and watch.sole.labels.get("seen") == "yes")
    with pytest.raises(ApiError, match="at the cluster scope"):
        account.api.get(collection_path("nodes"))


@pytest.mark.parametrize("verb", ["list", "get"])
def test_a_config_map_that_may_only_be_read_is_followed(
    account: Account, cluster: Cluster, signal: Signal, verb: str
) -> None:
    account.may(verb, resource="configmaps", name="layouts")
    with watch_config_map(account.api, cluster.namespace, "layouts", signal, OFTEN) as watch:
        watch.wait_synced(Deadline.after(PATIENCE_S))
        assert watch.sole is None
        cluster.create("configmaps", {"metadata": {"name": "layouts"}, "data": {"config.yaml": "one"}})
        soon(signal, lambda: watch.sole is not None and watch.sole.data["config.yaml"] == "one")
        cluster.api.patch(cluster.path("configmaps", "layouts"), {"data": {"config.yaml": "two"}})
        soon(signal, lambda: watch.sole is not None and watch.sole.data["config.yaml"] == "two")
        cluster.api.delete(cluster.path("configmaps", "layouts"))
        soon(signal, lambda: watch.sole is None)


def test_pods_that_may_only_be_listed_in_one_namespace_are_followed(
    account: Account, cluster: Cluster, signal: Signal
) -> None:
    account.may("list", "delete", resource="pods")
    pod = cluster.run_pod("train")
    with (
        watch_pods(account.api, cluster.node, signal, OFTEN) as everywhere,
        pytest.raises(ApiError, match=r'403: pods is forbidden.* cannot list resource "pods"'),
    ):
        everywhere.wait_synced(Deadline.after(PATIENCE_S))
    refusal = evict(account.api, pod, grace_s=None, rehearsal=False)
    assert refusal is not None
    assert refusal.final
    assert 'cannot create resource "pods/eviction"' in refusal.obstacle
    with watch_pods(account.api, cluster.node, signal, OFTEN, namespace=cluster.namespace) as pods:
        pods.wait_synced(Deadline.after(PATIENCE_S))
        assert [each.name for each in pods.objects.values()] == ["train"]
        account.api.delete(cluster.path("pods", "train"))
        soon(signal, lambda: not pods.objects)
