"""What the GPUs of a node look like now."""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import GpuGeometry, Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance. A MIG device is exactly one of these."""

    id: int | None
    """None in a state that was read from a file."""
    slices: int
    placement: Placement | None
    """In compute slices inside the GPU instance; None where not known."""
    uuid: str | None = None
    """`MIG-...`; opaque, and never valid across a reconfiguration."""
    busy: bool = False
    """Whether a process runs on it."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance with its compute instances."""

    id: int | None
    profile: MigProfile
    """As the driver names it on that GPU; `profile.whole` holds."""
    profile_id: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()
    """By id. Empty for a leftover without compute instances, which no MIG device handle shows."""
    busy: bool = False
    """Whether somebody uses it: a process on one of its compute instances, or a pod that holds it."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU."""

    gpu: GpuIdentity
    mig_current: bool
    mig_pending: bool
    """What the mode will be after a reset (nvmlDeviceGetMigMode)."""
    mode_change_needs_reset: bool
    """True on Ampere; False from Hopper on (MIG User Guide, "Enable MIG Mode")."""
    geometry: GpuGeometry | None
    """None: the GPU has no MIG."""
    instances: tuple[GpuInstance, ...] = ()
    """By placement."""
    busy: bool = False
    """Whether a process runs on the GPU outside MIG instances."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a node, by index."""

    driver_version: str
    gpus: tuple[GpuState, ...]
