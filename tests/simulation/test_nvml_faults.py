"""Faults and latencies on request, the record of calls, and several processes on one state file."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_IN_USE,
    NVML_ERROR_INSUFFICIENT_RESOURCES,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_UNKNOWN,
)

from mig_manager.simulation import nvidia_smi
from mig_manager.simulation.gpus import SimulatedGpus
from tests.simulation.nvml_node import create_at, fails, gpu, instances, node, placements, profiles, pynvml

A100 = "A100-SXM4-80GB"


def test_the_nth_call_fails_as_often_as_asked(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.fail("nvmlDeviceCreateGpuInstance", NVML_ERROR_IN_USE, nth=2, times=2)
        pynvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
        for _ in range(2):
            fails(NVML_ERROR_IN_USE, pynvml.nvmlDeviceCreateGpuInstance, gpu(), 19)
        pynvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
        assert len(instances(gpu())) == 2
        gpus.fail("nvmlDeviceGetCount_v2", NVML_ERROR_UNKNOWN, times=None)
        for _ in range(3):
            fails(NVML_ERROR_UNKNOWN, pynvml.nvmlDeviceGetCount)
        gpus.clear_faults()
        assert pynvml.nvmlDeviceGetCount() == 1


def test_a_fault_strikes_one_gpu_or_any_change(tmp_path: Path) -> None:
    with node(tmp_path, f"2x{A100}", mig=True) as gpus:
        gpus.fail("*", NVML_ERROR_GPU_IS_LOST, nth=3)
        gpus.fail("nvmlDeviceGetMigMode", NVML_ERROR_NO_PERMISSION, gpu=1, times=None)
        assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]
        fails(NVML_ERROR_NO_PERMISSION, pynvml.nvmlDeviceGetMigMode, gpu(1))
        instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), 19)
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        fails(NVML_ERROR_GPU_IS_LOST, pynvml.nvmlDeviceCreateGpuInstance, gpu(1), 19)
        pynvml.nvmlDeviceCreateGpuInstance(gpu(1), 19)


def test_an_answer_may_differ_from_what_was_done(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.fail("nvmlDeviceCreateGpuInstance", NVML_ERROR_UNKNOWN, acts=True)
        fails(NVML_ERROR_UNKNOWN, pynvml.nvmlDeviceCreateGpuInstance, gpu(), 19)
        (instance,) = instances(gpu())
        gpus.fail("nvmlGpuInstanceDestroy", pynvml.NVML_SUCCESS)
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert len(instances(gpu())) == 1


def test_a_placement_may_be_refused_for_no_visible_reason(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.refuse_placement(0, 0, 4)
        profile = profiles(gpu())["3g.40gb"].id
        assert (0, 4) in placements(gpu(), profile)
        fails(NVML_ERROR_INSUFFICIENT_RESOURCES, create_at, gpu(), profile, 0, 4)
        create_at(gpu(), profile, 4, 4)


def test_resets_fail_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node(tmp_path, A100) as gpus:
        pynvml.nvmlShutdown()
        command = ["--state", str(gpus.path), "--gpu-reset", "-i", "0"]
        gpus.record_calls()
        gpus.fail("reset", pynvml.NVML_ERROR_NOT_SUPPORTED)
        gpus.fail("reset", NVML_ERROR_IN_USE, nth=2)
        assert [nvidia_smi.main(command) for _ in range(3)] == [3, 255, 0]
        assert "Resetting GPU 00000000:07:00.0 is not supported." in capsys.readouterr().out
        codes = [(call.function, call.gpu, call.code) for call in gpus.calls()]
        assert codes == [("reset", 0, 3), ("reset", 0, 19), ("reset", 0, 0)]
        pynvml.nvmlInit()


CREATE = """
import sys, pynvml
from mig_manager.simulation.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    instance = pynvml.nvmlDeviceCreateGpuInstance(device, 19)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
pynvml.nvmlShutdown()
"""


def _create(gpus: SimulatedGpus, index: int, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CREATE, str(gpus.path), str(index), str(number)])


@pytest.mark.parametrize(("acts", "left"), [(False, 2), (True, 3)])
def test_a_crash_in_the_driver_takes_the_process_along(tmp_path: Path, acts: bool, left: int) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.fail("nvmlDeviceCreateGpuInstance", 0, nth=3, kills=True, acts=acts)
        assert _create(gpus, 0, 7).wait() == -signal.SIGKILL
        assert len(instances(gpu())) == left
        assert len(gpus.sessions()) == 1


def test_processes_share_the_state(tmp_path: Path) -> None:
    with node(tmp_path, f"2x{A100}", mig=True) as gpus:
        gpus.record_calls()
        crowd = [_create(gpus, index, number) for index, number in ((0, 3), (1, 7), (0, 4))]
        assert [process.wait() for process in crowd] == [0, 0, 0]
        assert [len(picture["instances"]) for picture in gpus.snapshot()["gpus"]] == [7, 7]
        changes = gpus.calls(changes=True)
        assert {call.pid for call in changes} == {process.pid for process in crowd}
        assert [sum(call.gpu == index for call in changes) for index in (0, 1)] == [14, 14]
        assert all(call.code == 0 for call in changes)


def test_calls_take_their_time_in_parallel_on_different_gpus_only(tmp_path: Path) -> None:
    def held() -> list[int]:
        return [len(picture["instances"]) for picture in gpus.snapshot()["gpus"]]

    with node(tmp_path, f"2x{A100}", mig=True) as gpus, ThreadPoolExecutor() as pool:
        with gpus.hold_calls("nvmlDeviceCreateGpuInstance", gpu=0) as gate:
            first = pool.submit(pynvml.nvmlDeviceCreateGpuInstance, gpu(0), 19)
            gate.wait()
            pynvml.nvmlDeviceCreateGpuInstance(gpu(1), 19)
            assert held() == [0, 1]
        first.result()
        gpus.latency(nvmlDeviceCreateGpuInstance=0.1)
        began = time.monotonic()
        for each in [pool.submit(pynvml.nvmlDeviceCreateGpuInstance, gpu(0), 19) for _ in range(3)]:
            each.result()
        assert time.monotonic() - began >= 0.3
        assert held() == [4, 1]


def test_a_mode_change_that_resets_takes_the_time_of_both(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus:
        gpus.latency(nvmlDeviceSetMigMode=0.05, reset=0.1)
        began = time.monotonic()
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
        assert time.monotonic() - began >= 0.15


def test_an_interrupt_arrives_behind_the_call(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.latency(nvmlDeviceGetCount_v2=30)
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            _count_for(20)


def _count_for(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceGetCount()


def test_reading_eight_full_gpus_is_cheap(tmp_path: Path) -> None:
    with node(tmp_path, f"8x{A100}", mig=True):
        for index in range(8):
            for _ in range(7):
                instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(index), 19)
                pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        device = gpu(7)
        seconds = []
        for _ in range(200):
            began = time.thread_time()
            pynvml.nvmlDeviceGetMigMode(device)
            seconds.append(time.thread_time() - began)
        assert statistics.median(seconds) < 0.001
