"""SIGTERM and SIGKILL at any moment: nothing is lost, and the next start goes on by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.daemon.node import LAYOUTS, OPERATOR, PATIENCE, GpuNode
from tests.daemon.workloads import (
    amid_the_apply,
    break_plugin,
    end_amid_a_call,
    guard,
    made_as_new,
    mark_stuck,
    stick_operand,
    unguard,
)

BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
SMALL = [f"1g.10gb@{start}" for start in range(7)]
DEPLOY = "nvidia.com/gpu.deploy."
JOURNAL = "mig-manager/journal"


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with layout `small`, where somebody keeps one client off and has another in a way of his own."""
    node = made_as_new(used_node)
    node.patch_node(labels={f"{DEPLOY}dcgm": "false", f"{DEPLOY}nvsm": "custom"})
    node.history.forget()
    return node


def at_phase(phase: str) -> Callable[[GpuNode], object]:
    return lambda node: node.wait(lambda: phase in node.history.phases, phase)


def test_an_idle_daemon_ends_at_once_and_says_nothing(node: GpuNode) -> None:
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the names of the layouts")
    said = node.status
    assert node.terminate() == 0, node.logged()[-2000:]
    assert (node.state, node.status) == ("success", said)


def test_before_anything_was_said_the_end_leaves_no_trace(node: GpuNode) -> None:
    assert node.terminate() == 0
    node.set_layouts(LAYOUTS.replace('{"1g.10gb": 7}', '{"1g.10gb": 6}'))
    said = node.status
    node.history.forget()
    with node.cluster.gpus.hold_calls("nvmlInitWithFlags") as gate:
        node.start()
        gate.wait(PATIENCE)
        assert end_amid_a_call(node, gate) == 0
    assert (node.state, node.status) == ("success", said)
    assert not node.history.touched


def protect(node: GpuNode) -> Callable[[], None]:
    guard(node)
    node.label("balanced")
    node.wait_requests(lambda each: each.resource == "pods/eviction")
    return lambda: unguard(node)


def pausing(node: GpuNode) -> Callable[[], None]:
    name = stick_operand(node)
    node.label("balanced")
    at_phase("PausingOperands")(node)
    return lambda: mark_stuck(node, OPERATOR, name, None)


@pytest.mark.parametrize("wait", [protect, pausing])
def test_before_gpus_change_everything_is_put_back_and_the_next_start_goes_on(
    node: GpuNode, wait: Callable[[GpuNode], Callable[[], None]]
) -> None:
    deploy_labels = node.deploy_labels
    release = wait(node)
    assert node.terminate() == 0, node.logged()[-2000:]
    assert (node.state, node.status["reason"]) == ("failed", "Interrupted")
    assert not node.cordoned
    assert JOURNAL not in node.annotations
    assert node.deploy_labels == deploy_labels
    assert node.cluster.gpus.calls(changes=True) == []
    release()
    node.start()
    node.wait(lambda: node.state == "success", "the next start to go on")
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}


def applying(node: GpuNode) -> int:
    with amid_the_apply(node) as gate:
        return end_amid_a_call(node, gate)


def awaiting(node: GpuNode) -> int:
    stop = break_plugin(node)
    node.label("balanced")
    at_phase("ResumingOperands")(node)
    stop()
    return node.terminate()


@pytest.mark.parametrize("ended", [applying, awaiting])
def test_once_gpus_have_changed_the_journal_stays_and_the_next_start_completes_the_run(
    node: GpuNode, ended: Callable[[GpuNode], int]
) -> None:
    deploy_labels = node.deploy_labels
    assert ended(node) == 0, node.logged()[-2000:]
    assert node.state == "pending"
    assert node.cordoned
    assert JOURNAL in node.annotations
    node.start()
    node.wait(lambda: node.state == "success", "the next start to go on")
    assert node.instances == [BALANCED, BALANCED]
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert JOURNAL not in node.annotations


def test_a_call_that_does_not_come_back_does_not_hold_the_end_up(node: GpuNode) -> None:
    assert node.terminate() == 0
    node.start(MIG_MANAGER_STOP_TIMEOUT="1.5")
    with node.cluster.gpus.hold_calls("nvmlGpuInstanceDestroy", gpu=1) as gate:
        node.label("balanced")
        gate.wait(PATIENCE)
        assert node.terminate() == 1
    assert "not ended within 1.5 s" in node.logged()
    assert JOURNAL in node.annotations


def killed_amid_the_apply(node: GpuNode) -> None:
    with amid_the_apply(node):
        node.kill()


KILLS = ["Cordoning", "PausingOperands", "Applying", "ResumingOperands"]


@pytest.mark.parametrize("phase", KILLS)
def test_a_killed_daemon_goes_on_from_the_journal(node: GpuNode, phase: str) -> None:
    deploy_labels = node.deploy_labels
    if phase == "Applying":
        killed_amid_the_apply(node)
    else:
        node.label("balanced")
        at_phase(phase)(node)
        node.kill()
    node.eventually(lambda: not node.cluster.gpus.sessions(), "the worker to end")
    node.start()
    assert node.ended("balanced")["state"] == "success"
    assert node.instances == [BALANCED, BALANCED]
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert JOURNAL not in node.annotations


@pytest.mark.parametrize("label", ["nonsense", None])
def test_after_a_kill_in_the_apply_a_wish_that_is_gone_brings_the_previous_layout_back(
    node: GpuNode, label: str | None
) -> None:
    deploy_labels = node.deploy_labels
    killed_amid_the_apply(node)
    node.eventually(lambda: not node.cluster.gpus.sessions(), "the worker to end")
    assert node.instances != [SMALL, SMALL]
    node.label(label)
    node.start()
    node.wait(lambda: JOURNAL not in node.annotations and not node.cordoned, "the node to be put back")
    assert node.instances == [SMALL, SMALL]
    assert node.deploy_labels == deploy_labels
    node.wait(lambda: node.allocatable == {"mig-1g.10gb": 14}, "the resources as before")
    node.wait(lambda: node.state == ("failed" if label else None), "the last word")


def test_after_a_kill_in_the_apply_nothing_is_given_up_while_there_is_no_driver(node: GpuNode) -> None:
    killed_amid_the_apply(node)
    node.eventually(lambda: not node.cluster.gpus.sessions(), "the worker to end")
    node.cluster.gpus.unload_driver(force=True)
    node.start(MIG_MANAGER_DRIVER_RETRY="0.3")
    status = node.ended("balanced")
    assert (status["state"], status["reason"]) == ("failed", "NvmlError")
    assert status["message"].endswith("Not everything could be put back yet; that is tried again.")
    assert node.cordoned
    assert JOURNAL in node.annotations
    node.cluster.gpus.load_driver()
    node.wait(lambda: node.state == "success" and not node.cordoned, "the driver to be found")
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}


def test_a_cordon_of_an_admin_is_still_his_after_a_kill(node: GpuNode) -> None:
    node.patch_node(unschedulable=True)
    node.label("balanced")
    at_phase("Cordoning")(node)
    node.kill()
    node.start()
    assert node.ended("balanced")["state"] == "success"
    assert node.cordoned
