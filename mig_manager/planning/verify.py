"""The read-back: whether the GPUs are what a plan promised. Return codes are no evidence; this is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.explain import gpu_words, run_words
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, NewComputeInstance, NodePlan
from mig_manager.planning.state import ComputeInstance, GpuState, Inventory

_Compute = tuple[int, Placement | None]
"""A compute instance: its slices, and where it lies; None where that was not said."""


def differences(plan: NodePlan, now: Inventory) -> tuple[str, ...]:
    """What is not as the plan promised, one sentence each; empty when everything is.

    Modes (in force and pending), instances, placements and compute instances are compared, and nothing may be
    left over. GPUs that the plan does not name are not looked at.
    """
    states = {state.gpu.uuid: state for state in now.gpus}
    found: list[str] = []
    for gpu in plan.gpus:
        state = states.get(gpu.gpu.uuid)
        if state is None:
            found.append(f"{gpu_words(gpu.gpu)} is gone")
            continue
        found.extend(
            f"{gpu_words(gpu.gpu)}: {text}" for text in (*_mode(gpu, state), *_instances(gpu, state))
        )
    return tuple(found)


def _mode(plan: GpuPlan, state: GpuState) -> Iterator[str]:
    target = plan.mig.target
    if state.mig_current != target:
        pending = " and pending" if state.mig_pending == target else ""
        yield f"MIG mode is {_on(state.mig_current)}; {_on(target)} is wanted{pending}"
    elif state.mig_pending != target:
        yield f"MIG mode is {_on(target)} as wanted, but {_on(state.mig_pending)} is pending"


def _instances(plan: GpuPlan, state: GpuState) -> Iterator[str]:
    there = {(one.placement, one.profile_id): one for one in state.instances}
    for place, profile_id, name, compute in _promised(plan):
        instance = there.pop((place, profile_id), None)
        if instance is None:
            yield f"{_words(name, place)} is missing"
        elif not _fulfils(compute, instance.compute):
            yield (
                f"{_words(name, place)} has {_compute_words(_actual(instance.compute))}; "
                f"{_compute_words(compute)} is wanted"
            )
    for instance in there.values():
        yield f"{_words(instance.profile, instance.placement)} is left over"


def _promised(plan: GpuPlan) -> Iterator[tuple[Placement, int, MigProfile, Sequence[_Compute]]]:
    for kept in plan.keep:
        instance = kept.instance
        compute = (*_actual(kept.stays), *_actual(kept.create))
        yield instance.placement, instance.profile_id, instance.profile, compute
    for new in plan.create:
        yield new.placement, new.profile_id, new.profile, _actual(new.compute)


def _actual(compute: Sequence[ComputeInstance | NewComputeInstance]) -> tuple[_Compute, ...]:
    return tuple((one.slices, one.placement) for one in compute)


def _fulfils(promised: Sequence[_Compute], compute: Sequence[ComputeInstance]) -> bool:
    """Whether these are the promised ones; where no placement was promised or none is known, any will do."""
    wanted = Counter(promised)
    there = Counter(_actual(compute))
    common = wanted & there
    wanted -= common
    there -= common
    loose_wanted = Counter(slices for slices, _ in wanted.elements())
    loose_there = Counter(slices for slices, _ in there.elements())
    if loose_wanted != loose_there:
        return False
    return all(
        sum(count for (size, place), count in wanted.items() if size == slices and place is not None)
        <= sum(count for (size, place), count in there.items() if size == slices and place is None)
        for slices in loose_wanted
    )


def _compute_words(compute: Sequence[_Compute]) -> str:
    if not compute:
        return "no compute instance"
    words = [
        f"{slices}c" if place is None else f"{slices}c at {run_words(place)}"
        for slices, place in sorted(
            compute, key=lambda one: (one[1] is None, one[1] or Placement(0, 0), one[0])
        )
    ]
    return ", ".join(words)


def _words(name: MigProfile, place: Placement) -> str:
    noun = "memory slice" if place.size == 1 else "memory slices"
    return f"{name} at {noun} {run_words(place)}"


def _on(mode: bool) -> str:
    return "on" if mode else "off"
