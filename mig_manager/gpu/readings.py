"""What NVML tells, as values without handles."""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.geometry import Engines, Placement


@dataclass(frozen=True, slots=True)
class GpuProfileInfo:
    """nvmlGpuInstanceProfileInfo_t."""

    enum: int
    id: int
    slices: int
    instances: int
    multiprocessors: int
    memory_mb: int
    engines: Engines
    name: str | None
    """Only from drivers that have the second version of the call."""
    p2p: bool | None = None
    """isP2pSupported; not in the third version of the struct."""


@dataclass(frozen=True, slots=True)
class ComputeProfileInfo:
    """nvmlComputeInstanceProfileInfo_t."""

    enum: int
    id: int
    slices: int
    instances: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """nvmlGpuInstanceInfo_t or nvmlComputeInstanceInfo_t, without the handles."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs on a GPU."""

    pid: int
    gpu_instance: int | None
    """None outside MIG."""
    compute_instance: int | None
    name: str = ""
    """As NVML tells it, where it was asked for."""


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Who uses a GPU, and what else decides whether it can be reset."""

    gpu: GpuIdentity
    minor: int | None
    """N of /dev/nvidiaN. It may be another one after a reset."""
    persistence: bool | None
    """Persistence mode; None where the GPU has none."""
    passthrough: bool
    """Whether this is a virtual machine that the GPU is passed through to."""
    processes: tuple[Process, ...]
