"""Plans for instances that somebody names one by one. Whatever is not named stays exactly as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.explain import gpu_words, run_words
from mig_manager.planning.geometry import ComputeProfile, GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.plan import GpuPlan, KeptInstance, NewComputeInstance, NewInstance
from mig_manager.planning.planner import mode_change
from mig_manager.planning.room import arrange, broken_limits, disjoint, free_places, lies_somewhere
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState


@dataclass(frozen=True, slots=True)
class NewByHand:
    """A GPU instance to create."""

    profile: InstanceProfile
    start: int | None
    """The first memory slice; None: where it takes the least from others."""
    compute_slices: int | None
    """Slices of its one compute instance; None: it gets none."""


def plan_create(state: GpuState, geometry: GpuGeometry, wanted: Sequence[NewByHand]) -> GpuPlan:
    """Create GPU instances beside those that are there.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE, no instance of a profile starts there; IMPOSSIBLE_LAYOUT, there
            is no room for all of them.
    """
    for new in wanted:
        if new.start is not None and all(place.start != new.start for place in new.profile.placements):
            starts = ", ".join(str(place.start) for place in new.profile.placements)
            raise MigManagerError(
                Reason.UNSUPPORTED_PROFILE,
                f"{gpu_words(state.gpu)}: no {new.profile.name} starts at memory slice {new.start}; allowed "
                f"are {starts}",
            )
    places = arrange(state, [(new.profile, new.start) for new in wanted])
    if places is None:
        raise MigManagerError(Reason.IMPOSSIBLE_LAYOUT, _no_room(state, geometry, wanted))
    create = [
        NewInstance(new.profile.name, new.profile.profile_id, place, _filling(new))
        for new, place in zip(wanted, places, strict=True)
    ]
    create.sort(key=lambda new: new.placement)
    keep = tuple(KeptInstance(instance) for instance in state.instances)
    return GpuPlan(state.gpu, mode_change(state, True), keep, (), tuple(create))


def plan_compute(
    state: GpuState, instance: GpuInstance, wanted: Sequence[tuple[ComputeProfile, int | None]]
) -> GpuPlan:
    """Create compute instances in a GPU instance beside those that are there.

    Args:
        state: the GPU.
        instance: the GPU instance.
        wanted: what to create, each with its first compute slice where that is given.

    Raises:
        MigManagerError: IMPOSSIBLE_LAYOUT; there is no room for all of them.
    """
    taken = sum(compute.placement.mask for compute in instance.compute if compute.placement is not None)
    choices = [
        [place for place in profile.placements if start in (None, place.start) and not place.mask & taken]
        for profile, start in wanted
    ]
    places = min(disjoint(choices), key=sorted, default=None)
    if places is None:
        there = ", ".join(f"{c.slices}c at {run_words(c.placement)}" for c in instance.compute if c.placement)
        names = " + ".join(str(instance.profile.split(profile.slices)) for profile, _ in wanted)
        allowed = "; ".join(
            f"{instance.profile.split(profile.slices)} lies at {_listed(profile.placements)}"
            for profile in dict.fromkeys(profile for profile, _ in wanted)
        )
        raise MigManagerError(
            Reason.IMPOSSIBLE_LAYOUT,
            f"{gpu_words(state.gpu)}: {instance_words(instance)} has no room for {names} beside {there or 'nothing'}: "
            f"{allowed}",
        )
    create = tuple(
        NewComputeInstance(profile.slices, place) for (profile, _), place in zip(wanted, places, strict=True)
    )
    keep = tuple(KeptInstance(each, (), create if each == instance else ()) for each in state.instances)
    return GpuPlan(state.gpu, mode_change(state, True), keep, (), ())


def plan_destroy(
    state: GpuState, gone: Collection[GpuInstance], compute: Collection[ComputeInstance] = ()
) -> GpuPlan:
    """Destroy GPU instances with what is in them, and single compute instances of others."""
    keep = tuple(
        KeptInstance(each, tuple(inner for inner in each.compute if inner in compute))
        for each in state.instances
        if each not in gone
    )
    destroy = tuple(each for each in state.instances if each in gone)
    return GpuPlan(state.gpu, mode_change(state, True), keep, destroy, ())


def instance_words(instance: GpuInstance) -> str:
    """A GPU instance in a message: `GPU instance 3 (1g.10gb at 2)`."""
    return f"GPU instance {instance.id} ({instance.profile} at {run_words(instance.placement)})"


def _filling(new: NewByHand) -> tuple[NewComputeInstance, ...]:
    return (NewComputeInstance(new.compute_slices, None),) if new.compute_slices is not None else ()


def _no_room(state: GpuState, geometry: GpuGeometry, wanted: Sequence[NewByHand]) -> str:
    counts = Counter(
        f"{new.profile.name}{f':{new.start}' if new.start is not None else ''}" for new in wanted
    )
    asked = " + ".join(f"{count}x{name}" for name, count in counts.items())
    there = (
        ", ".join(f"{each.profile} at {run_words(each.placement)}" for each in state.instances) or "nothing"
    )
    pairs = [(new.profile, new.start) for new in wanted]
    broken = broken_limits(state, geometry, pairs) if lies_somewhere(state, pairs) else ()
    if broken:
        why = f"that makes more {broken[0].what} than the {broken[0].most} that it can have"
    else:
        profiles = {new.profile.profile_id: new.profile for new in wanted}.values()
        why = "; ".join(
            f"{profile.name} lies at memory slices {_listed(profile.placements)}, of which "
            f"{_listed(free_places(state, profile)) or 'none'} are free"
            for profile in profiles
        )
    return f"{gpu_words(state.gpu)} has no room for {asked} beside {there}: {why}"


def _listed(places: Sequence[Placement]) -> str:
    return ", ".join(map(run_words, places))
