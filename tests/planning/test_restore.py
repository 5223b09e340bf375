"""Back to the previous layout, and the read-back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.plan import GpuPlan
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.restore import plan_restore
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState
from mig_manager.planning.verify import differences
from tests.planning.carry_out import carry_out
from tests.planning.geometries import A100, FOUR, RTX, instance, inventory, node_plan, state, target
from tests.planning.oracle import insides, reachable


def shape(gpu: GpuState) -> object:
    """What is restored of a GPU."""
    return gpu.mig_current, [
        (
            one.profile,
            one.placement,
            Counter((compute.slices, compute.placement) for compute in one.compute),
        )
        for one in gpu.instances
    ]


def random_state(
    geometry: GpuGeometry, layouts: list[tuple[tuple[str, Placement], ...]], chance: random.Random
) -> GpuState:
    if chance.random() < 0.1:
        return state(geometry, current=False)
    profiles = {str(profile.name): profile for profile in geometry.profiles}
    present = []
    for name, place in chance.choice(layouts):
        sizes = [kind.slices for kind in profiles[name].compute]
        # Often of the same sizes, so that two states differ in nothing but where these lie.
        wanted = [chance.choice([sizes[0], chance.choice(sizes)]) for _ in range(chance.randint(0, 2))]
        ways = sorted(insides(profiles[name], wanted))
        compute = chance.choice(ways) if ways else [(profiles[name].name.gpu_slices, 0)]
        present.append(instance(geometry, name, place.start, compute, id=chance.randint(0, 14)))
    return state(geometry, present)


@pytest.mark.parametrize("geometry", [FOUR, A100, RTX], ids=["FOUR", "A100", "RTX"])
def test_any_state_is_brought_back_from_any_other(geometry: GpuGeometry) -> None:
    chance = random.Random(11)
    layouts = list(reachable(geometry))
    for _ in range(400):
        before = random_state(geometry, layouts, chance)
        now = random_state(geometry, layouts, chance)
        plan = plan_restore(inventory(before), inventory(now))
        (gpu,) = plan.gpus
        after = carry_out(gpu, now)
        assert shape(after) == shape(before)
        assert differences(plan, inventory(after)) == ()
        assert gpu.changes is (shape(now) != shape(before))
        assert not plan_restore(inventory(before), inventory(after)).changes
        # What is the same in both stays.
        same = {
            (one.placement, one.profile, compute.slices, compute.placement)
            for one in now.instances
            for compute in one.compute
        } & {
            (one.placement, one.profile, compute.slices, compute.placement)
            for one in before.instances
            for compute in one.compute
        }
        stays = {
            (kept.instance.placement, kept.instance.profile, compute.slices, compute.placement)
            for kept in gpu.keep
            for compute in kept.stays
        }
        assert stays == same


def test_a_compute_instance_at_another_place_is_not_the_previous_one() -> None:
    before = state(A100, [instance(A100, "3g.40gb", 4, [(1, 0), (1, 2)])])
    now = state(A100, [instance(A100, "3g.40gb", 4, [(1, 0), (1, 1)])])
    (kept,) = plan_restore(inventory(before), inventory(now)).gpus[0].keep
    assert kept.destroy == now.instances[0].compute[1:]
    assert [(one.slices, one.placement) for one in kept.create] == [(1, Placement(2, 1))]


def test_a_pending_mode_is_taken_back() -> None:
    before = state(A100, current=False)
    plan = plan_restore(inventory(before), inventory(replace(before, mig_pending=True)))
    mode = plan.gpus[0].mig
    assert (mode.current, mode.pending, mode.target, mode.reset) == (False, True, False, False)
    assert plan.changes


def test_the_mode_that_was_in_force_is_restored_with_its_instances() -> None:
    before = replace(state(A100, [instance(A100, "3g.40gb", 4, [(1, 2), (1, 0)])]), mig_pending=False)
    plan = plan_restore(inventory(before), inventory(state(A100, current=False))).gpus[0]
    assert (plan.mig.target, plan.mig.reset) == (True, True)
    (new,) = plan.create
    assert new.placement == Placement(4, 4)
    assert {one.placement for one in new.compute} == {Placement(0, 1), Placement(2, 1)}


def test_a_gpu_that_is_gone_keeps_its_plan_and_a_new_one_is_not_touched() -> None:
    gone = state(A100, [instance(A100, "1g.10gb", 0)])
    new = replace(gone, gpu=replace(gone.gpu, index=1, uuid="GPU-1"))
    plan = plan_restore(inventory(gone), inventory(new))
    assert len(plan.gpus[0].create) == 1
    assert plan.untouched == (1,)
    assert differences(plan, inventory(new)) == ("GPU 0 (Test GPU) is gone",)


def _drop_first(gpu: GpuState) -> GpuState:
    return replace(gpu, instances=gpu.instances[1:])


def _change_first(change: Callable[[GpuInstance], GpuInstance]) -> Callable[[GpuState], GpuState]:
    return lambda gpu: replace(gpu, instances=(change(gpu.instances[0]), *gpu.instances[1:]))


def _add(extra: GpuInstance) -> Callable[[GpuState], GpuState]:
    return lambda gpu: replace(gpu, instances=(*gpu.instances, extra))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_drop_first, ["3g.40gb at memory slices 0-3 is missing"]),
        (_add(instance(A100, "1g.10gb", 6)), ["1g.10gb at memory slice 6 is left over"]),
        (
            _change_first(lambda one: replace(one, compute=())),
            ["3g.40gb at memory slices 0-3 has no compute instance; 1c at 0, 2c at 1-2 is wanted"],
        ),
        (
            _change_first(lambda one: replace(one, compute=one.compute[:1])),
            ["3g.40gb at memory slices 0-3 has 1c at 0; 1c at 0, 2c at 1-2 is wanted"],
        ),
        (
            _change_first(lambda one: replace(one, placement=Placement(4, 4))),
            ["3g.40gb at memory slices 0-3 is missing", "3g.40gb at memory slices 4-7 is left over"],
        ),
        (lambda gpu: replace(gpu, mig_pending=False), ["MIG mode is on as wanted, but off is pending"]),
        (
            lambda gpu: replace(gpu, mig_current=False, instances=()),
            [
                "MIG mode is off; on is wanted and pending",
                "3g.40gb at memory slices 0-3 is missing",
                "2g.20gb at memory slices 4-5 is missing",
            ],
        ),
    ],
)
def test_the_read_back_tells_every_difference(spoil: Callable[[GpuState], GpuState], said: list[str]) -> None:
    kept = instance(A100, "3g.40gb", 0, [(1, 0), (2, 1)])
    before = state(A100, [kept])
    plan = plan_gpu(target(["1c.3g.40gb", "2c.3g.40gb", "2g.20gb"]), before)
    after = carry_out(plan, before)
    assert differences(node_plan(plan), inventory(after)) == ()
    assert list(differences(node_plan(plan), inventory(spoil(after)))) == [
        f"GPU 0 (Test GPU): {text}" for text in said
    ]


def test_a_compute_instance_that_the_device_placed_may_lie_anywhere_but_others_where_promised() -> None:
    gpu = state(A100)
    alone = plan_gpu(target(["1c.3g.40gb"]), gpu)
    assert _read_back(alone, gpu, Placement(2, 1)) == ()
    pair = plan_gpu(target(["1c.3g.40gb"] * 2), gpu)
    assert _read_back(pair, gpu, Placement(1, 1), Placement(0, 1)) == ()
    assert _read_back(pair, gpu, None, Placement(0, 1)) == ()
    assert len(_read_back(pair, gpu, Placement(2, 1), Placement(0, 1))) == 1


def _read_back(plan: GpuPlan, gpu: GpuState, *places: Placement | None) -> tuple[str, ...]:
    after = carry_out(plan, gpu)
    compute = tuple(ComputeInstance(number, 1, place) for number, place in enumerate(places))
    moved = replace(after, instances=(replace(after.instances[0], compute=compute),))
    return differences(node_plan(plan), inventory(moved))
