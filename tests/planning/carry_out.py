"""A GPU that does as a plan says, without any of the planner's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.plan import GpuPlan, NewComputeInstance
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState


def carry_out(plan: GpuPlan, state: GpuState) -> GpuState:
    """The GPU after the plan."""
    instances = [one for one in state.instances if one not in plan.destroy]
    for kept in plan.keep:
        instances.remove(kept.instance)
        still = [one for one in kept.instance.compute if one not in kept.destroy]
        compute = _compute(state.geometry, kept.instance.profile, still, kept.create)
        instances.append(replace(kept.instance, compute=compute))
    for number, new in enumerate(plan.create):
        compute = _compute(state.geometry, new.profile, [], new.compute)
        instances.append(GpuInstance(100 + number, new.profile, new.profile_id, new.placement, compute))
    return replace(
        state,
        mig_current=plan.mig.target,
        mig_pending=plan.mig.target,
        instances=tuple(sorted(instances, key=lambda one: one.placement)),
    )


def _compute(
    geometry: GpuGeometry | None,
    name: MigProfile,
    still: Sequence[ComputeInstance],
    new: Sequence[NewComputeInstance],
) -> tuple[ComputeInstance, ...]:
    assert geometry is not None
    profile = next(profile for profile in geometry.profiles if profile.name == name)
    created = []
    for number, one in enumerate(new):
        place = one.placement
        if place is None:
            # Where the device may choose, it takes the last place: nothing may rest on it being the first.
            assert not still
            assert len(new) == 1
            places = [kind.placements[-1] for kind in profile.compute if kind.slices == one.slices]
            place = places[0] if places else Placement(0, one.slices)
        created.append(ComputeInstance(50 + number, one.slices, place))
    return (*still, *created)
