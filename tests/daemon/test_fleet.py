"""A node that is one of many: it waits for its turn, and for the time at which it may be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.resources import LEASES, NODES
from mig_manager.simulation.world import NAMESPACE
from tests.daemon.node import LAYOUTS, GpuNode
from tests.daemon.workloads import guard, made_as_new, unguard

SMALL = [f"1g.10gb@{start}" for start in range(7)]
THREE = ["1g.10gb@0", "1g.10gb@1", "1g.10gb@2"]
EDITED = LAYOUTS.replace('{"1g.10gb": 7}', '{"1g.10gb": 3}')
ONE = {"MIG_MANAGER_MAX_PARALLEL_NODES": "1"}
SLOT = "mig-manager-slot-0"
JOURNAL = "mig-manager/journal"

Start = Callable[..., GpuNode]


@pytest.fixture
def start(used_node: GpuNode) -> Iterator[Start]:
    """Gives a node with layout `small`, and a daemon with these settings on it."""

    def begin(**settings: str) -> GpuNode:
        if used_node.runs:
            used_node.terminate()
        node = made_as_new(used_node, settings)
        node.eventually(lambda: node.instances == [SMALL, SMALL], "the layout from before an edit")
        node.becomes("small")
        node.cluster.wait_ready()
        node.wait(lambda: not leases(node), "the slot of that to be given back")
        node.forget()
        return node

    yield begin
    free(used_node)
    used_node.patch_node(annotations={"mig-manager/ignore-windows": None})


def taken(node: GpuNode) -> None:
    """Another node has the first slot, and renews it no more, for the minute that it has."""
    spec = {"holderIdentity": "gpu-7", "leaseDurationSeconds": 600}
    labels = {"mig-manager/lease": "slot", "mig-manager/pool": ""}
    node.cluster.store.create(
        LEASES, {"metadata": {"name": SLOT, "namespace": NAMESPACE, "labels": labels}, "spec": spec}
    )


def free(node: GpuNode) -> None:
    node.cluster.store.delete(LEASES, NAMESPACE, SLOT)


def leases(node: GpuNode) -> dict[str, str]:
    """Names and holders."""
    return {
        each["metadata"]["name"]: each["spec"]["holderIdentity"]
        for each in node.cluster.store.list(LEASES, NAMESPACE)[0]
    }


def waits(node: GpuNode, phase: str = "WaitingForSlot") -> str:
    """Wait until the node waits; gives its words for it."""
    message: str = node.wait(
        lambda: node.status.get("phase") == phase and node.status.get("message"), "the wait"
    )
    assert node.state == "pending"
    return message


class Order:
    """Slot and cordon as they come and go."""

    def __init__(self, node: GpuNode) -> None:
        self.seen: list[str] = []
        self._cordoned = False
        self.leave = node.cluster.store.subscribe(self._take)

    def _take(self, change: Change) -> None:
        obj: Object = change.object
        if change.resource == LEASES and obj["metadata"]["name"] == SLOT and change.type != "MODIFIED":
            self.seen.append("slot taken" if change.type == "ADDED" else "slot given back")
        cordoned = change.resource == NODES and bool(obj["spec"].get("unschedulable"))
        if change.resource == NODES and cordoned != self._cordoned:
            self._cordoned = cordoned
            self.seen.append("cordoned" if cordoned else "uncordoned")


def test_a_run_waits_for_its_slot_untouched_and_holds_it_around_the_cordon(start: Start) -> None:
    node = start(**ONE)
    taken(node)
    order = Order(node)
    node.label("balanced")
    assert waits(node) == "waiting for a slot: 1 of 1 in use by gpu-7"
    node.wait_event("WaitingForSlot", "waiting for a slot: 1 of 1 in use by gpu-7")
    node.eventually(
        lambda: not node.cluster.gpus.sessions(), "the end of the worker: a driver may be exchanged"
    )
    assert not node.history.touched
    free(node)
    assert node.ended("balanced")["state"] == "success"
    node.wait(lambda: order.seen[2:] and order.seen[-1] == "slot given back", "the slot to be given back")
    order.leave()
    assert leases(node) == {}
    assert order.seen == ["slot given back", "slot taken", "cordoned", "uncordoned", "slot given back"]


def test_a_wait_ends_with_another_layout_and_leaves_the_queue(start: Start) -> None:
    node = start(**ONE)
    taken(node)
    node.label("balanced")
    waits(node)
    node.wait(lambda: f"mig-manager-place-{node.cluster.node}" in leases(node), "a place in the queue")
    node.label("small")
    assert node.ended("small")["state"] == "success"
    node.wait(lambda: leases(node) == {SLOT: "gpu-7"}, "the place to be given up")
    assert not node.history.touched


def test_a_daemon_that_is_asked_to_end_while_it_waits_has_nothing_to_undo(start: Start) -> None:
    node = start(**ONE)
    taken(node)
    node.label("balanced")
    waits(node)
    assert node.terminate() == 0
    assert leases(node) == {SLOT: "gpu-7"}
    assert (node.state, node.status["reason"]) == ("failed", "Interrupted")
    assert not node.history.touched


def test_a_wait_that_takes_too_long_fails_and_is_begun_again(start: Start) -> None:
    node = start(MIG_MANAGER_SLOT_TIMEOUT="0.5", MIG_MANAGER_RETRY_FIRST="1", **ONE)
    taken(node)
    node.label("balanced")
    status = node.ended("balanced")
    assert (status["reason"], status["phase"]) == ("SlotTimeout", "WaitingForSlot")
    assert status["message"] == "No fleet slot was free for 0.5 s: 1 of 1 in use by gpu-7."
    assert "nextRetryAt" in status
    free(node)
    node.wait(lambda: node.state == "success", "the retry")


def test_without_a_limit_a_label_needs_no_slot_but_an_edit_does(start: Start) -> None:
    node = start()
    taken(node)
    node.becomes("balanced")
    node.becomes("small")
    assert not any(each.resource == "leases" for each in node.cluster.api.requests.all())
    node.set_layouts(EDITED)
    assert waits(node) == "waiting for a slot: 1 of 1 in use by gpu-7"
    assert node.instances == [SMALL, SMALL]
    node.kill()
    node.forget()
    node.start()  # The update of all daemons at once must not set free what waits.
    node.wait_event("WaitingForSlot", "in use by gpu-7")
    free(node)
    node.wait(lambda: node.state == "success", "the edited layout")
    assert node.instances == [THREE, THREE]
    assert "edited" not in node.status


def test_an_edit_is_only_reported_where_leases_are_not_permitted_unless_set_otherwise(start: Start) -> None:
    node = start()
    before = node.status
    node.cluster.api.faults.add(Fault(path="/leases", status=403, times=None))
    node.set_layouts(EDITED)
    node.wait_event("EditNotApplied", "one node at a time needs Leases, which are not permitted")
    assert (node.state, node.status["hash"]) == ("success", before["hash"])
    assert "The layout was edited; the GPUs are as it was before." in node.status["message"]
    assert node.instances == [SMALL, SMALL]
    assert not node.history.touched
    node.terminate()
    node.forget()
    node.start(MIG_MANAGER_EDITED_LAYOUTS="report")
    node.wait_event("EditNotApplied", "MIG_MANAGER_EDITED_LAYOUTS=report")
    node.terminate()
    node.start(MIG_MANAGER_EDITED_LAYOUTS="always")
    node.wait(lambda: node.status["hash"] != before["hash"] and node.state == "success", "the edited layout")
    assert node.instances == [THREE, THREE]


def test_a_limit_without_permission_for_leases_is_a_failure(start: Start) -> None:
    node = start(MIG_MANAGER_RETRY_FIRST="600", **ONE)
    node.cluster.api.faults.add(Fault(path="/leases", status=403, times=None))
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "ApiError"
    assert "A limit on nodes that change at once needs Leases" in status["message"]
    assert not node.history.touched


def test_a_node_is_changed_in_a_maintenance_window_or_when_its_annotation_says_so(start: Start) -> None:
    far = (datetime.now(UTC).hour + 12) % 24
    node = start()
    node.terminate()
    node.start(MIG_MANAGER_MAINTENANCE_WINDOWS=f'["30 {far} * * * 1h"]')
    node.label("balanced")
    message = waits(node, "WaitingForWindow")
    assert "waiting for a maintenance window: the next one opens at 20" in message
    assert f"T{far:02}:30+00:00" in message
    assert not node.history.touched
    node.patch_node(annotations={"mig-manager/ignore-windows": "true"})
    assert node.ended("balanced")["state"] == "success"


def test_a_node_that_was_cut_off_in_the_middle_goes_on_in_its_own_slot(start: Start) -> None:
    node = start(**ONE)
    guard(node)
    node.label("balanced")
    node.wait_requests(lambda each: each.resource == "pods/eviction" and each.status == 429)
    node.kill()
    assert leases(node) == {SLOT: node.cluster.node}
    unguard(node)
    node.start(**ONE)
    assert node.ended("balanced")["state"] == "success"
    node.wait(lambda: not leases(node), "the slot to be given back")


def test_a_node_that_was_cut_off_when_its_gpus_were_done_gives_its_slot_back(start: Start) -> None:
    node = start(**ONE)
    node.label("balanced")
    node.wait(lambda: "ResumingOperands" in node.history.phases, "the apply to be over")
    node.kill()
    assert leases(node) == {SLOT: node.cluster.node}
    node.start(**ONE)
    assert node.ended("balanced")["state"] == "success"
    node.wait(lambda: not leases(node), "the slot to be given back")
