"""The plan: what is kept, destroyed and created, per GPU."""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance


@dataclass(frozen=True, slots=True)
class NewComputeInstance:
    """A compute instance to create inside a GPU instance."""

    slices: int
    placement: Placement | None
    """In compute slices; None: the GPU instance holds it alone, and the device says where it lies."""


@dataclass(frozen=True, slots=True)
class NewInstance:
    """A GPU instance to create, always at its explicit placement, with its compute instances."""

    profile: MigProfile
    profile_id: int
    placement: Placement
    compute: tuple[NewComputeInstance, ...]


@dataclass(frozen=True, slots=True)
class KeptInstance:
    """A GPU instance that stays, with what changes inside it (nothing, as a rule)."""

    instance: GpuInstance
    destroy: tuple[ComputeInstance, ...] = ()
    create: tuple[NewComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The MIG mode of one GPU: as read, and as wanted."""

    current: bool
    pending: bool
    target: bool
    reset: bool
    """Whether the change takes effect only after a reset of the GPU."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What happens to one GPU."""

    gpu: GpuIdentity
    mig: ModeChange
    keep: tuple[KeptInstance, ...]
    destroy: tuple[GpuInstance, ...]
    create: tuple[NewInstance, ...]
    """By placement."""

    @property
    def changes(self) -> bool:
        """Whether anything at all happens to this GPU."""
        return (
            self.mig.current != self.mig.target
            or self.mig.pending != self.mig.target
            or bool(self.destroy or self.create)
            or any(kept.destroy or kept.create for kept in self.keep)
        )


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What happens to the GPUs of a node."""

    layout: str
    gpus: tuple[GpuPlan, ...]
    """One plan a selected GPU, by index, also where nothing changes."""
    untouched: tuple[int, ...]
    """Indices of the GPUs that the layout does not select."""

    @property
    def changes(self) -> bool:
        """Whether anything happens to any GPU."""
        return any(plan.changes for plan in self.gpus)
