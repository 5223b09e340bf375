"""Other plans for a GPU that refuses what its geometry allows."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.plan import GpuPlan
from mig_manager.planning.planner import alternatives, plan_gpu
from mig_manager.planning.state import GpuState
from tests.planning.carry_out import carry_out
from tests.planning.geometries import A30, A100, FOUR, instance, state, target
from tests.planning.oracle import check, layouts, placements, plan_score, reachable


def places(plan: GpuPlan) -> frozenset[tuple[str, Placement]]:
    kept = {(str(kept.instance.profile), kept.instance.placement) for kept in plan.keep}
    return frozenset(kept | {(str(new.profile), new.placement) for new in plan.create})


def keeps(plan: GpuPlan) -> set[Placement]:
    return {kept.instance.placement for kept in plan.keep}


@pytest.mark.parametrize("geometry", [FOUR, A30], ids=["FOUR", "A30"])
def test_alternatives_are_exactly_the_other_layouts_that_keep_as_much(geometry: GpuGeometry) -> None:
    chance = random.Random(5)
    states = list(reachable(geometry))
    names = [profile.name for profile in geometry.profiles]
    seen = 0
    for number in range(1, 4):
        for devices in combinations_with_replacement(names, number):
            possible = {frozenset(layout) for layout in placements(geometry, [str(one) for one in devices])}
            for layout in chance.sample(states, 30) if possible else []:
                gpu = state(geometry, [instance(geometry, name, at.start) for name, at in layout])
                floor = plan_gpu(target(devices), gpu)
                seen += _check_all(devices, gpu, floor, possible, chance)
    assert seen > 100


def _check_all(
    devices: tuple[MigProfile, ...],
    gpu: GpuState,
    floor: GpuPlan,
    possible: set[frozenset[tuple[str, Placement]]],
    chance: random.Random,
) -> int:
    refused = [(new.profile_id, new.placement) for new in floor.create if chance.random() < 0.5]
    refused_names = {
        (str(new.profile), new.placement)
        for new in floor.create
        if (new.profile_id, new.placement) in refused
    }
    floor_keeps = {(str(kept.instance.profile), kept.instance.placement) for kept in floor.keep}
    expected = {
        layout
        for layout in possible
        if floor_keeps <= layout and not refused_names & layout and layout != places(floor)
    }
    found = list(alternatives(target(devices), gpu, refused, floor))
    assert len(found) == len(expected)
    assert {places(plan) for plan in found} == expected
    scores = [plan_score(plan) for plan in found]
    assert scores == sorted(scores, reverse=True)
    for plan in found:
        check(plan, devices, gpu)
        assert keeps(floor) <= keeps(plan)
    return len(found)


def contents(plan: GpuPlan) -> frozenset[tuple[str, Placement, tuple[int, ...]]]:
    """What a GPU looks like after a plan, but for where compute instances lie."""
    after = [
        (
            str(kept.instance.profile),
            kept.instance.placement,
            [*(one.slices for one in kept.stays), *(one.slices for one in kept.create)],
        )
        for kept in plan.keep
    ]
    after += [(str(new.profile), new.placement, [one.slices for one in new.compute]) for new in plan.create]
    return frozenset((name, place, tuple(sorted(slices))) for name, place, slices in after)


@pytest.mark.parametrize(("geometry", "cases"), [(A30, 400), (A100, 150)], ids=["A30", "A100"])
def test_alternatives_with_compute_instances_are_exactly_those_that_keep_as_much(
    geometry: GpuGeometry, cases: int
) -> None:
    chance = random.Random(3)
    names = [profile.name.split(kind.slices) for profile in geometry.profiles for kind in profile.compute]
    seen = 0
    for _ in range(cases):
        family = chance.choice(names).gpu_instance
        alike = [name for name in names if name.gpu_instance == family]
        devices = sorted([*chance.choices(alike, k=chance.randint(1, 3)), *chance.choices(names, k=1)])
        possible = layouts(geometry, devices)
        others = [(), *sorted(layouts(geometry, chance.choices(alike, k=2)))[:2]]
        if not possible:
            continue
        present = [instance(geometry, name, at.start, inside) for name, at, inside in chance.choice(others)]
        gpu = state(geometry, present)
        floor = plan_gpu(target(devices), gpu)
        pinned = {
            (str(kept.instance.profile), kept.instance.placement): {
                (one.slices, one.placement.start) for one in kept.stays if one.placement
            }
            for kept in floor.keep
        }
        expected = set()
        for layout in possible:
            inside_of = {(name, at): set(inside) for name, at, inside in layout}
            if all(where in inside_of and stays <= inside_of[where] for where, stays in pinned.items()):
                filled = (
                    (name, at, tuple(sorted(size for size, _ in inside))) for name, at, inside in layout
                )
                expected.add(frozenset(filled))
        expected.discard(contents(floor))
        found = list(alternatives(target(devices), gpu, [], floor))
        assert len(found) == len(expected)
        assert {contents(plan) for plan in found} == expected
        scores = [plan_score(plan) for plan in found]
        assert scores == sorted(scores, reverse=True)
        for plan in found:
            check(plan, devices, gpu)
        seen += len(found)
    assert seen > 75


def test_alternatives_of_a_half_built_gpu_may_give_up_what_was_just_created_and_nothing_else() -> None:
    stays = instance(A100, "1g.10gb", 1, busy=True)
    gpu = state(A100, [stays, instance(A100, "4g.40gb", 0)][:1])
    wanted = target(["1g.10gb", "2g.20gb", "1g.10gb"])
    floor = plan_gpu(wanted, gpu)
    first, second = floor.create
    built = carry_out(replace(floor, create=(first,)), gpu)
    refused = [(second.profile_id, second.placement)]
    found = list(alternatives(wanted, built, refused, floor))
    assert found
    assert all(Placement(1, 1) in keeps(plan) for plan in found)
    assert all((second.profile_id, second.placement) not in _created(plan) for plan in found)
    # The best goes on from what was built; others give it up.
    assert keeps(found[0]) == {stays.placement, first.placement}
    assert any(first.placement not in keeps(plan) for plan in found)


def _created(plan: GpuPlan) -> set[tuple[int, Placement]]:
    return {(new.profile_id, new.placement) for new in plan.create}


def test_a_kept_compute_instance_stays_in_every_alternative() -> None:
    split = instance(A100, "3g.40gb", 0, [(1, 0), (1, 2)])
    gpu = state(A100, [split])
    wanted = target(["1c.3g.40gb"] * 3 + ["1g.10gb"])
    floor = plan_gpu(wanted, gpu)
    assert not floor.keep[0].destroy
    found = list(alternatives(wanted, gpu, [], floor))
    assert found
    for plan in found:
        check(plan, wanted.devices, gpu)
        assert [kept.destroy for kept in plan.keep if kept.instance == split] == [()]


def test_there_is_no_alternative_where_everything_is_refused_or_the_kept_instance_is_gone() -> None:
    gpu = state(A100)
    wanted = target(["7g.80gb"])
    floor = plan_gpu(wanted, gpu)
    assert list(alternatives(wanted, gpu, [(0, Placement(0, 8))], floor)) == []
    assert list(alternatives(wanted, gpu, [], floor)) == []
    there = state(A100, [instance(A100, "1g.10gb", 3)])
    floor = plan_gpu(target(["1g.10gb"] * 2), there)
    assert list(alternatives(target(["1g.10gb"] * 2), gpu, [], floor)) == []


def test_alternatives_are_computed_one_by_one() -> None:
    gpu = state(A100)
    wanted = target(["1g.10gb"] * 3)
    found = alternatives(wanted, gpu, [], plan_gpu(wanted, gpu))
    assert [new.placement.start for new in next(found).create] == [0, 1, 3]
    assert [new.placement.start for new in next(found).create] == [0, 1, 4]
    assert len(list(found)) == 35 - 3
