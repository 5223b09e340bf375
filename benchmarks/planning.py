"""How long it takes to plan one GPU. Goal: under 5 ms at the worst reachable state of the largest geometry.

Every reachable state of a geometry (every set of GPU instances that can be on it, half of them busy) is
planned for several targets, so that every target that fits is met many times; then random states with split
GPU instances, and random targets that do not fit, whose error is worded as well. Each plan is timed alone, in
processor time, which is the time it takes on an idle machine; the slowest are timed again, and their best
time counts.

Run: python -m benchmarks planning
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import median

from benchmarks._table import print_machine, print_table
from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity, GpuTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, find_model
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState

GOAL_MS = 5.0
MODELS = ("A100-SXM4-80GB", "RTX PRO 6000 Blackwell Server Edition")
_TARGETS_PER_STATE = 4
_RANDOM_CASES = 1500
_TIMED_AGAIN = 40
_REPEATS = 5

_Case = tuple[GpuTarget, GpuState]
_Set = tuple[tuple[InstanceProfile, Placement], ...]


def main() -> None:
    """Measure and print a table."""
    print_machine()
    rows = []
    for name in MODELS:
        model = find_model(name)
        for what, cases in _cases(model):
            middle, worst = measure(cases)
            rows.append((model.title, what, len(cases), f"{middle:.2f}", f"{worst:.2f}", f"{GOAL_MS:g}"))
    print_table(("planning one GPU", "states and targets", "plans", "median ms", "worst ms", "goal ms"), rows)


def measure(cases: Sequence[_Case]) -> tuple[float, float]:
    """Median and worst time of a plan, in ms."""
    times = [(_time(case), number) for number, case in enumerate(cases)]
    again = [
        min(_time(cases[number]) for _ in range(_REPEATS))
        for _, number in sorted(times, reverse=True)[:_TIMED_AGAIN]
    ]
    return 1000 * median(seconds for seconds, _ in times), 1000 * max(again)


def reachable(geometry: GpuGeometry) -> Iterator[_Set]:
    """Every set of GPU instances that placements, counts and the planner's own limits allow."""
    runs = [(profile, placement) for profile in geometry.profiles for placement in profile.placements]

    def walk(at: int, chosen: _Set) -> Iterator[_Set]:
        if at >= geometry.memory_slices:
            yield chosen
            return
        yield from walk(at + 1, chosen)
        for profile, placement in runs:
            if placement.start == at:
                yield from walk(placement.end, (*chosen, (profile, placement)))

    fits: dict[tuple[MigProfile, ...], bool] = {}
    for chosen in walk(0, ()):
        names = tuple(sorted(profile.name for profile, _ in chosen))
        if names not in fits:
            fits[names] = _possible(geometry, names)
        if fits[names]:
            yield chosen


def _cases(model: GpuModel) -> Iterable[tuple[str, list[_Case]]]:
    geometry = model.geometry
    assert geometry is not None
    chance = random.Random(model.key)
    states = list(reachable(geometry))
    targets = sorted({tuple(sorted(profile.name for profile, _ in chosen)) for chosen in states})
    whole = [
        (_target(model, targets[(number + turn * 31) % len(targets)]), _state(model, chosen, chance, _whole))
        for number, chosen in enumerate(states)
        for turn in range(_TARGETS_PER_STATE)
    ]
    yield "whole", whole
    devices = [profile.name.split(kind.slices) for profile in geometry.profiles for kind in profile.compute]
    split: list[_Case] = []
    impossible: list[_Case] = []
    while len(split) < _RANDOM_CASES or len(impossible) < _RANDOM_CASES:
        state = _state(model, chance.choice(states), chance, _split)
        wanted = tuple(sorted(chance.choices(devices, k=chance.randint(1, 7))))
        pile = split if _possible(geometry, wanted) else impossible
        if len(pile) < _RANDOM_CASES:
            pile.append((_target(model, wanted), state))
    yield "split", split
    yield "impossible", impossible


def _time(case: _Case) -> float:
    target, state = case
    begin = time.thread_time()
    with suppress(MigManagerError):
        plan_gpu(target, state)
    return time.thread_time() - begin


def _possible(geometry: GpuGeometry, devices: Sequence[MigProfile]) -> bool:
    try:
        plan_gpu(GpuTarget(_IDENTITY, True, tuple(devices), None), _gpu(geometry, ()))
    except MigManagerError:
        return False
    return True


_IDENTITY = GpuIdentity(0, "GPU-0", "00000000:07:00.0", "", 0, 0, True)


def _gpu(geometry: GpuGeometry, instances: tuple[GpuInstance, ...]) -> GpuState:
    return GpuState(_IDENTITY, True, True, True, geometry, instances)


def _target(model: GpuModel, devices: tuple[MigProfile, ...]) -> GpuTarget:
    return GpuTarget(_IDENTITY, True, devices, None)


def _state(
    model: GpuModel,
    chosen: _Set,
    chance: random.Random,
    compute: Callable[[InstanceProfile, random.Random], tuple[ComputeInstance, ...]],
) -> GpuState:
    assert model.geometry is not None
    instances = [
        GpuInstance(
            number,
            profile.name,
            profile.profile_id,
            placement,
            compute(profile, chance),
            busy=chance.random() < 0.5,
        )
        for number, (profile, placement) in enumerate(chosen)
    ]
    return _gpu(model.geometry, tuple(instances))


def _whole(profile: InstanceProfile, _: random.Random) -> tuple[ComputeInstance, ...]:
    size = profile.name.gpu_slices
    return (ComputeInstance(0, size, Placement(0, size)),)


def _split(profile: InstanceProfile, chance: random.Random) -> tuple[ComputeInstance, ...]:
    """Compute instances laid at random until none of the tried ones fits."""
    found: list[ComputeInstance] = []
    taken = 0
    for kind in chance.choices(profile.compute, k=7):
        place = chance.choice(kind.placements)
        if not place.mask & taken:
            taken |= place.mask
            found.append(ComputeInstance(len(found), kind.slices, place, busy=chance.random() < 0.3))
    return tuple(found)


if __name__ == "__main__":
    main()
