"""The planner against a search that simply tries everything (oracle.py)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import GpuGeometry
from mig_manager.planning.placement import Device, Search
from mig_manager.planning.plan import GpuPlan
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.profiles import resolve_profile
from mig_manager.planning.state import GpuInstance, GpuState
from mig_manager.planning.verify import differences
from tests.planning.carry_out import carry_out
from tests.planning.geometries import (
    A30,
    A100,
    FOUR,
    H100,
    ODD,
    RTX,
    instance,
    inventory,
    node_plan,
    state,
    target,
)
from tests.planning.oracle import Layout, check, insides, layouts, placements, plan_score, reachable, score

EXHAUSTIVE = "MIG_MANAGER_EXHAUSTIVE" in os.environ
"""Whether to try what is thinned out otherwise."""
GEOMETRIES = {"A30": A30, "A100": A100, "H100": H100, "RTX": RTX, "FOUR": FOUR, "ODD": ODD}


def try_plan(devices: Sequence[MigProfile], gpu: GpuState) -> GpuPlan | None:
    try:
        return plan_gpu(target(devices), gpu)
    except MigManagerError as error:
        if error.reason is not Reason.IMPOSSIBLE_LAYOUT:
            raise
        return None


def compare(devices: Sequence[MigProfile], gpu: GpuState, possible: Sequence[Layout]) -> None:
    """One plan against all layouts of its target."""
    plan = try_plan(devices, gpu)
    assert (plan is not None) == bool(possible), (devices, gpu.instances)
    if plan is None:
        return
    check(plan, devices, gpu)
    best = max(score(layout, gpu.instances) for layout in possible)
    assert plan_score(plan) == best, (devices, gpu.instances, plan)


def compare_result(devices: Sequence[MigProfile], gpu: GpuState) -> None:
    """A plan carried out ends where it said, and then there is nothing left to do."""
    plan = try_plan(devices, gpu)
    if plan is None:
        return
    after = carry_out(plan, gpu)
    assert differences(node_plan(plan), inventory(after)) == ()
    assert not plan_gpu(target(devices), after).changes


@cache
def whole_layouts(name: str, devices: tuple[MigProfile, ...]) -> tuple[Layout, ...]:
    """All layouts of whole devices: each GPU instance filled by one compute instance."""
    slices = {str(device): device.gpu_slices for device in devices}
    return tuple(
        tuple((profile, place, ((slices[profile], 0),)) for profile, place in layout)
        for layout in placements(GEOMETRIES[name], [str(device) for device in devices])
    )


def multisets(items: Sequence[MigProfile], most: int) -> Iterator[tuple[MigProfile, ...]]:
    for count in range(most + 1):
        yield from combinations_with_replacement(items, count)


@pytest.mark.parametrize(
    ("name", "capacity", "stride"), [("ODD", 3, 1), ("FOUR", 3, 1), ("A30", 4, 1 if EXHAUSTIVE else 3)]
)
def test_every_state_and_every_target_of_small_gpus_is_planned_as_well_as_possible(
    name: str, capacity: int, stride: int
) -> None:
    # With a stride, each target meets other states than the one before it.
    geometry = GEOMETRIES[name]
    states = [tuple(instance(geometry, p, at.start) for p, at in layout) for layout in reachable(geometry)]
    assert max(map(len, states)) == capacity
    marked = [
        tuple(replace(one, busy=mark) for one, mark in zip(present, busy, strict=True))
        for present in states
        for busy in product((False, True), repeat=len(present))
    ]
    targets = multisets([profile.name for profile in geometry.profiles], capacity + 1)
    for number, devices in enumerate(targets):
        first = number % stride
        possible = whole_layouts(name, devices)
        if not possible:
            assert try_plan(devices, state(geometry)) is None
            # The search alone: the words of the error would cost most of the time, and are tested elsewhere.
            assert not any(search(geometry, devices, present).possible for present in states[first::stride])
            continue
        for present in states[first::stride]:
            compare_result(devices, state(geometry, present))
        for present in marked[first::stride]:
            compare(devices, state(geometry, present), possible)


def search(
    geometry: GpuGeometry, devices: Sequence[MigProfile], present: Sequence[GpuInstance] = ()
) -> Search:
    counts = Counter(devices)
    wanted = [(Device(resolve_profile(geometry, one), one.compute_slices), counts[one]) for one in counts]
    return Search(geometry, wanted, present)


@cache
def states_of(name: str) -> tuple[tuple[GpuInstance, ...], ...]:
    geometry = GEOMETRIES[name]
    return tuple(tuple(instance(geometry, p, at.start) for p, at in layout) for layout in reachable(geometry))


@st.composite
def large_cases(draw: st.DrawFn, name: str) -> tuple[tuple[MigProfile, ...], GpuState]:
    states = states_of(name)
    present = states[draw(st.integers(0, len(states) - 1))]
    busy = draw(st.integers(0, 2 ** len(present) - 1))
    marked = [replace(one, busy=bool(busy >> bit & 1)) for bit, one in enumerate(present)]
    # Targets that fit are those of another state; every fourth has one device more.
    devices = [one.profile for one in states[draw(st.integers(0, len(states) - 1))]]
    if draw(st.integers(0, 3)) == 0:
        devices.append(draw(st.sampled_from([profile.name for profile in GEOMETRIES[name].profiles])))
    return tuple(sorted(devices)), state(GEOMETRIES[name], marked)


@pytest.mark.parametrize("name", ["A100", "H100", "RTX"])
def test_large_gpus_are_planned_as_well_as_possible(name: str) -> None:
    @settings(max_examples=250, derandomize=True)
    @given(large_cases(name))
    def run(case: tuple[tuple[MigProfile, ...], GpuState]) -> None:
        devices, gpu = case
        compare(devices, gpu, whole_layouts(name, devices))
        compare_result(devices, gpu)

    run()


@cache
def devices_of(name: str) -> tuple[MigProfile, ...]:
    """Every MIG device of a GPU, with the parts of split GPU instances."""
    geometry = GEOMETRIES[name]
    return tuple(profile.name.split(kind.slices) for profile in geometry.profiles for kind in profile.compute)


def random_present(geometry: GpuGeometry, layout: Layout | None, chance: random.Random) -> list[GpuInstance]:
    """The instances of a layout, some emptied, some with other compute instances, some busy."""
    present = []
    profiles = {str(profile.name): profile for profile in geometry.profiles}
    for name, place, inside in layout or ():
        profile = profiles[name]
        ways = [inside, inside, ()]
        sizes = [kind.slices for kind in profile.compute]
        other = [chance.choice(sizes) for _ in range(chance.randint(1, 3))]
        ways += sorted(insides(profile, other))[:1]
        compute = chance.choice(ways)
        one = instance(
            geometry,
            name,
            place.start,
            compute,
            busy=chance.random() < 0.3,
            busy_compute=[number for number in range(len(compute)) if chance.random() < 0.3],
        )
        present.append(one)
    return present


@pytest.mark.parametrize(
    ("name", "most", "cases"),
    [("FOUR", 4, 1000), ("ODD", 4, 500), ("A30", 5, 600), ("A100", 3, 400), ("RTX", 3, 300)],
)
def test_compute_instances_are_planned_as_well_as_possible(name: str, most: int, cases: int) -> None:
    geometry = GEOMETRIES[name]
    chance = random.Random(name)
    devices_there = devices_of(name)
    found = {True: 0, False: 0}
    for _ in range(cases):
        # Half of the targets are of one kind of GPU instance, whose compute instances spread in many ways.
        family = chance.choice(devices_there)
        alike = [device for device in devices_there if device.gpu_instance == family.gpu_instance]
        devices = sorted(chance.choices(chance.choice([alike, devices_there]), k=chance.randint(1, most)))
        possible = sorted(layouts(geometry, devices))
        found[bool(possible)] += 1
        # What is there: another target's layout, or one of this very target's.
        others = sorted(layouts(geometry, sorted(chance.choices(devices_there, k=chance.randint(1, 3)))))
        base = chance.choice([possible, others])
        present = random_present(geometry, chance.choice(base) if base else None, chance)
        gpu = state(geometry, present)
        compare(devices, gpu, possible)
        compare_result(devices, gpu)
    assert min(found.values()) > cases // 20
