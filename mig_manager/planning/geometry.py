"""What one GPU model offers: its profiles and their allowed placements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mig_manager.layouts.profile import MigProfile


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A run of memory slices (of compute slices, inside a GPU instance). nvmlGpuInstancePlacement_t."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The slices as bits; bit 0 is slice 0."""
        return ((1 << self.size) - 1) << self.start

    @property
    def end(self) -> int:
        """The first slice behind it."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of a GPU instance (nvmlGpuInstanceProfileInfo_t). None where the number is not known."""

    copy: int | None
    decoder: int | None
    encoder: int | None
    jpeg: int | None
    ofa: int | None


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """A compute-instance profile of one kind of GPU instance."""

    profile_id: int
    slices: int
    max_instances: int
    placements: tuple[Placement, ...]
    """In compute slices, inside the GPU instance."""


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A GPU-instance profile of one GPU model."""

    name: MigProfile
    """As the driver names it; `name.whole` holds."""
    profile_id: int
    """nvmlGpuInstanceProfileInfo_t.id: what create, list and placement calls take; not the enum."""
    enum: int
    """NVML_GPU_INSTANCE_PROFILE_*: the argument of nvmlDeviceGetGpuInstanceProfileInfo."""
    memory_mb: int
    """MiB."""
    multiprocessors: int | None
    max_instances: int
    placements: tuple[Placement, ...]
    """In memory slices, ascending."""
    engines: Engines
    compute: tuple[ComputeProfile, ...]
    """The compute profiles that such an instance offers, smallest first, base variants only."""
    assumed: frozenset[str] = frozenset()
    """Names of fields that were not read for this very model, only for its family. Empty on a device."""
    p2p: bool | None = None
    """Whether such instances talk to each other directly (isP2pSupported). None where not known."""


@dataclass(frozen=True, slots=True)
class GpuGeometry:
    """Everything a planner needs to know about a GPU model."""

    model: str
    """NVML product name."""
    memory_slices: int
    compute_slices: int
    memory_mb: int
    """Total device memory, MiB."""
    profiles: tuple[InstanceProfile, ...]
    source: Literal["device", "catalogue"]
