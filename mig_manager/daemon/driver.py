"""How the settings reach the driver: the worker that speaks NVML, and the command that resets GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from mig_manager.daemon.settings import Settings
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.work import WorkerOptions
from mig_manager.gpu.worker import GpuWorker
from mig_manager.host.driver import find_library
from mig_manager.host.reset import reset_gpus
from mig_manager.layouts.layout import GpuIdentity


def new_worker(settings: Settings) -> GpuWorker:
    """A worker, not started, on the driver as it is at this moment; it may have been upgraded since the last."""
    source = NvmlSource(
        library=None if settings.nvml_loader else find_library(settings.driver_root),
        loader=settings.nvml_loader or None,
        argument=settings.nvml_argument,
    )
    options = WorkerOptions(
        parallel=settings.parallel_gpus,
        in_use_window_s=settings.in_use_window,
        call_timeout_s=settings.nvml_call_timeout,
    )
    return GpuWorker(source, options=options)


def reset(settings: Settings, gpus: Sequence[GpuIdentity]) -> None:
    """Reset exactly these GPUs with the command of the settings. Raises what `reset_gpus` raises."""
    reset_gpus(settings.reset_command, gpus, root=settings.driver_root, timeout_s=settings.reset_timeout)
