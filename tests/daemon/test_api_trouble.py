"""Trouble with the API server in the middle of the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.api.streams import Trouble
from tests.daemon.conftest import MakeNode
from tests.daemon.node import CONFIG, GpuNode
from tests.daemon.workloads import guard, made_as_new, unguard

OFFERED = {
    "small": {"mig-1g.10gb": 14},
    "balanced": {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2},
}
SMALL = [f"1g.10gb@{start}" for start in range(7)]
JOURNAL = "mig-manager/journal"
PATCH = Fault("PATCH", "^/api/v1/nodes/")


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with one of two layouts."""
    return made_as_new(used_node, {"MIG_MANAGER_RETRY_FIRST": "0.3"}, at_rest=True)


@pytest.fixture
def other(node: GpuNode) -> str:
    """The layout that the node does not have."""
    return "small" if node.labels[CONFIG] == "balanced" else "balanced"


FAULTS = {
    "409": replace(PATCH, status=409),
    "429": replace(PATCH, status=429),
    "503 in plain text": replace(PATCH, status=503, text="upstream connect error"),
    "no answer": replace(PATCH, how="drop"),
    "done, but the answer is lost": replace(PATCH, how="cut"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_change_of_the_node_survives_a_refusal(node: GpuNode, other: str, fault: Fault) -> None:
    deploy_labels = node.deploy_labels
    seen = -1

    def again() -> str | None:
        """One more fault for each phase that the Node has said."""
        nonlocal seen
        if len(node.history.phases) != seen:
            seen = len(node.history.phases)
            node.cluster.api.faults.add(fault)
        return node.state if node.status.get("layout") == other and node.state != "pending" else None

    node.label(other)
    assert node.wait(again, "the end of the run") == "success"
    assert seen >= 4
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert JOURNAL not in node.annotations
    assert node.allocatable == OFFERED[other]


@pytest.mark.parametrize("phase", ["Cordoning", "ResumingOperands"])
def test_an_api_server_that_is_away_for_a_while_only_delays_a_run(
    node: GpuNode, other: str, phase: str
) -> None:
    node.label(other)
    node.wait(lambda: phase in node.history.phases, phase)
    node.cluster.api.stop()
    node.eventually(lambda: "does not answer" in node.logged() or "broke off" in node.logged())
    node.cluster.api.start()
    assert node.ended(other)["state"] == "success"
    assert not node.cordoned
    assert node.clients_run


@pytest.mark.parametrize("trouble", ["close", "cut", "gone"])
def test_a_label_that_is_set_while_a_watch_breaks_is_acted_on(
    node: GpuNode, other: str, trouble: Trouble
) -> None:
    node.eventually(lambda: node.cluster.api.watches >= 2, "both watches are open")
    assert node.cluster.api.disturb_watches(trouble) >= 2
    node.becomes(other)
    assert node.runs


def test_a_label_that_is_set_while_a_watch_is_silent_is_acted_on(make_node: MakeNode) -> None:
    node = make_node()
    node.start(MIG_MANAGER_WATCH_SECONDS="1")
    node.becomes("small")
    node.eventually(lambda: node.cluster.api.watches >= 2, "both watches are open")
    assert node.cluster.api.disturb_watches("silent") >= 2
    node.becomes("balanced")


def test_a_label_that_is_set_while_the_token_is_exchanged_is_acted_on(node: GpuNode, other: str) -> None:
    refused = Fault(path=".", status=401, times=None)
    heal = node.cluster.api.faults.add(refused)
    node.cluster.api.disturb_watches("close")
    node.label(other)
    node.eventually(lambda: "401" in node.logged())
    heal()
    assert node.ended(other)["state"] == "success"


def test_events_that_are_forbidden_do_not_matter(node: GpuNode, other: str) -> None:
    node.cluster.api.faults.add(Fault("POST|PATCH", "/events", status=403, times=None))
    node.becomes(other)
    assert "An Event could not be recorded" in node.logged()


def test_pods_that_must_not_be_read_are_said_at_once_and_looked_for_again(node: GpuNode, other: str) -> None:
    heal = node.cluster.api.faults.add(Fault("GET", "^/api/v1/pods", status=403, times=None))
    status = node.becomes(other, "failed")
    assert status["reason"] == "ApiError"
    assert "/api/v1/pods: 403: forbidden" in status["message"]
    assert not node.cordoned
    assert JOURNAL not in node.annotations
    heal()
    node.wait(lambda: node.state == "success", "the retry")


def test_evictions_that_are_forbidden_end_the_run_with_their_message(node: GpuNode) -> None:
    node.becomes("small")
    guard(node)
    unguard(node)
    node.cluster.api.faults.add(Fault("POST", "/eviction", status=403, times=None))
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "EvictionBlocked"
    assert "403: forbidden" in status["message"]
    assert not node.cordoned
    assert node.instances == [SMALL, SMALL]


def test_a_run_that_could_not_say_how_it_ended_says_it_later(node: GpuNode) -> None:
    node.becomes("small")
    guard(node)
    node.label("balanced")
    node.wait_requests(lambda each: each.resource == "pods/eviction")
    heal = node.cluster.api.faults.add(Fault("PATCH", "^/api/v1/nodes/", status=403, times=None))
    node.label("nonsense")
    node.eventually(lambda: "could not be brought to its end" in node.logged())
    assert node.cordoned
    heal()
    assert node.ended("nonsense")["reason"] == "UnknownLayout"
    node.wait(lambda: not node.cordoned and JOURNAL not in node.annotations, "the node to be put back")


def test_a_cordon_that_was_refused_is_not_taken_off_from_whoever_has_set_one_since(
    node: GpuNode, other: str
) -> None:
    faults = node.cluster.api.faults

    def refuse_the_next() -> None:
        if node.state == "pending":
            leave()
            faults.add(replace(PATCH, status=403, act=lambda: node.patch_node(unschedulable=True)))

    leave = faults.add(replace(PATCH, act=refuse_the_next, times=None))
    node.label(other)
    node.eventually(lambda: "failed, and everything is put back" in node.logged())
    assert node.wait(lambda: node.state == "success", "the retry")
    assert node.cordoned
    assert "uncordoned" not in node.logged()


@pytest.mark.parametrize("room", [0, 700])
def test_a_node_whose_annotations_leave_no_room_is_told_by_its_label(
    node: GpuNode, other: str, room: int
) -> None:
    """All annotations of an object share 256 KiB, whoever has written them."""
    node.label(other)
    used = sum(len(key) + len(value) for key, value in node.annotations.items())
    notes = "example.com/notes"
    node.patch_node(annotations={notes: "x" * (256 * 1024 - used - len(notes) - room)})
    node.wait(lambda: node.state == "failed", "the end of the run")
    assert not node.cordoned
    node.patch_node(annotations={notes: None})
    node.wait(lambda: node.state == "success", "the retry")
    assert node.allocatable == OFFERED[other]
