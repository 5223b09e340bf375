"""What the GPUs of a node look like now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

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

    @property
    def uuids(self) -> frozenset[str]:
        """Its own UUID, and those of its MIG devices as far as known."""
        mig = (one.uuid for instance in self.instances for one in instance.compute)
        return frozenset({self.gpu.uuid} | {uuid for uuid in mig if uuid is not None})


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a node, by index."""

    driver_version: str
    gpus: tuple[GpuState, ...]

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of all GPUs and MIG devices, as far as known."""
        return frozenset().union(*(state.uuids for state in self.gpus))

    def held(self, uuids: Collection[str]) -> Inventory:
        """The same with these devices busy too: a pod that holds one may begin to use it at any moment."""
        return replace(self, gpus=tuple(_held(state, uuids) for state in self.gpus))


def _held(state: GpuState, uuids: Collection[str]) -> GpuState:
    instances = []
    for instance in state.instances:
        compute = tuple(replace(one, busy=one.busy or one.uuid in uuids) for one in instance.compute)
        busy = instance.busy or any(one.busy for one in compute)
        instances.append(replace(instance, compute=compute, busy=busy))
    busy = state.busy or (not state.mig_current and state.gpu.uuid in uuids)
    return replace(state, instances=tuple(instances), busy=busy)
