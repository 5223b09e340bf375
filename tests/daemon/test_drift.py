"""GPUs that do not stay as they were left: it is noticed, said once, and mended where that may be."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.simulation.resources import DEPLOYMENTS
from mig_manager.simulation.workloads import NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import STATE, GpuNode, node_lifetime
from tests.daemon.workloads import by_hand, web

SMALL = [f"1g.10gb@{start}" for start in range(7)]
OURS = ("mig-manager/status", "mig-manager/gpus", "mig-manager/layouts")


def small(node: GpuNode, **settings: str) -> GpuNode:
    """The daemon has applied layout `small`, and has no more to say."""
    node.start(**settings)
    node.becomes("small")
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the names of the layouts")
    node.forget()
    return node


def looks(node: GpuNode, count: int) -> None:
    """Wait for so many more looks at the GPUs."""

    def ended() -> int:
        return [each.function for each in node.cluster.gpus.calls()].count("nvmlShutdown")

    before = ended()
    node.eventually(lambda: ended() >= before + count, f"{count} looks")


def reasons(node: GpuNode) -> list[str]:
    return [reason for reason, _ in node.events()]


def test_drift_is_said_once_and_so_is_its_change_and_its_end(make_node: MakeNode) -> None:
    node = small(make_node(), MIG_MANAGER_DRIFT_INTERVAL="0.2")
    looks(node, 2)
    node.cluster.api.requests.clear()
    looks(node, 2)
    mine = [each for each in node.cluster.api.requests.all() if each.user_agent == "mig-manager"]
    assert {each.verb for each in mine} <= {"watch"}

    by_hand(node, "destroy", "1g.10gb:0")
    node.wait_event("Drifted", "GPU 0 (NVIDIA A100-SXM4-80GB): 1g.10gb at memory slice 0 is missing")
    assert (node.state, node.status["reason"], node.status["gpus"]) == ("failed", "Drifted", [0])
    assert node.status["message"].endswith("They are left so (MIG_MANAGER_DRIFT=report).")
    looks(node, 2)
    assert (reasons(node), node.changes_by_the_daemon()) == (["Drifted"], ["patch nodes"])

    by_hand(node, "destroy", "1g.10gb:3")
    node.wait_event("Drifted", "1g.10gb at memory slice 3 is missing")
    by_hand(node, "create", "1g.10gb:0")
    node.wait(lambda: "memory slice 0" not in node.status["message"], "the smaller difference")
    by_hand(node, "create", "1g.10gb:3")
    node.wait_event("DriftGone", "small")
    assert (node.state, "message" in node.status) == ("success", False)
    assert sorted(reasons(node)) == ["DriftGone", "Drifted", "Drifted", "Drifted"]
    assert not node.history.touched
    assert len(node.cluster.gpus.calls(changes=True)) == 2 * 4, "only what was done by hand"
    assert node.logged().count("not as the layout says any more") == 3


def test_a_repair_takes_nothing_from_anybody(make_node: MakeNode) -> None:
    node = small(make_node(), MIG_MANAGER_DRIFT="repair", MIG_MANAGER_DRIFT_INTERVAL="0.2")
    by_hand(node, "destroy", "1g.10gb:0")
    node.wait_event("Applied", "small")
    assert node.instances == [SMALL, SMALL]
    assert node.history.touched

    # A pod still holds the device of an instance that is gone, so that a change of the GPUs would evict it.
    name = web(node)
    gpus = node.cluster.gpus
    first = gpus.snapshot()["gpus"][0]["instances"]
    gone = next(each["id"] for each in first if each["start"] == 0)
    for process in gpus.processes():
        if (process["gpu"], process["gi"]) == (0, gone):
            gpus.remove_process(process["id"])
    node.forget()
    by_hand(node, "destroy", "1g.10gb:0")
    node.wait_event("Drifted", f"for a repair would take something from {NAMESPACE}/{name}")
    looks(node, 2)
    assert reasons(node) == ["Drifted"]
    assert node.pods()[name]["status"]["phase"] == "Running"
    assert not node.history.touched

    node.cluster.store.delete(DEPLOYMENTS, NAMESPACE, "web")
    node.wait(lambda: node.state == "success", "the repair")
    assert node.instances == [SMALL, SMALL]
    assert node.allocatable == {"mig-1g.10gb": 14}


def reloaded(node: GpuNode, times: int) -> None:
    """Wait until the layout has been applied again behind a reload."""
    node.wait(lambda: reasons(node).count("Applied") == times, f"{times} runs")
    assert node.instances == [SMALL, SMALL]
    assert node.state == "success"
    assert node.allocatable == {"mig-1g.10gb": 14}


def test_after_a_reload_of_the_driver_the_layout_is_always_applied_again(make_node: MakeNode) -> None:
    """Of the two GPUs one keeps its MIG mode, the other does not; neither keeps an instance."""
    node = make_node(gpus="A100-SXM4-80GB,H100-80GB-HBM3")
    small(node, MIG_MANAGER_DRIFT_INTERVAL="0", MIG_MANAGER_DRIVER_RETRY="0.2")
    name = web(node)
    gpus = node.cluster.gpus
    gpus.unload_driver(force=True)
    away = "the NVIDIA driver is away"
    node.eventually(lambda: away in node.logged())
    said: dict[str, Any] = node.status
    gpus.load_driver()
    node.wait_event("Drifted", "the driver was loaded anew: GPU 0 (NVIDIA A100-SXM4-80GB): 1g.10gb")
    reloaded(node, 1)
    assert name not in node.pods()
    assert said["state"] == "success"
    assert node.logged().count(away) == 1
    gpus.restart_driver(force=True)
    reloaded(node, 2)


def test_a_reload_that_no_glance_can_see_is_found_by_the_next_look(make_node: MakeNode) -> None:
    node = small(make_node(), MIG_MANAGER_DRIFT_INTERVAL="0.2", MIG_MANAGER_SYS_ROOT="/nonexistent")
    node.cluster.gpus.restart_driver(force=True)
    reloaded(node, 1)


@pytest.mark.parametrize("keys", [(STATE,), OURS, (STATE, *OURS)])
def test_what_is_removed_from_the_node_by_hand_comes_back_and_nothing_is_touched(
    made: GpuNode, keys: tuple[str, ...]
) -> None:
    before = {**made.annotations, STATE: made.state}
    made.forget()
    made.patch_node(
        labels={key: None for key in keys if key == STATE},
        annotations={key: None for key in keys if key != STATE},
    )
    made.wait(lambda: {**made.annotations, STATE: made.state} == before, "what was there")
    assert made.logged().count("written again") == 1
    made.eventually(lambda: set(made.changes_by_the_daemon()) == {"patch nodes"}, "the request")
    assert made.cluster.gpus.calls() == []


@pytest.fixture(scope=node_lifetime)
def made(used_node: GpuNode) -> GpuNode:
    return small(used_node)
