"""How the settings reach driver and host: the NVML worker, resets, and what containers find their GPUs by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from loguru import logger

from mig_manager.daemon.settings import Settings
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.clearance import Clearance, unnamed, unnoted
from mig_manager.gpu.control import CallRecord
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.procfs import HostFiles
from mig_manager.gpu.work import WorkerOptions
from mig_manager.gpu.worker import GpuWorker, uncounted
from mig_manager.host.cdi import refresh_cdi
from mig_manager.host.devicenodes import create_capability_nodes
from mig_manager.host.driver import find_library
from mig_manager.host.drm import MODULE, DrmModule, refuse_while_it_sets_modes
from mig_manager.host.reset import reset_gpus
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import NodePlan

_LINGER_S = 1.0
"""The reads of a run follow each other within a moment; between two runs there is no worker."""
_KEPT = "The GPUs have the layout, but containers may not reach all of them."


def new_worker(
    settings: Settings,
    heard: Callable[[str], None] | None = None,
    counted: Callable[[Sequence[CallRecord]], None] = uncounted,
) -> GpuWorker:
    """A worker, not started, on the driver as it is at this moment; it may have been upgraded since the last.

    `heard` is given what the worker prints; None: it goes to stderr. For `counted` see GpuWorker.
    """
    source = NvmlSource(
        library=None if settings.nvml_loader else find_library(settings.driver_root),
        loader=settings.nvml_loader or None,
        argument=settings.nvml_argument,
    )
    options = WorkerOptions(
        parallel=settings.parallel_gpus,
        in_use_window_s=settings.in_use_window,
        call_timeout_s=settings.nvml_call_timeout,
        linger_s=_LINGER_S,
    )
    return GpuWorker(source, options=options, heard=heard, counted=counted)


def new_clearance(
    settings: Settings,
    worker: GpuWorker,
    note: Callable[[Sequence[GpuIdentity]], None] = unnoted,
    pod_name: Callable[[str], str | None] = unnamed,
) -> Clearance:
    """What makes way for a change on this host; for `note` and `pod_name` see Clearance."""
    files = HostFiles(proc=settings.proc_root, dev=settings.dev_root / "dev", sys=settings.sys_root)
    return Clearance(worker, files, ignored=settings.holders_ignored, note=note, pod_name=pod_name)


def new_drm(settings: Settings, note: Callable[[], None] = lambda: None) -> DrmModule:
    """What takes nvidia_drm away for a reset; for `note` see DrmModule."""
    return DrmModule(settings.modprobe_command, sys=settings.sys_root, root=settings.driver_root, note=note)


def refuse_while_drm_holds(settings: Settings, plan: NodePlan) -> None:
    """Refuse a plan whose resets nvidia_drm keeps from working. Raises MigManagerError: GPU_IN_USE."""
    if not settings.unload_drm and MODULE not in settings.holders_ignored:
        refuse_while_it_sets_modes(plan, settings.sys_root)


def reset(settings: Settings, clearance: Clearance, module: DrmModule, gpus: Sequence[GpuIdentity]) -> None:
    """Reset exactly these GPUs, and those that have to be reset with them, with the command of the settings.

    Raises what `Clearance.let_go`, `Clearance.join`, `DrmModule.unloaded` and `reset_gpus` raise.
    """
    clearance.let_go(gpus)
    with module.unloaded() if settings.unload_drm else nullcontext():
        reset_gpus(
            settings.reset_command,
            gpus,
            root=settings.driver_root,
            timeout_s=settings.reset_timeout,
            join=clearance.join,
            sys=settings.sys_root,
        )


def publish_devices(settings: Settings) -> None:
    """Let containers reach the MIG devices of now: device nodes of new capabilities, and the CDI specification.

    Raises:
        MigManagerError: DEVICE_NODE_ERROR or CDI_ERROR; the GPUs are as they should be all the same.
    """
    nodes = create_capability_nodes(settings.proc_root, settings.dev_root / "dev")
    if nodes.created:
        logger.info("device nodes created: {}", ", ".join(path.name for path in nodes.created))
    if nodes.problems:
        raise MigManagerError(Reason.DEVICE_NODE_ERROR, f"{_KEPT} {' '.join(nodes.problems)}")
    if not settings.cdi_enabled:
        return
    roots = {
        "driver_root": settings.host_driver_root,
        "driver_root_here": settings.driver_root or Path("/"),
        "dev_root": settings.host_dev_root or settings.host_driver_root,
        "dev_root_here": settings.dev_root,
        "hook": settings.cdi_hook,
        "host": settings.host_root_mount,
    }
    values = {name: str(value) for name, value in roots.items()}
    problems = refresh_cdi(
        settings.cdi_commands, settings.cdi_specification, values, timeout_s=settings.cdi_timeout
    )
    if problems:
        raise MigManagerError(Reason.CDI_ERROR, f"{_KEPT} {' '.join(problems)}")
    logger.info("CDI specification {} made anew", settings.cdi_specification)
