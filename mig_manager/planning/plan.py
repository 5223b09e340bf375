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

    @property
    def stays(self) -> tuple[ComputeInstance, ...]:
        """Its compute instances that stay."""
        gone = list(self.destroy)
        stays = []
        for compute in self.instance.compute:
            # Those read from a file have no ids: two that look alike are equal, and one of them can stay.
            if compute in gone:
                gone.remove(compute)
            else:
                stays.append(compute)
        return tuple(stays)


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The MIG mode of one GPU: as read, and as wanted."""

    current: bool
    pending: bool
    target: bool
    reset: bool
    """Whether the change takes effect only after a reset of the GPU."""

    @property
    def changes(self) -> bool:
        """Whether the mode has to be set, be it only the pending one."""
        return (self.current, self.pending) != (self.target, self.target)

    @property
    def switches(self) -> bool:
        """Whether the mode in force changes, so that everything on the GPU must go first, MIG or not."""
        return self.current != self.target


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
            self.mig.changes
            or bool(self.destroy or self.create)
            or any(kept.destroy or kept.create for kept in self.keep)
        )

    @property
    def affected(self) -> tuple[GpuInstance, ...]:
        """The GPU instances of which something goes, by placement.

        Those destroyed, and kept ones that lose any compute instance. Where the mode switches, more is
        affected: whatever runs on the GPU.
        """
        losing = [kept.instance for kept in self.keep if kept.destroy]
        return tuple(sorted((*self.destroy, *losing), key=lambda instance: instance.placement))

    @property
    def lost(self) -> tuple[ComputeInstance, ...]:
        """The compute instances that go, which are the MIG devices that nobody may use any more."""
        destroyed = [compute for instance in self.destroy for compute in instance.compute]
        return (*destroyed, *(compute for kept in self.keep for compute in kept.destroy))


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

    @property
    def resets(self) -> tuple[GpuIdentity, ...]:
        """The GPUs whose mode changes by a reset."""
        return tuple(plan.gpu for plan in self.gpus if plan.mig.switches and plan.mig.reset)

    @property
    def devices_lost(self) -> frozenset[str]:
        """UUIDs of what nobody may use any more: MIG devices that go, and their GPU.

        The GPU's own too because somebody may hold a GPU in MIG mode as a whole (the device plugin's strategy
        `none` gives it away so), and that may be any of its MIG devices. Who holds another MIG device of that
        GPU does not hold the GPU.
        """
        lost: set[str] = set()
        for plan in self.gpus:
            if plan.mig.switches or plan.mig.reset or plan.lost:
                lost.add(plan.gpu.uuid)
            lost.update(compute.uuid for compute in plan.lost if compute.uuid is not None)
        return frozenset(lost)
