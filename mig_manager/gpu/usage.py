"""Who uses a GPU as NVML tells, and its persistence mode."""

from __future__ import annotations

from typing import Any

import pynvml

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.device import Device, MigDevice
from mig_manager.gpu.nvml import NvmlCallError, text
from mig_manager.gpu.readings import GpuUsage, Process
from mig_manager.layouts.layout import GpuIdentity

_KINDS = ("Compute", "Graphics", "MPSCompute")
_NO_INSTANCE = 0xFFFFFFFF


def processes(device: Device) -> tuple[Process, ...]:
    """The processes that NVML shows on a GPU; a privileged caller sees those of its MIG devices too."""
    return tuple(dict.fromkeys(_process(each) for each in _running(device)))


def read_usage(device: Device, gpu: GpuIdentity) -> GpuUsage:
    """Who uses one GPU, asked of the GPU and of each of its MIG devices."""
    minor = device.ask_once("nvmlDeviceGetMinorNumber")
    persistence = device.ask("nvmlDeviceGetPersistenceMode")
    found = dict.fromkeys(processes(device))
    if gpu.mig_capable and device.mig_mode()[0]:
        for (instance, compute), mig in device.mig_devices().items():
            found.update((Process(int(each.pid), instance, compute), None) for each in _running(mig))
    return GpuUsage(
        gpu=gpu,
        minor=None if minor is None else int(minor),
        persistence=None if persistence is None else bool(persistence),
        passthrough=device.ask_once("nvmlDeviceGetVirtualizationMode")
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
        processes=tuple(
            Process(each.pid, each.gpu_instance, each.compute_instance, _name(device, each.pid))
            for each in found
        ),
    )


def set_persistence(device: Device, enabled: bool) -> None:
    """Set the persistence mode, and read it back. Where nvidia-persistenced runs, it is told to.

    Raises:
        MigManagerError: NVML_ERROR, also where NVML says that it worked and the mode is as before.
    """
    if device.ask("nvmlDeviceGetPersistenceMode") in (None, int(enabled)):
        return
    device.ask("nvmlDeviceSetPersistenceMode", int(enabled))
    if device.ask("nvmlDeviceGetPersistenceMode") != int(enabled):
        raise MigManagerError(
            Reason.NVML_ERROR,
            f"GPU {device.index}: persistence mode cannot be switched {'on' if enabled else 'off'}.",
        )


def _running(where: Device | MigDevice) -> list[Any]:
    found: list[Any] = []
    for kind in _KINDS:
        for version in ("_v3", "_v2"):
            running = where.ask(f"nvmlDeviceGet{kind}RunningProcesses{version}")
            if running is not None:
                found.extend(running)
                break
    return found


def _process(found: Any) -> Process:
    return Process(int(found.pid), _instance(found.gpuInstanceId), _instance(found.computeInstanceId))


def _instance(value: int | None) -> int | None:
    return None if value is None or value == _NO_INSTANCE else int(value)


def _name(device: Device, pid: int) -> str:
    try:
        return text(device.call("nvmlSystemGetProcessName", pid))
    except NvmlCallError:
        # It has ended, or belongs to another pid namespace.
        return ""
