"""MIG mode, resets, reloads and reboots, by generation and by what stands in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pynvml import (
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_IN_USE,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_RESET_REQUIRED,
    NVML_SUCCESS,
)

from mig_manager.simulation import nvidia_smi
from mig_manager.simulation.gpus import ResetRefusedError, SimulatedGpus
from mig_manager.simulation.nvml import install
from tests.simulation.nvml_node import create_at, fails, gpu, instances, node, profiles, pynvml

A100 = "A100-SXM4-80GB"
H100 = "H100-80GB-HBM3"

OTHER = """
import sys, pynvml
from mig_manager.simulation.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
print("open", flush=True)
sys.stdin.readline()
pynvml.nvmlShutdown()
print("closed", flush=True)
sys.stdin.readline()
"""


@contextmanager
def monitor(gpus: SimulatedGpus) -> Iterator[subprocess.Popen[str]]:
    """Another process that has NVML open."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(gpus.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def mode(index: int = 0) -> list[int]:
    return list(pynvml.nvmlDeviceGetMigMode(gpu(index)))


def reset(gpus: SimulatedGpus, *indices: int) -> int:
    """As a manager does it: NVML closed, then the command."""
    pynvml.nvmlShutdown()
    ids = ",".join(gpus.snapshot()["gpus"][index]["uuid"] for index in indices)
    code = nvidia_smi.main(["--state", str(gpus.path), "--gpu-reset", "-i", ids])
    pynvml.nvmlInit()
    return code


def test_an_idle_ampere_gpu_is_reset_within_the_call(tmp_path: Path) -> None:
    with node(tmp_path, A100):
        device = gpu()
        assert pynvml.nvmlDeviceSetMigMode(device, 1) == NVML_SUCCESS
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetMigMode, device)
        assert mode() == [1, 1]
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == NVML_SUCCESS
        assert mode() == [1, 1]
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == NVML_SUCCESS
        assert mode() == [0, 0]
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceSetMigMode, gpu(), 2)


def test_an_ampere_mode_stays_pending_while_another_process_has_nvml_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node(tmp_path, f"2x{A100}") as gpus:
        with monitor(gpus) as process:
            assert set(gpus.sessions()) == {os.getpid(), process.pid}
            assert pynvml.nvmlDeviceSetMigMode(gpu(1), 1) == NVML_ERROR_IN_USE
            assert (mode(0), mode(1)) == ([0, 0], [0, 1])
            assert reset(gpus, 1) == 255
            assert "00000000:0F:00.0: In use by another client" in capsys.readouterr().out
            assert mode(1) == [0, 1]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert gpus.sessions() == [os.getpid()], "the session of a killed process holds nothing"
        assert reset(gpus, 1) == 0
        assert "GPU 00000000:0F:00.0 was successfully reset." in capsys.readouterr().out
        assert (mode(0), mode(1)) == ([0, 0], [1, 1])


def test_a_closed_session_holds_nothing(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus, monitor(gpus) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == NVML_SUCCESS


def test_a_pending_mode_can_be_taken_back(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus:
        gpus.hold(pid=99, name="dcgm-exporter")
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == NVML_ERROR_IN_USE
        assert mode() == [0, 1]
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == NVML_SUCCESS
        assert mode() == [0, 0]


@pytest.mark.parametrize(
    ("options", "status", "exit_code", "words"),
    [
        ({"drm": True}, NVML_ERROR_IN_USE, 255, "In use by another client"),
        ({"persistence": True}, NVML_ERROR_IN_USE, 255, "In use by another client"),
        ({"resets": "refused"}, NVML_ERROR_IN_USE, 255, "In use by another client"),
        ({"resets": "unsupported"}, NVML_ERROR_RESET_REQUIRED, 3, "is not supported"),
        ({"passthrough": True}, NVML_ERROR_RESET_REQUIRED, 3, "is not supported"),
        ({"grouped_resets": True}, NVML_ERROR_IN_USE, 255, "must be reset in the same command"),
    ],
)
def test_what_keeps_an_ampere_mode_pending_until_a_reboot(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    status: int,
    exit_code: int,
    words: str,
) -> None:
    with node(tmp_path, f"2x{A100}", **options) as gpus:
        assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == status
        assert mode() == [0, 1]
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceCreateGpuInstance, gpu(0), 19)
        assert reset(gpus, 0) == exit_code
        assert words in capsys.readouterr().out
        assert mode() == [0, 1]
        pynvml.nvmlShutdown()
        gpus.reboot()
        pynvml.nvmlInit()
        assert mode() == [1, 1]


def test_linked_gpus_are_reset_together_and_persistence_mode_can_be_turned_off(tmp_path: Path) -> None:
    with node(tmp_path, f"2x{A100}", grouped_resets=True, persistence=True) as gpus:
        pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
        assert reset(gpus, 0, 1) == 255
        for index in (0, 1):
            assert pynvml.nvmlDeviceGetPersistenceMode(gpu(index)) == 1
            pynvml.nvmlDeviceSetPersistenceMode(gpu(index), 0)
        assert reset(gpus, 0, 1) == 0
        assert (mode(0), mode(1)) == ([1, 1], [0, 0])


def test_hopper_changes_its_mode_at_once_unless_it_is_busy(tmp_path: Path) -> None:
    with node(tmp_path, H100) as gpus:
        gpus.hold(pid=99, name="dcgm-exporter")
        job = gpus.add_process(0, pid=4711, name="train.py")
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == NVML_ERROR_IN_USE
        assert mode() == [0, 1]
        gpus.remove_process(job)
        device = gpu()
        assert pynvml.nvmlDeviceSetMigMode(device, 1) == NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]


@pytest.mark.parametrize("model", [A100, H100])
def test_mig_is_not_turned_off_over_instances(tmp_path: Path, model: str) -> None:
    with node(tmp_path, model, mig=True):
        instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == NVML_ERROR_IN_USE
        assert mode() == [1, 0]
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == NVML_SUCCESS
        assert mode() == [0, 0]


@pytest.mark.parametrize("event", ["reset", "reboot", "reload"])
def test_ampere_keeps_its_mode_hopper_loses_it_and_neither_keeps_instances(
    tmp_path: Path, event: str
) -> None:
    with node(tmp_path, f"{A100},{H100}", mig=True) as gpus:
        for index in (0, 1):
            create_at(gpu(index), 9, 4, 4)
        if event == "reset":
            assert reset(gpus, 0, 1) == 0
        else:
            pynvml.nvmlShutdown()
            boot = gpus.boot_id
            gpus.reboot() if event == "reboot" else gpus.restart_driver()
            assert (gpus.boot_id != boot) is (event == "reboot")
            pynvml.nvmlInit()
        assert mode(0) == [1, 1]
        assert mode(1) == ([1, 1] if event == "reset" else [0, 0])
        assert instances(gpu(0)) == []
        assert all(not picture["instances"] for picture in gpus.snapshot()["gpus"])


def test_a_gpu_without_mig_has_no_mode(tmp_path: Path) -> None:
    with node(tmp_path, f"T4,{A100}"):
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetMigMode, gpu(0))
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceSetMigMode, gpu(0), 1)
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu(0), 0)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 0
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(1)) == 0
        assert mode(1) == [0, 0]


def test_driver_restarts_as_processes_see_them(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus:
        device = gpu()
        with pytest.raises(ResetRefusedError):
            gpus.restart_driver()
        gpus.unload_driver(force=True)
        fails(NVML_ERROR_GPU_IS_LOST, pynvml.nvmlDeviceGetUUID, device)
        pynvml.nvmlShutdown()
        fails(NVML_ERROR_DRIVER_NOT_LOADED, pynvml.nvmlInit)
        gpus.load_driver("590.10")
        fails(NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.nvmlInit)
        install(str(gpus.path))
        pynvml.nvmlInit()
        assert pynvml.nvmlSystemGetDriverVersion() == "590.10"
        pynvml.nvmlShutdown()
        gpus.replace_library("595.1")
        install(str(gpus.path))
        fails(NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.nvmlInit)
        gpus.restart_driver()
        install(str(gpus.path))
        pynvml.nvmlInit()
        assert pynvml.nvmlSystemGetDriverVersion() == "595.1"


def test_a_lost_gpu_comes_back_with_a_reset(tmp_path: Path) -> None:
    with node(tmp_path, f"2x{A100}") as gpus:
        device = gpu(0)
        gpus.lose(0)
        fails(NVML_ERROR_GPU_IS_LOST, pynvml.nvmlDeviceGetMigMode, device)
        fails(NVML_ERROR_GPU_IS_LOST, gpu, 0)
        assert mode(1) == [0, 0]
        assert reset(gpus, 0) == 0
        assert mode(0) == [0, 0]


def test_nvidia_smi_says_what_it_did_not_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        pynvml.nvmlGpuInstanceCreateComputeInstance(create_at(gpu(), profiles(gpu())["3g.40gb"].id, 0, 4), 0)
        command = ["--state", str(gpus.path)]
        assert nvidia_smi.main([*command, "-r", "-i", "GPU-not-there"]) == 6
        assert capsys.readouterr().out == "No devices were found\n"
        assert nvidia_smi.main([*command, "-L"]) == 0
        assert "  MIG 1c.3g.40gb      Device  0: (UUID: MIG-" in capsys.readouterr().out
        gpus.unload_driver(force=True)
        assert nvidia_smi.main([*command, "-L"]) == 9
        pynvml.nvmlShutdown()
        gpus.load_driver()
        pynvml.nvmlInit()
