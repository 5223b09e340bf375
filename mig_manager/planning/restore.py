"""Back to exactly what the GPUs looked like before."""

from __future__ import annotations

from collections.abc import Sequence

from mig_manager.planning.plan import (
    GpuPlan,
    KeptInstance,
    ModeChange,
    NewComputeInstance,
    NewInstance,
    NodePlan,
)
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

PREVIOUS = "the previous layout"
"""What a restoring plan bears as the name of its layout."""


def plan_restore(before: Inventory, now: Inventory) -> NodePlan:
    """The plan that brings every GPU of `before` back: mode, instances, placements, compute instances.

    What is still the same stays. The mode that was in force is the mode to restore, also where another was
    pending. A GPU that is not in `now` any more gets a plan as if it were empty, which then fails on the
    device and is told there, without keeping the others from being restored. GPUs that only `now` has are not
    touched. To restore some GPUs only, pass those in `before`.
    """
    states = {state.gpu.uuid: state for state in now.gpus}
    plans = tuple(_restore(previous, states.get(previous.gpu.uuid)) for previous in before.gpus)
    known = {previous.gpu.uuid for previous in before.gpus}
    untouched = tuple(state.gpu.index for state in now.gpus if state.gpu.uuid not in known)
    return NodePlan(PREVIOUS, plans, untouched)


def _restore(before: GpuState, now: GpuState | None) -> GpuPlan:
    current = now.mig_current if now else before.mig_current
    pending = now.mig_pending if now else before.mig_current
    target = before.mig_current
    reset = before.mode_change_needs_reset and current != target
    mode = ModeChange(current, pending, target, reset)
    there = now.instances if now and current else ()
    wanted = before.instances if target else ()
    keep = []
    create = []
    for previous in wanted:
        same = next((one for one in there if _same_instance(previous, one)), None)
        if same is not None:
            keep.append(_keep(previous, same))
        else:
            compute = tuple(_again(one) for one in previous.compute)
            create.append(NewInstance(previous.profile, previous.profile_id, previous.placement, compute))
    stays = {kept.instance.placement for kept in keep}
    destroy = tuple(one for one in there if one.placement not in stays)
    create.sort(key=lambda new: new.placement)
    gpu = now.gpu if now else before.gpu
    return GpuPlan(gpu, mode, tuple(keep), destroy, tuple(create))


def _same_instance(one: GpuInstance, other: GpuInstance) -> bool:
    return one.placement == other.placement and one.profile_id == other.profile_id


def _keep(previous: GpuInstance, there: GpuInstance) -> KeptInstance:
    missing = list(previous.compute)
    destroy = []
    for compute in sorted(there.compute, key=lambda compute: compute.placement is None):
        match = _match(compute, missing)
        if match is None:
            destroy.append(compute)
        else:
            missing.remove(match)
    return KeptInstance(there, tuple(destroy), tuple(_again(compute) for compute in missing))


def _match(compute: ComputeInstance, missing: Sequence[ComputeInstance]) -> ComputeInstance | None:
    """The previous compute instance that this one is; an unknown placement may be any."""
    same = [one for one in missing if one.slices == compute.slices]
    exact = [one for one in same if one.placement == compute.placement]
    loose = [one for one in same if one.placement is None or compute.placement is None]
    return next(iter(exact or loose), None)


def _again(compute: ComputeInstance) -> NewComputeInstance:
    return NewComputeInstance(compute.slices, compute.placement)
