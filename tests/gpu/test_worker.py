"""The worker process: how it starts, is interrupted, hangs, dies and ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.nvml import GPU_IS_LOST, code_name, is_failure
from mig_manager.gpu.repartition import RepartitionError, repartition
from mig_manager.gpu.worker import LostWorkerError
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.simulation.gpu.gate import Gate
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, bare, shape

SEVEN = "1g.10gb " * 7
HANGS_S = 1.5
"""After so long a call counts as hung where one shall; no other takes as long on a busy machine."""


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what another process does, where nothing tells of it."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "mig_manager.gpu" in each.cmdline()]


@contextmanager
def during(gate: Gate, do: Callable[[], object]) -> Iterator[None]:
    """Do something from another thread while a call stands before the gate, and let the call go on after it."""

    def watch() -> None:
        with gate:
            gate.wait()
            do()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(watch)
        yield
    done.result()


def planned(node: Node, *wanted: str) -> NodePlan:
    before = node.worker.inventory()
    return plan_node(node.target(*wanted, inventory=before), before)


def test_start_comes_back_before_the_process_is_ready_and_is_idempotent(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("1xA30")
    site = tmp_path / "sitecustomize.py"
    site.write_text("import fcntl; fcntl.flock(open(__file__), fcntl.LOCK_EX)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with site.open() as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        node.worker.start()
        until(lambda: len(children()) == 1)
        (child,) = children()
        node.worker.start()
        assert children() == [child]
    assert len(node.worker.inventory().gpus) == 1


def test_the_process_loads_none_of_the_heavy_libraries() -> None:
    script = "import sys, mig_manager.gpu.serve; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "pynvml" in loaded
    assert not loaded & {"pydantic", "kubernetes", "loguru", "yaml", "asyncio", "logging"}


def test_the_process_ends_with_the_block_and_leaves_no_session(make_node: MakeNode) -> None:
    node = make_node("1xA30")
    with node.worker as worker:
        worker.inventory()
        assert len(children()) == 1
    assert children() == []
    assert node.gpus.sessions() == []


def test_reads_in_a_row_share_a_session_that_rests_soon_after_the_last(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply(SEVEN)
    node.configure(linger_s=3600)
    node.gpus.record_calls()
    first = node.worker.inventory()
    alone = len(node.gpus.calls())
    assert node.worker.inventory() == first
    assert len(node.gpus.calls()) < 1.6 * alone, "what cannot change is asked once"
    node.worker.usage()
    assert sum(call.function.startswith("nvmlInit") for call in node.gpus.calls()) == 1
    node.configure(linger_s=0.05)
    node.gpus.record_calls()
    node.worker.inventory()
    until(lambda: node.gpus.calls()[-1].function == "nvmlShutdown")
    assert node.gpus.sessions() == []


def test_a_session_in_which_a_call_fails_is_not_used_again(make_node: MakeNode) -> None:
    node = make_node("1xA30")
    node.configure(linger_s=60.0)
    first = node.worker.inventory()
    node.gpus.record_calls()
    node.gpus.fail("nvmlDeviceGetMigMode", GPU_IS_LOST, times=1)
    assert node.worker.inventory() == first
    lifecycle = [call.function for call in node.gpus.calls() if call.function.startswith(("nvmlI", "nvmlSh"))]
    assert lifecycle == ["nvmlShutdown", "nvmlInitWithFlags"], "a read that fails is tried once more"
    node.gpus.fail("nvmlDeviceGetMigMode", GPU_IS_LOST, times=2)
    with pytest.raises(MigManagerError, match="does not answer on the bus"):
        node.worker.inventory()
    assert node.gpus.sessions() == []


def test_a_session_that_hangs_at_its_end_between_two_requests_costs_the_next_one_nothing(
    make_node: MakeNode,
) -> None:
    node = make_node("1xA30")
    node.configure(linger_s=0.1, call_timeout_s=HANGS_S)
    node.worker.start()
    (old,) = children()
    with node.gpus.hold_calls("nvmlShutdown", times=1):
        first = node.worker.inventory()
        until(lambda: old.status() == psutil.STATUS_ZOMBIE)
    with node.gpus.hold_calls("nvmlShutdown", times=1) as gate:
        assert node.worker.inventory() == first
        gate.wait()
        with pytest.raises(LostWorkerError, match=r"nvmlShutdown has not come back for [\d.]+ s"):
            node.worker.inventory()


def test_a_closed_worker_starts_again_at_the_next_request(make_node: MakeNode) -> None:
    node = make_node("1xA30")
    node.worker.inventory()
    open_files = psutil.Process().num_fds()
    for _ in range(2):
        node.worker.close()
        node.worker.inventory()
    assert psutil.Process().num_fds() == open_files


def test_every_call_is_told_with_the_reply_also_of_a_request_that_fails(make_node: MakeNode) -> None:
    node = make_node("2xH100-80GB-HBM3")
    plan = planned(node, "7g.80gb", "7g.80gb")
    node.gpus.fail("nvmlDeviceSetMigMode", 999, gpu=1)
    seen = len(node.worker.calls)
    with pytest.raises(MigManagerError, match=r"GPU 1: switching MIG on failed.*Unknown Error \(999\)"):
        node.worker.release(plan)
    calls = [(c.function, c.gpu, c.code) for c in node.worker.calls[seen:]]
    assert ("nvmlDeviceSetMigMode", 1, 999) in calls
    assert all(call.seconds >= 0 for call in node.worker.calls)


def test_a_call_that_never_comes_back_is_killed_and_named(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB")
    before = node.apply(SEVEN, "3g.40gb")
    node.configure(call_timeout_s=HANGS_S)
    node.gpus.fail("nvmlGpuInstanceDestroy", None, nth=2, gpu=0, seconds=3600)
    node.worker.start()
    (old,) = children()
    with pytest.raises(RepartitionError) as failed:
        node.apply("7g.80gb", "7g.80gb", before=before)
    error = failed.value
    assert error.reason is Reason.NVML_ERROR
    assert "GPU 0: nvmlGpuInstanceDestroy has not come back for " in error.message
    assert error.restored
    assert old not in children()
    assert bare(node.worker.inventory()) == bare(before)
    failed_calls = {(call.function, code_name(call.code)) for call in node.heard if is_failure(call)}
    assert failed_calls == {("nvmlGpuInstanceDestroy", "NVML_ERROR_TIMEOUT")}


def test_a_gpu_that_hangs_for_good_is_not_waited_for_again_and_again(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    before = node.apply("3g.40gb")
    node.configure(call_timeout_s=HANGS_S)
    node.gpus.fail("*", None, seconds=3600, times=None)
    with pytest.raises(RepartitionError) as failed:
        node.apply("7g.80gb", before=before)
    assert failed.value.reason is Reason.NVML_ERROR
    assert failed.value.restored, "nothing had been destroyed yet, as the device shows"
    assert [code_name(call.code) for call in node.heard if is_failure(call)] == ["NVML_ERROR_TIMEOUT"]


def test_a_request_is_bounded_as_a_whole(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    plan = planned(node, "7g.80gb")
    node.configure(request_timeout_s=0.5, in_use_window_s=3600)
    node.gpus.add_process(0, pid=1, name="train")
    with pytest.raises(LostWorkerError, match="given up"):
        node.worker.release(plan)


def test_a_process_that_dies_is_told_of_and_replaced(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    plan = planned(node, "7g.80gb")
    node.gpus.fail("nvmlDeviceSetMigMode", 999, kills=True)
    with pytest.raises(LostWorkerError, match=r"died during release: signal SIGKILL"):
        node.worker.release(plan)
    assert shape(node.worker.inventory().gpus[0]) == "off"


def test_a_process_that_died_while_idle_is_replaced_unnoticed(make_node: MakeNode) -> None:
    node = make_node("1xA30")
    node.worker.inventory()
    (child,) = children()
    child.kill()
    until(lambda: child.status() == psutil.STATUS_ZOMBIE)
    assert len(node.worker.inventory().gpus) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_do_not_cut_a_change_short(make_node: MakeNode, number: signal.Signals) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.worker.inventory()
    (child,) = children()
    with during(node.gpus.hold_calls("nvmlDeviceSetMigMode"), lambda: child.send_signal(number)):
        assert shape(node.apply("7g.80gb").gpus[0]) == "7g.80gb@0"
    assert children() == [child]


def test_stop_lets_the_call_in_hand_finish_and_begins_no_other(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    before = node.apply(SEVEN)
    node.gpus.record_calls()
    gate = node.gpus.hold_calls("nvmlGpuInstanceDestroy")
    target = node.target("7g.80gb", inventory=before)
    with during(gate, node.worker.stop_after_call), pytest.raises(RepartitionError) as stopped:
        repartition(node.worker, target, plan_node(target, before), before, node.reset)
    error = stopped.value
    assert (error.reason, error.restored, error.inventory) == (Reason.INTERRUPTED, False, None)
    changes = [(c.function, c.code) for c in node.gpus.calls(changes=True)]
    assert changes == [("nvmlComputeInstanceDestroy", 0), ("nvmlGpuInstanceDestroy", 0)]
    assert node.gpus.sessions() == []


def test_a_stop_before_the_first_change_leaves_everything(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    before = node.worker.inventory()
    node.worker.stop_after_call()
    node.gpus.record_calls()
    with pytest.raises(RepartitionError) as stopped:
        node.apply("7g.80gb", before=before)
    assert (stopped.value.reason, stopped.value.restored) == (Reason.INTERRUPTED, True)
    assert node.gpus.calls(changes=True) == []
    assert node.worker.inventory() == before


def test_a_stop_ends_the_wait_for_a_gpu_in_use(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.configure(in_use_window_s=3600)
    plan = planned(node, "7g.80gb")
    node.gpus.add_process(0, pid=1, name="train")
    second = node.gpus.hold_calls("nvmlDeviceSetMigMode", nth=2)
    with during(second, node.worker.stop_after_call), pytest.raises(MigManagerError) as stopped:
        node.worker.release(plan)
    assert stopped.value.reason is Reason.INTERRUPTED


PARENT = """
import sys
from pathlib import Path
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.worker import GpuWorker
from mig_manager.planning.planner import plan_node
from mig_manager.layouts.layout import GpuTarget, NodeTarget
from mig_manager.layouts.profile import MigProfile
worker = GpuWorker(NvmlSource(loader="mig_manager.simulation.nvml:install", argument=sys.argv[1]))
before = worker.inventory()
gpu = before.gpus[0].gpu
target = NodeTarget("x", (GpuTarget(gpu, True, (MigProfile.parse("7g.80gb"),), None),), ())
print(worker._process.pid, flush=True)
worker.release(plan_node(target, before))
"""


def test_the_process_ends_with_a_parent_that_is_killed_after_the_call_in_hand(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.apply(SEVEN)
    node.worker.close()
    node.gpus.record_calls()
    with (
        node.gpus.hold_calls("nvmlComputeInstanceDestroy") as gate,
        subprocess.Popen(
            [sys.executable, "-c", PARENT, str(node.path)], stdout=subprocess.PIPE, text=True
        ) as parent,
    ):
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        gate.wait()
        parent.kill()
    worker.wait(timeout=60)
    changes = [(c.function, c.code) for c in node.gpus.calls(changes=True)]
    assert changes == [("nvmlComputeInstanceDestroy", 0)]
    assert node.gpus.sessions() == []


def test_a_worker_that_hangs_is_ended_by_close(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.worker.inventory()
    (child,) = children()
    child.send_signal(signal.SIGSTOP)
    node.worker.close(patience_s=0.2)
    assert not child.is_running()


def test_a_missing_driver_is_retried_by_the_same_worker(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.gpus.unload_driver()
    with pytest.raises(MigManagerError, match="not loaded"):
        node.worker.inventory()
    node.gpus.load_driver()
    assert len(node.worker.inventory().gpus) == 1


def test_a_driver_that_is_upgraded_between_two_requests_is_reached_by_a_fresh_process(
    make_node: MakeNode,
) -> None:
    node = make_node("1xA100-SXM4-80GB")
    before = node.apply(SEVEN)
    plan = planned(node, "7g.80gb")
    node.gpus.restart_driver("590.44.01")
    after = node.worker.inventory()
    assert (after.driver_version, len(after.gpus[0].instances)) == ("590.44.01", 0)
    node.gpus.restart_driver("595.1")
    node.worker.build(replace(plan, gpus=tuple(replace(gpu, destroy=()) for gpu in plan.gpus)))
    assert [shape(gpu) for gpu in node.worker.inventory().gpus] == ["7g.80gb@0"]
    assert before.driver_version == "580.95.05"


def test_a_library_that_does_not_fit_the_loaded_driver_is_told_by_a_fresh_process_too(
    make_node: MakeNode,
) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.worker.inventory()
    node.gpus.replace_library("590.44.01")
    assert node.worker.inventory().driver_version == "580.95.05", "what is loaded goes on working"
    node.worker.close()
    for _ in range(2):
        with pytest.raises(MigManagerError, match="Reload the modules or reboot"):
            node.worker.inventory()


def test_two_threads_may_share_a_worker(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(node.worker.inventory())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 4
