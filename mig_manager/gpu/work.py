"""The requests of a worker, each inside an NVML session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mig_manager.gpu.apply import GpuWork
from mig_manager.gpu.control import Control, HaltedError
from mig_manager.gpu.device import Device
from mig_manager.gpu.inventory import find_gpus, read_gpu
from mig_manager.gpu.nvml import Nvml
from mig_manager.gpu.readings import GpuUsage
from mig_manager.gpu.sessions import Sessions
from mig_manager.gpu.usage import read_usage, set_persistence
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import GpuPlan, NodePlan
from mig_manager.planning.state import Inventory

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How the worker goes about its work."""

    parallel: bool = True
    """Whether the GPUs of a node are worked on at the same time."""
    in_use_window_s: float = 10.0
    """How long a GPU may refuse changes because of use before the request fails."""
    call_timeout_s: float = 60.0
    """How long one NVML call may take; a longer one counts as hung."""
    request_timeout_s: float = 600.0
    """How long a whole request may take: sixteen GPUs of seven instances, on a driver that takes its calls one by
    one and a second or two for each."""
    linger_s: float = 0.0
    """How long an NVML session outlives a request that only reads. Nobody can reset a GPU meanwhile."""


def inventory(sessions: Sessions, options: WorkerOptions, control: Control) -> Inventory:
    """What all GPUs look like."""
    with sessions.session(control, linger=True) as nvml:
        gpus = find_gpus(nvml)
        states = _each(gpus, lambda gpu: read_gpu(*gpu), options, control)
        return Inventory(nvml.driver_version(), tuple(states))


def usage(sessions: Sessions, options: WorkerOptions, control: Control) -> tuple[GpuUsage, ...]:
    """Who uses the GPUs."""
    with sessions.session(control, linger=True) as nvml:
        return tuple(_each(find_gpus(nvml), lambda gpu: read_usage(*gpu), options, control))


def persistence(
    modes: Sequence[tuple[GpuIdentity, bool]], sessions: Sessions, options: WorkerOptions, control: Control
) -> None:
    """Set persistence modes."""
    with sessions.session(control) as nvml:
        for gpu, enabled in modes:
            set_persistence(Device(nvml, gpu.uuid, gpu.index).refresh(), enabled)


def release(
    plan: NodePlan, sessions: Sessions, options: WorkerOptions, control: Control
) -> tuple[GpuIdentity, ...]:
    """Destroy what goes and set the modes. Gives the GPUs whose mode is pending until a reset."""
    plans = [gpu for gpu in plan.gpus if _releases(gpu)]
    if not plans:
        return ()
    with sessions.session(control) as nvml:
        pending = _each(plans, lambda gpu: _work(nvml, gpu, options).release(gpu), options, control)
    return tuple(gpu.gpu for gpu, waits in zip(plans, pending, strict=True) if waits)


def rebuild(plan: NodePlan, sessions: Sessions, options: WorkerOptions, control: Control) -> None:
    """Destroy what goes, then create what is new. Only for a plan that changes no mode.

    Nothing is created before all is destroyed on every GPU.
    """
    plans = [gpu for gpu in plan.gpus if gpu.changes]
    if not plans:
        return
    with sessions.session(control) as nvml:
        work = [(_work(nvml, gpu, options), gpu) for gpu in plans]
        _each(work, lambda each: each[0].release(each[1]), options, control)
        _each(work, lambda each: each[0].build(each[1]), options, control)


def build(plan: NodePlan, sessions: Sessions, options: WorkerOptions, control: Control) -> None:
    """Create what is new, on GPUs whose mode is what the plan wants."""
    plans = [gpu for gpu in plan.gpus if _builds(gpu)]
    if not plans:
        return
    with sessions.session(control) as nvml:
        _each(plans, lambda gpu: _work(nvml, gpu, options).build(gpu), options, control)


def _releases(plan: GpuPlan) -> bool:
    return bool(plan.destroy) or any(kept.destroy for kept in plan.keep) or plan.mig.changes


def _builds(plan: GpuPlan) -> bool:
    return bool(plan.create) or any(kept.create for kept in plan.keep) or plan.mig.changes


def _work(nvml: Nvml, plan: GpuPlan, options: WorkerOptions) -> GpuWork:
    return GpuWork(Device(nvml, plan.gpu.uuid, plan.gpu.index), options.in_use_window_s)


def _each(
    items: Sequence[_T], work: Callable[[_T], _R], options: WorkerOptions, control: Control
) -> list[_R]:
    """Do the work for each GPU, side by side. After the first failure no GPU begins another change."""
    if not options.parallel or len(items) < 2:
        return [work(item) for item in items]
    results: dict[int, _R] = {}
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = work(items[index])
        except HaltedError:
            pass
        except BaseException as error:  # noqa: BLE001 -- raised below, in the thread that asked
            failures.append(error)
            control.halt()

    threads = [
        threading.Thread(target=run, args=(index,), name=f"gpu-{index}", daemon=True)
        for index in range(len(items))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[index] for index in range(len(items))]
