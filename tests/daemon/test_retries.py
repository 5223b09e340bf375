"""What a failed run is followed by: another attempt where time may help, and nothing where it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psutil
import pytest
from pynvml import NVML_ERROR_UNKNOWN

from mig_manager.daemon.retries import Retries
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.status import Outcome, Phase, State, Status
from mig_manager.daemon.wish import Wish
from mig_manager.errors import Reason
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.workloads import NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, OPERATOR, GpuNode
from tests.daemon.workloads import (
    NO_PLUGIN,
    QUICK,
    break_plugin,
    guard,
    mark_stuck,
    stick_operand,
    unguard,
    web,
)

SMALL = [f"1g.10gb@{start}" for start in range(7)]
BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def test_what_may_pass_is_tried_again_and_succeeds_without_another_label(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.2", "MIG_MANAGER_RETRY_LONGEST": "0.4"})
    node.becomes("small")
    name = stick_operand(node)
    node.label("balanced")
    node.wait_event("OperandTimeout", "Next attempt at")
    mark_stuck(node, OPERATOR, name, None)
    node.wait(lambda: node.state == "success", "the retry")
    assert node.instances == [BALANCED, BALANCED]
    assert node.status["attempt"] > 1
    assert node.clients_run


@pytest.mark.parametrize(
    ("state", "attempt"),
    [(State.FAILED, 4), (State.PENDING, 3), (State.REBOOTING, 3), (State.SUCCESS, 1)],
)
def test_a_new_process_counts_on_from_what_the_node_says(state: State, attempt: int) -> None:
    """What has failed is followed by one more; what was cut short goes on."""
    said = Status("small", state, Phase.DRAINING, hash="abc", attempt=3)
    retries = Retries(Settings(node_name="gpu-1"))
    retries.go_on_from(said, "small")
    retries.begin()
    assert retries.attempt_at(Wish("small", None)) == attempt
    assert retries.attempt_at(Wish("small", "abc")) == attempt
    assert retries.attempt_at(Wish("small", "edited")) == 1


def test_a_failure_after_a_success_is_the_first_of_its_kind() -> None:
    """As when the driver is loaded anew, days after a layout came at the last attempt."""
    retries = Retries(Settings(node_name="gpu-1", retry_attempts=2))
    wish = Wish("small", "abc")
    blocked = Outcome(State.FAILED, Reason.EVICTION_BLOCKED, "web-guard", Phase.DRAINING)
    retries.begin()
    assert retries.schedule(blocked) is not None
    retries.begin()
    assert retries.schedule(Outcome(State.SUCCESS)) is None
    assert retries.attempt_at(wish) == 2
    retries.begin()
    assert retries.attempt_at(wish) == 1
    assert retries.schedule(blocked) is not None


@pytest.mark.parametrize("other", [Wish("balanced", "def"), Wish("balanced", None), Wish("small", "edited")])
def test_another_wish_in_mid_run_has_all_its_attempts(other: Wish) -> None:
    retries = Retries(Settings(node_name="gpu-1", retry_attempts=2))
    blocked = Outcome(State.FAILED, Reason.EVICTION_BLOCKED, "web-guard", Phase.DRAINING)
    for attempt in (1, 2):
        retries.begin()
        assert [retries.attempt_at(Wish("small", each)) for each in (None, "abc")] == [attempt, attempt]
        if attempt == 1:
            retries.schedule(blocked)
    assert retries.attempt_at(other) == 1
    assert retries.schedule(blocked) is not None


def guarded(node: GpuNode) -> Callable[[], object]:
    guard(node)
    return lambda: unguard(node)


def endless(node: GpuNode) -> Callable[[], object]:
    name = web(node)
    mark_stuck(node, NAMESPACE, name)
    return lambda: mark_stuck(node, NAMESPACE, name, None)


def held(node: GpuNode) -> Callable[[], object]:
    gpus = node.cluster.gpus
    instances = node.cluster.gpus.snapshot()["gpus"][0]["instances"]
    held = [
        gpus.add_process(0, each["id"], 0, pid=9_000_000 + each["id"], name="python train.py", kind="handle")
        for each in instances
    ]

    def free() -> None:
        for each in held:
            gpus.remove_process(each)

    return free


@pytest.mark.parametrize(
    ("hinder", "reason", "part"),
    [
        (guarded, "EvictionBlocked", "web-guard"),
        (endless, "DrainTimeout", "told to end and are still there: ml/web"),
        (held, "GpuInUse", "(python train.py) holds 1g.10gb"),
    ],
)
def test_users_in_the_way_are_not_disturbed_by_a_retry_before_they_are_gone(
    make_node: MakeNode, hinder: Callable[[GpuNode], Callable[[], object]], reason: str, part: str
) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.4", "MIG_MANAGER_RETRY_LONGEST": "0.4"})
    node.becomes("small")
    free = hinder(node)
    node.becomes("balanced", "failed")
    node.history.forget()
    found = node.wait(lambda: node.status if node.status["attempt"] > 1 else None, "the second attempt")
    assert found["reason"] == reason
    assert part in found["message"]
    assert found["message"].endswith("Looked without a cordon; nothing was touched.")
    assert not node.history.touched
    free()
    node.wait(lambda: node.state == "success", "a retry")
    assert node.instances == [BALANCED, BALANCED]


def test_evictions_that_stay_refused_are_given_up_after_some_attempts(make_node: MakeNode) -> None:
    node = make_node()
    node.start(
        **QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.1", "MIG_MANAGER_RETRY_ATTEMPTS": "2"},
        MIG_MANAGER_RETRY_LONGEST="0.1",
    )
    node.becomes("small")
    guard(node)
    node.label("balanced")
    node.wait(lambda: node.status.get("attempt") == 2 and node.state == "failed", "the second attempt")
    assert "nextRetryAt" not in node.status
    node.kill()
    node.forget()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_ATTEMPTS": "2"})
    node.wait_requests(lambda each: each.resource == "pods/eviction")  # The look at the start, a dry run.
    assert "nextRetryAt" not in node.status
    assert not node.history.touched
    node.set_layouts(LAYOUTS.replace('"2g.20gb": 1', '"2g.20gb": 0'))
    node.wait(lambda: node.status.get("attempt") == 1, "an edit, which begins anew")
    node.becomes("small")


def test_nobody_is_busy_with_a_retry_that_nobody_asks_for(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_LONGEST": "0.2", "MIG_MANAGER_OPERAND_TIMEOUT": "0.1"})
    stick_operand(node)
    node.becomes("small", "failed")
    node.cluster.store.delete(NODES, None, node.cluster.node)

    def at_rest() -> bool:
        before = sum(psutil.Process(node.daemon.pid).cpu_times()[:2])
        with pytest.raises(subprocess.TimeoutExpired):
            node.daemon.wait(0.7)
        return sum(psutil.Process(node.daemon.pid).cpu_times()[:2]) - before < 0.2

    node.eventually(at_rest, "rest")


def test_resources_that_are_not_advertised_keep_the_layout_and_are_never_a_success(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start(**NO_PLUGIN | {"MIG_MANAGER_RETRY_FIRST": "0.3", "MIG_MANAGER_RETRY_LONGEST": "0.3"})
    stop = break_plugin(node)
    status = node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("ResourcesNotAdvertised", "WaitingForResources")
    assert "no new device plugin pod is Ready" in status["message"]
    assert node.instances == [BALANCED, BALANCED]
    assert not node.cordoned
    assert node.clients_run
    node.wait(lambda: node.status.get("attempt", 0) >= 3 and node.state == "failed", "more attempts")
    assert not any(each.layout == "balanced" and each.state == "success" for each in node.history.versions)
    assert node.terminate() == 0
    node.start(**QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.3"})
    stop()
    node.wait(lambda: node.state == "success", "the plugin that works again")
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}


def test_after_a_failed_rollback_the_node_stays_cordoned_and_nothing_is_done_until_another_wish(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start()
    node.becomes("small")
    assert node.terminate() == 0
    node.start(**NO_PLUGIN | {"MIG_MANAGER_RETRY_FIRST": "0.1"})
    stop = break_plugin(node)
    node.cluster.gpus.fail(CREATE, NVML_ERROR_UNKNOWN, times=None)
    status = node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("RollbackFailed", "Applying")
    assert "Putting the previous layout back failed too" in status["message"]
    assert status["message"].endswith("The node stays cordoned.")
    assert "nextRetryAt" not in status
    assert node.cordoned
    assert node.clients_run
    held = node.instances
    node.cluster.gpus.clear_faults()
    node.cluster.gpus.record_calls()
    assert node.terminate() == 0
    node.history.forget()
    node.start(**QUICK | {"MIG_MANAGER_RESOURCES_TIMEOUT": "4"})
    node.wait(lambda: node.history.phases and node.state == "failed", "the restarted daemon to look")
    assert node.status["message"] == status["message"]
    assert node.cluster.gpus.calls(changes=True) == []
    assert node.instances == held
    stop()
    node.becomes("small")
    assert not node.cordoned
    assert node.instances == [SMALL, SMALL]
