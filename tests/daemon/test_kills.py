"""A daemon that is ended between any two things that it does outside itself: its next start completes the run.

Every change it asks of the API server and every change of a GPU is such a moment, once before it has effect and
once when it has, but the answer is lost. By default some of them are tried; MIG_MANAGER_ALL_KILLS=1 tries all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal

import pytest

from mig_manager.simulation.api.faults import Fault, How
from mig_manager.simulation.resources import DEPLOYMENTS
from mig_manager.simulation.workloads import deployment, pod_spec
from tests.daemon.node import GpuNode, node_lifetime

SMALL = [f"1g.10gb@{start}" for start in range(7)]
LOOKS = {"small": ([SMALL, SMALL], {"mig-1g.10gb": 14}), "all-disabled": ([["off"], ["off"]], {"gpu": 2})}
JOURNAL = "mig-manager/journal"
DEPLOY = "nvidia.com/gpu.deploy."
ALL = "MIG_MANAGER_ALL_KILLS" in os.environ
STEP = {"api": 1, "gpu": 1} if ALL else {"api": 4, "gpu": 16}
"""Every how manyeth moment is tried; those after a change lie between those before one."""
CHANGES = "PATCH|POST|DELETE"
NO_EVENTS = "^(?!.*/events)"

Where = Literal["api", "gpu"]


@pytest.fixture(scope=node_lifetime)
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    """Two GPUs with persistence mode on, one of which a pod uses while MIG is off."""
    with GpuNode(tmp_path_factory.mktemp("node"), gpu_options={"persistence": True}) as node:
        node.start()
        spec = pod_spec("example/image", {"nvidia.com/gpu": 1}, terminationGracePeriodSeconds=0)
        node.cluster.store.create(DEPLOYMENTS, deployment("web", 1, spec))
        node.patch_node(labels={f"{DEPLOY}dcgm": "false", f"{DEPLOY}nvsm": "custom"})
        node.becomes("all-disabled")
        yield node


def kill(node: GpuNode, where: Where, nth: int, acts: bool) -> Callable[[], None]:
    """Let the daemon be killed at its nth change there; gives what takes that back."""
    if where == "gpu":
        node.cluster.gpus.fail("*", None, nth=nth + 1, acts=acts, kills=True, parent=True)
        return node.cluster.gpus.clear_faults
    how: How = "cut" if acts else "drop"
    return node.cluster.api.faults.add(
        Fault(method=CHANGES, path=NO_EVENTS, how=how, skip=nth, act=node.daemon.kill)
    )


def is_whole(node: GpuNode, layout: str) -> None:
    """Everything is as after a run that nobody has disturbed."""
    instances, resources = LOOKS[layout]
    assert node.instances == instances
    assert node.allocatable == resources
    assert [gpu["persistence"] for gpu in node.cluster.gpus.snapshot()["gpus"]] == [True, True]
    assert node.deploy_labels == {
        **{key: value for key, value in node.first_labels.items() if key.startswith(DEPLOY)},
        f"{DEPLOY}dcgm": "false",
        f"{DEPLOY}nvsm": "custom",
    }
    assert not node.cordoned
    assert JOURNAL not in node.annotations


def other_layout(node: GpuNode) -> str:
    return "small" if label_granted(node) == "all-disabled" else "all-disabled"


def cut_short(node: GpuNode, take_back: Callable[[], None]) -> bool:
    """Ask for the other layout; whether the daemon ended on the way. If so, its next start has completed the run."""
    layout = other_layout(node)
    node.label(layout)
    node.eventually(lambda: not node.runs or label_granted(node) == layout, "an end")
    take_back()
    if node.runs:
        return False
    node.start()
    node.wait(lambda: label_granted(node) == layout, "the end of the run that was cut short")
    is_whole(node, layout)
    return True


@pytest.mark.parametrize("acts", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", ["api", "gpu"])
def test_a_daemon_killed_at_any_change_completes_the_run_at_its_next_start(
    node: GpuNode, where: Where, acts: bool
) -> None:
    moments = count(STEP[where] // 2 if acts else 0, STEP[where])
    done = next(done for done, nth in enumerate(moments) if not cut_short(node, kill(node, where, nth, acts)))
    print(f"{done} kills {'after' if acts else 'before'} a change ({where}) survived")  # noqa: T201
    assert done >= 2


def test_a_daemon_that_is_asked_to_end_at_any_change_completes_the_run_at_its_next_start(
    node: GpuNode,
) -> None:
    def asked(nth: int) -> Callable[[], None]:
        fault = Fault(method=CHANGES, path=NO_EVENTS, skip=nth, act=node.daemon.terminate)
        return node.cluster.api.faults.add(fault)

    done = next(done for done, nth in enumerate(count(0, STEP["api"])) if not cut_short(node, asked(nth)))
    print(f"{done} orderly ends survived")  # noqa: T201
    assert done >= 2


def label_granted(node: GpuNode) -> str | None:
    """The layout that the Node says it has."""
    layout: str | None = node.status.get("layout")
    return layout if node.state == "success" and node.status.get("state") == "success" else None
