"""Changes of a Node touch our own keys and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from loguru import logger

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeChange, NodeClient, newer
from mig_manager.cluster.objects import Node, NodeMeta, Taint
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.taints import without_taint
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions, watch_config_map, watch_node, watch_node_meta
from mig_manager.errors import Reason
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.apiserver import ApiServer
from tests.cluster.cluster import PATIENCE_S, Cluster


@pytest.fixture
def node(cluster: Cluster) -> NodeClient:
    return NodeClient(cluster.api, cluster.node)


def test_a_patch_sets_removes_and_leaves(node: NodeClient) -> None:
    node.patch(NodeChange(labels={"theirs": "1", "ours": "1"}, annotations={"note": "x"}, unschedulable=True))
    before = node.get()
    assert (before.unschedulable, before.meta.annotations["note"]) == (True, "x")
    after = node.patch(NodeChange(labels={"ours": None}, annotations={"note": "y", "new": "z"}))
    assert (after.meta.labels["theirs"], "ours" in after.meta.labels) == ("1", False)
    assert (after.meta.annotations["note"], after.meta.annotations["new"]) == ("y", "z")
    assert after.unschedulable
    assert not node.patch(NodeChange(unschedulable=False)).unschedulable


def test_an_empty_change_writes_nothing(node: NodeClient) -> None:
    before = node.get()
    assert node.patch(NodeChange()).meta.resource_version == before.meta.resource_version
    assert node.update(lambda _: None, deadline=Deadline.after(PATIENCE_S)) == before


def test_two_changes_in_one_the_later_wins() -> None:
    first = NodeChange(labels={"a": "1", "b": "1"}, unschedulable=True)
    second = NodeChange(labels={"b": None}, annotations={"c": "1"})
    assert (first | second).as_patch() == {
        "metadata": {"labels": {"a": "1", "b": None}, "annotations": {"c": "1"}},
        "spec": {"unschedulable": True},
    }
    assert (first | NodeChange(unschedulable=False)).unschedulable is False


def test_an_update_is_never_based_on_an_old_version(node: NodeClient) -> None:
    """Another writer changes the node between our read and our patch, twice."""
    seen: list[str] = []

    def count(now: Node) -> NodeChange:
        value = now.meta.labels.get("count", "0")
        seen.append(value)
        if len(seen) < 3:
            node.patch(NodeChange(labels={"count": str(int(value) + 10)}))
        return NodeChange(labels={"count": str(int(value) + 1)})

    after = node.update(count, deadline=Deadline.after(PATIENCE_S))
    assert seen == ["0", "10", "20"]
    assert after.meta.labels["count"] == "21"


def test_metadata_that_was_seen_is_enough_for_a_first_change(node: NodeClient, simulation: ApiServer) -> None:
    """One request; two more where the Node has changed since, and none that writes where nothing is to be written."""

    def claim(meta: NodeMeta) -> NodeChange:
        return NodeChange() if "owner" in meta.labels else NodeChange(labels={"owner": "me"})

    seen = node.get().meta
    simulation.requests.clear()
    assert node.open(claim, seen, deadline=Deadline.after(PATIENCE_S)).meta.labels["owner"] == "me"
    assert [each.verb for each in simulation.requests.all() if each.resource == "nodes"] == ["patch"]

    simulation.requests.clear()
    again = node.open(claim, seen, deadline=Deadline.after(PATIENCE_S))
    assert again.meta.labels["owner"] == "me"
    assert [each.verb for each in simulation.requests.all() if each.resource == "nodes"] == ["patch", "get"]


def test_the_newer_of_two_versions_is_taken_only_where_that_can_be_told() -> None:
    def version(number: str, uid: str = "u") -> Node:
        return Node.from_json({"metadata": {"name": "n", "uid": uid, "resourceVersion": number}})

    nine, ten = version("9"), version("10")
    assert newer(nine, ten) is newer(ten, nine) is ten
    for other in (None, version("x1"), version("11", uid="another")):
        assert newer(nine, other) is nine


def test_a_node_that_does_not_exist_is_named(api: Api) -> None:
    with pytest.raises(ApiError, match='404: nodes "no-such-node" not found') as caught:
        NodeClient(api, "no-such-node").get(deadline=Deadline.after(PATIENCE_S))
    assert caught.value.status == 404


def test_the_status_of_a_node_is_read(cluster: Cluster, node: NodeClient) -> None:
    status = {
        "capacity": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2", "example.com/many": "2k"},
        "allocatable": {"cpu": "7500m", "memory": "15Gi", "nvidia.com/gpu": "1"},
        "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z", "reason": "x"}
        ],
        "nodeInfo": {"bootID": "boot-1"},
    }
    cluster.api.patch(f"/api/v1/nodes/{cluster.node}/status", {"status": status})
    seen = node.get()
    assert seen.capacity == {"nvidia.com/gpu": 2, "example.com/many": 2000}
    assert seen.allocatable == {"nvidia.com/gpu": 1}
    assert seen.heartbeat is not None
    assert seen.heartbeat.isoformat() == "2026-01-02T03:04:05+00:00"


def test_a_label_change_arrives_by_the_watches(cluster: Cluster, node: NodeClient, signal: Signal) -> None:
    with (
        watch_node_meta(cluster.api, cluster.node, signal) as meta,
        watch_node(cluster.api, cluster.node, signal) as whole,
    ):
        node.patch(NodeChange(labels={"nvidia.com/mig.config": "all-1g.10gb"}))

        def seen() -> bool:
            return (
                meta.sole is not None
                and whole.sole is not None
                and meta.sole == whole.sole.meta
                and meta.sole.labels.get("nvidia.com/mig.config") == "all-1g.10gb"
            )

        signal.wait_for(seen, Deadline.after(PATIENCE_S), "not seen", reason=Reason.API_ERROR)


def test_a_config_map_is_followed_through_edit_and_deletion(cluster: Cluster, signal: Signal) -> None:
    with watch_config_map(cluster.api, cluster.namespace, "layouts", signal) as watch:
        watch.wait_synced(Deadline.after(PATIENCE_S))
        assert watch.sole is None
        cluster.create("configmaps", {"metadata": {"name": "layouts"}, "data": {"config.yaml": "one"}})
        cluster.api.patch(cluster.path("configmaps", "layouts"), {"data": {"config.yaml": "two"}})
        signal.wait_for(
            lambda: watch.sole is not None and watch.sole.data["config.yaml"] == "two",
            Deadline.after(PATIENCE_S),
            "the edit was not seen",
            reason=Reason.API_ERROR,
        )
        cluster.api.delete(cluster.path("configmaps", "layouts"))
        signal.wait_for(
            lambda: watch.sole is None,
            Deadline.after(PATIENCE_S),
            "the deletion was not seen",
            reason=Reason.API_ERROR,
        )


def test_an_old_version_is_recovered_from(simulation: ApiServer, cluster: Cluster, signal: Signal) -> None:
    """The server forgets its history while the stream is down; the change in between is seen all the same."""
    with watch_node_meta(cluster.api, cluster.node, signal, WatchOptions(shortest_backoff_s=0.3)) as watch:
        watch.wait_synced(Deadline.after(PATIENCE_S))
        assert simulation.requests.wait_for(
            lambda request: request.query.get("watch") == "true" and cluster.node in str(request.query),
            PATIENCE_S,
        )
        simulation.disturb_watches("cut", cluster.node)
        NodeClient(cluster.api, cluster.node).patch(NodeChange(labels={"seen": "yes"}))
        simulation.store.compact()
        signal.wait_for(
            lambda: watch.sole is not None and watch.sole.labels.get("seen") == "yes",
            Deadline.after(PATIENCE_S),
            "not seen",
            reason=Reason.API_ERROR,
        )


def test_an_event_stands_on_the_node(cluster: Cluster, node: NodeClient) -> None:
    recorder = EventRecorder(cluster.api, cluster.node)
    recorder.node_uid = node.get().meta.uid
    recorder.record("Warning", "UnknownLayout", "There is no layout nope. " + "x" * 2000)
    recorder.close(PATIENCE_S)
    query = {"fieldSelector": f"involvedObject.kind=Node,involvedObject.uid={recorder.node_uid}"}
    (event,) = cluster.api.get(collection_path("events"), query)["items"]
    assert (event["type"], event["reason"], event["involvedObject"]["name"]) == (
        "Warning",
        "UnknownLayout",
        cluster.node,
    )
    assert event["message"].startswith("There is no layout nope.")
    assert len(event["message"]) == 1024


def test_an_event_that_comes_again_is_counted_and_tells_the_latest(
    simulation: ApiServer, cluster: Cluster
) -> None:
    recorder = EventRecorder(cluster.api, cluster.node)
    for at in ("2026-03-01T12:00:00Z", "2026-03-01T12:05:00Z"):
        recorder.run = at
        recorder.record("Warning", "DrainTimeout", f"small: a pod stays. Next attempt at {at}.")
    recorder.record("Warning", "DrainTimeout", "small: another pod stays.")
    recorder.close(PATIENCE_S)
    query = {"fieldSelector": f"involvedObject.uid={cluster.node}"}
    events = cluster.api.get(collection_path("events"), query)["items"]
    told = {
        (each["message"], each["count"], each["metadata"]["annotations"]["mig-manager/run"])
        for each in events
    }
    second = "2026-03-01T12:05:00Z"
    assert told == {
        (f"small: a pod stays. Next attempt at {second}.", 2, second),
        ("small: another pod stays.", 1, second),
    }


@pytest.mark.parametrize("status", [403, 404])
def test_an_event_that_cannot_be_counted_is_made_anew(
    simulation: ApiServer, cluster: Cluster, status: int
) -> None:
    simulation.faults.add(Fault("PATCH", "/events", status=status, times=None))
    recorder = EventRecorder(cluster.api, cluster.node)
    for _ in range(3):
        recorder.record("Normal", "Applied", "small")
    recorder.close(PATIENCE_S)
    query = {"fieldSelector": f"involvedObject.uid={cluster.node}"}
    events = cluster.api.get(collection_path("events"), query)["items"]
    assert [each["count"] for each in events] == [1, 1, 1]


def test_a_namespace_that_takes_no_events_hinders_none_on_the_node(
    simulation: ApiServer, cluster: Cluster
) -> None:
    """One that is being deleted refuses whatever is created in it."""
    simulation.faults.add(Fault("POST", f"/{cluster.namespace}/events", status=403, times=None))
    pod = cluster.run_pod("web")
    recorder = EventRecorder(cluster.api, cluster.node)
    recorder.record_on_pod(
        pod, "EvictedForRepartition", "evicted so that GPU 0 can be re-partitioned to small"
    )
    recorder.record("Normal", "Applied", "small")
    recorder.close(PATIENCE_S)
    query = {"fieldSelector": f"involvedObject.uid={cluster.node}"}
    (event,) = cluster.api.get(collection_path("events"), query)["items"]
    assert event["reason"] == "Applied"


def test_an_event_outlives_trouble_and_the_interrupts_of_a_run(
    simulation: ApiServer, cluster: Cluster, kubeconfig: Path
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    simulation.faults.add(Fault("POST", "/events", status=503))
    with Api.connect(kubeconfig, pause=interrupt) as api:
        recorder = EventRecorder(api, cluster.node)
        recorder.record("Normal", "Reconfigured", "All is well.")
        recorder.close(PATIENCE_S)
    query = {"fieldSelector": f"involvedObject.uid={cluster.node}"}
    (event,) = cluster.api.get(collection_path("events"), query)["items"]
    assert event["message"] == "All is well."


def test_events_that_are_forbidden_are_only_logged_from_then_on(
    simulation: ApiServer, cluster: Cluster
) -> None:
    simulation.faults.add(Fault("POST", "/events", status=403, times=None))
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    simulation.requests.clear()
    recorder = EventRecorder(cluster.api, cluster.node)
    recorder.record("Normal", "First", "one")
    assert simulation.requests.wait_for(lambda each: each.path.endswith("/events"), PATIENCE_S)
    cluster.signal.wait(lambda: len(lines) > 0, Deadline.after(PATIENCE_S), every=0.02)
    recorder.record("Normal", "Second", "two")
    recorder.close(PATIENCE_S)
    logger.remove(handler)
    assert "could not be recorded (First)" in lines[0]
    assert lines[1:] == ["Event Second (only logged): two"]
    assert sum(each.path.endswith("/events") for each in simulation.requests.all()) == 1


def test_events_that_cannot_be_recorded_hold_nobody_up(simulation: ApiServer, cluster: Cluster) -> None:
    simulation.faults.add(Fault("POST", "/events", how="silent", times=None))
    recorder = EventRecorder(cluster.api, cluster.node)
    began = time.monotonic()
    for number in range(500):
        recorder.record("Normal", "Progress", f"step {number}")
    recorder.close(0.1)
    assert time.monotonic() - began < 30  # Less than 0.1 s an Event: it does not wait for an answer.


def test_a_change_for_one_node_is_refused_by_another_of_its_name(node: NodeClient) -> None:
    uid = node.get().meta.uid
    assert node.patch(NodeChange(labels={"ours": "1"}), uid=uid).meta.labels["ours"] == "1"
    deadline = Deadline.after(120)
    began = time.monotonic()
    change = NodeChange(labels={"ours": "2"})
    with pytest.raises(ApiError):
        node.patch(change, uid="other", deadline=deadline)
    with pytest.raises(ApiError):
        node.update(lambda _: change, uid="other", deadline=deadline)
    assert time.monotonic() - began < 60  # It is not tried again until the deadline.
    assert node.get().meta.labels["ours"] == "1"


def test_only_the_taints_of_that_key_are_taken_off(node: NodeClient) -> None:
    kept = (Taint("theirs", "x", "NoSchedule"), Taint("evicts", "", "NoExecute", "2026-03-01T12:00:00Z"))
    ours = (Taint("ours", "", "NoSchedule"), Taint("ours", "1", "PreferNoSchedule"))

    def take_off(now: Node) -> NodeChange:
        return without_taint(now, "ours")

    node.patch(NodeChange(taints=(*kept, *ours)))
    deadline = Deadline.after(PATIENCE_S)
    assert set(kept) <= set(node.update(take_off, deadline=deadline).taints)
    before = node.get()
    assert "ours" not in {each.key for each in before.taints}
    assert not take_off(before)
    assert not node.patch(NodeChange(taints=ours)).unschedulable
    assert "ours" not in {each.key for each in node.update(take_off, deadline=deadline).taints}
