"""Nodes that come and go: start-up taint, nodes without label, without MIG, and deleted ones."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.resources import PODS
from tests.daemon.conftest import MakeNode
from tests.daemon.node import OPERATOR, PATIENCE, STATE, GpuNode
from tests.daemon.workloads import CREATE, mark_stuck, running, stick_operand

SMALL = [f"1g.10gb@{start}" for start in range(7)]
BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
TAINT = "mig-manager/not-ready"
OTHER = "nvidia.com/gpu"  # the operands tolerate this one


def test_the_start_up_taint_goes_when_the_gpus_are_right_and_before_resources_are_awaited(
    make_node: MakeNode,
) -> None:
    """The device plugin does not tolerate it, so that it is not there before; it is waited for all the same."""
    node = make_node()
    node.taint(OTHER, TAINT)
    plugin = running(node, "nvidia-device-plugin", OPERATOR)
    node.cluster.store.delete(PODS, OPERATOR, str(plugin))
    node.wait(lambda: not running(node, "nvidia-device-plugin", OPERATOR), "its end")
    node.label("nonsense")
    node.start()
    assert node.ended("nonsense")["state"] == "failed"
    assert node.taints == {OTHER, TAINT}, "nothing was applied"
    node.becomes("small")
    assert node.allocatable == {"mig-1g.10gb": 14}
    node.wait(lambda: node.taints == {OTHER}, "ours and that of the cordon to be gone")
    first = next(each for each in node.history.versions if TAINT not in each.taints)
    assert (first.cordoned, first.phase) == (True, "Applying")

    assert node.terminate() == 0
    node.taint(OTHER, TAINT)
    node.forget()
    node.start()
    node.wait(lambda: node.taints == {OTHER}, "the taint to go where nothing was to be done")
    assert node.terminate() == 0
    assert node.cluster.gpus.calls(changes=True) == []
    assert node.changes_by_the_daemon() == ["patch nodes"]


def test_a_node_that_asks_for_nothing_loses_the_start_up_taint_and_is_told_nothing(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.taint(OTHER, TAINT)
    node.cluster.gpus.record_calls()
    node.start()
    node.wait(lambda: node.taints == {OTHER}, "the taint to go")
    assert node.terminate() == 0
    assert node.changes_by_the_daemon() == ["patch nodes"]
    assert (node.state, node.status, node.cluster.gpus.calls()) == (None, {}, [])


def test_a_node_without_label_tells_what_it_could_be_asked_for(make_node: MakeNode) -> None:
    """Also where that was refused at first."""
    node = make_node()
    node.cluster.api.faults.add(Fault("PATCH", "^/api/v1/nodes/", status=403))
    node.start(MIG_MANAGER_RETRY_LONGEST="0.2")
    node.wait(lambda: "mig-manager/gpus" in node.annotations, "its GPUs")
    assert {"small", "balanced", "all-disabled"} <= set(json.loads(node.annotations["mig-manager/layouts"]))
    assert [each["index"] for each in json.loads(node.annotations["mig-manager/gpus"])] == [0, 1]
    assert (node.state, node.status) == (None, {})


def test_a_default_layout_serves_while_there_is_no_label(make_node: MakeNode) -> None:
    node = make_node()
    node.start(MIG_MANAGER_DEFAULT_LAYOUT="small")
    assert node.ended("small")["state"] == "success"
    assert node.instances == [SMALL, SMALL]
    assert node.terminate() == 0
    node.forget()
    node.start(MIG_MANAGER_DEFAULT_LAYOUT="small")
    node.becomes("balanced")
    node.label(None)
    assert node.ended("small")["state"] == "success"
    assert node.instances == [SMALL, SMALL]
    assert all(each.state for each in node.history.versions)
    assert "nvidia.com/mig.config" not in node.labels


def test_a_node_whose_gpus_have_no_mig_is_left_alone_unless_its_label_asks_for_something(
    make_node: MakeNode,
) -> None:
    node = make_node(gpus="2xT4")
    node.taint(TAINT)
    node.start(MIG_MANAGER_DEFAULT_LAYOUT="small")
    node.wait(lambda: not node.taints, "the taint to go")
    assert not any(each.state for each in node.history.versions)
    status = node.becomes("small", "failed")
    assert "cannot be applied to this node, for its GPUs (Tesla T4) have no MIG" in status["message"]
    assert "nextRetryAt" not in status
    node.label(None)
    node.wait(lambda: node.state is None, "the state to go")
    assert node.logged().count("no GPU of this node has MIG") == 1
    node.becomes("all-disabled")
    assert not node.history.touched


def waiting(node: GpuNode) -> Callable[[], None]:
    name = stick_operand(node)
    node.label("small")
    node.wait(lambda: "PausingOperands" in node.history.phases, "the wait")
    return lambda: mark_stuck(node, OPERATOR, name, None)


def applying(node: GpuNode) -> Callable[[], None]:
    gate = node.cluster.gpus.hold_calls(CREATE)
    node.label("small")
    gate.wait(PATIENCE)
    return gate.open


@pytest.mark.parametrize("busy", [waiting, applying])
def test_a_node_deleted_in_the_middle_of_a_run_and_created_anew_is_judged_anew(
    make_node: MakeNode, busy: Callable[[GpuNode], Callable[[], None]]
) -> None:
    node = make_node()
    node.start()
    node.becomes("balanced")
    node.forget()
    go_on = busy(node)
    node.register_anew("balanced", unschedulable=True)
    go_on()
    assert node.ended("balanced")["state"] == "success"
    assert node.instances == [BALANCED, BALANCED]
    uid = node.cluster.node_object()["metadata"]["uid"]
    versions = [each for each in node.history.versions if each.uid == uid]
    assert all(each.cordoned for each in versions), "that cordon is not ours"
    assert all(each.layout in (None, "balanced") for each in versions)
    assert "mig-manager/journal" not in node.annotations


def test_a_node_deleted_at_rest_and_created_anew_is_told_again(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    node.becomes("small")
    node.register_anew("small")
    node.wait(lambda: node.state == "success", "the state on the new Node")
    node.wait(lambda: {"mig-manager/gpus", "mig-manager/layouts"} <= set(node.annotations), "what it holds")
    assert STATE in node.labels
