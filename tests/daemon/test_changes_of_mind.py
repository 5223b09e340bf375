"""The label or the layout changes while a run is under way."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.daemon.node import LAYOUTS, GpuNode
from tests.daemon.workloads import amid_the_apply, guard, made_as_new, unguard

SMALL = [f"1g.10gb@{start}" for start in range(7)]
JOURNAL = "mig-manager/journal"


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with layout `small`."""
    return made_as_new(used_node)


@pytest.fixture
def draining(node: GpuNode) -> GpuNode:
    """A node with layout `small` that waits for a protected pod on its way to `balanced`."""
    guard(node)
    node.forget()
    node.label("balanced")
    node.wait_requests(lambda each: each.resource == "pods/eviction" and each.status == 429)
    return node


def test_another_layout_while_pods_are_drained_starts_over_with_the_first_journal(draining: GpuNode) -> None:
    node = draining
    journal = json.loads(node.annotations[JOURNAL])
    node.label("one-gpu")
    node.wait(lambda: node.status.get("layout") == "one-gpu", "the new target")
    assert json.loads(node.annotations[JOURNAL]) == journal
    unguard(node)
    assert node.ended("one-gpu")["state"] == "success"
    assert node.instances == [SMALL, ["3g.40gb@0", "3g.40gb@4"]]
    assert {call.gpu for call in node.cluster.gpus.calls(changes=True)} == {1}
    assert not node.cordoned
    assert [each.layout for each in node.history.versions if each.state == "success"][:1] != ["balanced"]


def test_back_to_what_the_gpus_are_puts_everything_back_without_touching_them(draining: GpuNode) -> None:
    node = draining
    node.label("small")
    assert node.ended("small")["state"] == "success"
    assert not node.cordoned
    assert JOURNAL not in node.annotations
    assert node.cluster.gpus.calls(changes=True) == []
    assert not any(each.paused for each in node.history.versions)


def test_a_removed_label_puts_everything_back(draining: GpuNode) -> None:
    node = draining
    node.label(None)
    node.wait(lambda: node.state is None and not node.cordoned, "the node to be let go")
    assert node.status == {}
    assert JOURNAL not in node.annotations
    assert node.cluster.gpus.calls(changes=True) == []
    node.wait_event("LabelRemoved", "The label nvidia.com/mig.config is gone; everything was put back.")
    assert [message for _, message in node.events() if "Next attempt" in message] == []


def test_an_impossible_layout_while_pods_are_drained_puts_everything_back(draining: GpuNode) -> None:
    node = draining
    node.label("nonsense")
    status = node.ended("nonsense")
    assert (status["state"], status["reason"], status["phase"]) == ("failed", "UnknownLayout", "Validating")
    assert not node.cordoned
    assert node.instances == [SMALL, SMALL]


def test_an_edited_layout_while_pods_are_drained_starts_over(draining: GpuNode) -> None:
    node = draining
    node.set_layouts(LAYOUTS.replace('{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}', '{"7g.80gb": 1}'))
    unguard(node)
    assert node.ended("balanced")["state"] == "success"
    assert node.instances == [["7g.80gb@0"], ["7g.80gb@0"]]


def test_another_layout_during_the_apply_is_applied_after_it(node: GpuNode) -> None:
    with amid_the_apply(node, "one-gpu"):
        node.label("balanced")
    assert node.ended("balanced")["state"] == "success"
    said = [(each.layout, each.state, each.wanted) for each in node.history.versions]
    assert ("one-gpu", "success", "balanced") not in said
    assert [each for each in said if each[1] == "failed"] == []
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}


def test_the_last_of_many_labels_is_what_the_node_becomes(node: GpuNode) -> None:
    for layout in ("balanced", "nonsense", "all-3g.40gb", "small", "balanced"):
        node.label(layout)
    assert node.ended("balanced")["state"] == "success"
    said = node.history.versions
    wrong = [
        now
        for before, now in pairwise(said)
        if now.state == "success" != before.state and now.layout != now.wanted
    ]
    assert wrong == []
    assert not node.cordoned
