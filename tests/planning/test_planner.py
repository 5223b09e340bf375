"""Plans, case by case: compute instances, leftovers, unknown instances, modes, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import NodeTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, ModeChange, NewComputeInstance
from mig_manager.planning.planner import plan_gpu, plan_node
from mig_manager.planning.profiles import resolve_profile
from mig_manager.planning.state import GpuInstance, GpuState
from tests.planning.geometries import A100, instance, inventory, node, state, target
from tests.planning.oracle import check


def plan(devices: Sequence[str], *present: GpuInstance) -> GpuPlan:
    gpu = state(A100, present)
    found = plan_gpu(target(devices), gpu)
    wanted = [MigProfile.parse(device) for device in devices]
    named = [resolve_profile(A100, one).name.split(one.compute_slices) for one in wanted]
    check(found, named, gpu)
    return found


def words(found: GpuPlan) -> str:
    """`keep 3g.40gb@4(+1c@0 -3c)  destroy ...  create ...`."""

    def new(compute: Sequence[NewComputeInstance]) -> list[str]:
        return [
            f"+{one.slices}c" + ("" if one.placement is None else f"@{one.placement.start}")
            for one in compute
        ]

    parts = []
    for kept in found.keep:
        change = " ".join([*(f"-{one.slices}c" for one in kept.destroy), *new(kept.create)])
        parts.append(f"keep {kept.instance.profile}@{kept.instance.placement.start}({change})")
    parts += [f"destroy {one.profile}@{one.placement.start}" for one in found.destroy]
    parts += [
        f"create {one.profile}@{one.placement.start}({' '.join(new(one.compute))})" for one in found.create
    ]
    return ", ".join(parts)


GI = instance


@pytest.mark.parametrize(
    ("devices", "present", "expected"),
    [
        pytest.param(
            ["1g.10gb"] * 2 + ["3g.40gb"],
            [GI(A100, "1g.10gb", 1, busy=True), GI(A100, "1g.10gb", 6)],
            "keep 1g.10gb@1(), destroy 1g.10gb@6, create 1g.10gb@0(+1c), create 3g.40gb@4(+3c)",
            id="where not both can stay, the busy one does",
        ),
        pytest.param(
            ["1c.3g.40gb"] * 2,
            [GI(A100, "3g.40gb", 4, [(1, 0), (1, 2)])],
            "keep 3g.40gb@4()",
            id="one split instance that holds exactly that",
        ),
        pytest.param(
            ["1c.3g.40gb"] * 2,
            [GI(A100, "3g.40gb", 0, [(1, 1)]), GI(A100, "3g.40gb", 4, [(1, 0)])],
            "keep 3g.40gb@0(), keep 3g.40gb@4()",
            id="two split instances that hold exactly that",
        ),
        pytest.param(
            ["1c.3g.40gb"] * 2,
            [],
            "create 3g.40gb@0(+1c@0 +1c@1)",
            id="the fewest instances when there is nothing",
        ),
        pytest.param(
            ["1c.3g.40gb"],
            [],
            "create 3g.40gb@0(+1c)",
            id="alone, it lies where the device puts it",
        ),
        pytest.param(
            ["1c.3g.40gb", "2c.3g.40gb"],
            [GI(A100, "3g.40gb", 4, [(1, 2)])],
            "keep 3g.40gb@4(+2c@0)",
            id="a new one goes around one that stays",
        ),
        pytest.param(
            ["1c.3g.40gb", "2c.3g.40gb"],
            [GI(A100, "3g.40gb", 4, [(1, 0)])],
            "keep 3g.40gb@4(-1c +2c@0 +1c@2)",
            id="one that is in the way goes",
        ),
        pytest.param(
            ["1c.3g.40gb", "2c.3g.40gb"],
            [GI(A100, "3g.40gb", 4, [(1, 0)], busy=True)],
            "keep 3g.40gb@4(), create 3g.40gb@0(+2c)",
            id="unless it is busy and there is room elsewhere",
        ),
        pytest.param(
            ["3g.40gb"],
            [GI(A100, "3g.40gb", 4, [(1, 0), (2, 1)])],
            "keep 3g.40gb@4(-1c -2c +3c)",
            id="a GPU instance stays though its compute instances do not match",
        ),
        pytest.param(
            ["1g.10gb"],
            [GI(A100, "1g.10gb", 3, [])],
            "keep 1g.10gb@3(+1c)",
            id="a leftover without compute instances is used",
        ),
        pytest.param(
            [],
            [GI(A100, "1g.10gb", 3, [])],
            "destroy 1g.10gb@3",
            id="a leftover that nobody wants goes",
        ),
        pytest.param(
            ["1c.3g.40gb"] * 2,
            [GI(A100, "3g.40gb", 0, [(1, None)])],
            "keep 3g.40gb@0(-1c +1c@0 +1c@1)",
            id="beside one of unknown place nothing can be put",
        ),
        pytest.param(
            ["1c.3g.40gb"] * 2,
            [GI(A100, "3g.40gb", 0, [(1, None)], busy=True)],
            "keep 3g.40gb@0(), create 3g.40gb@4(+1c)",
            id="so a busy one of unknown place is left alone",
        ),
        pytest.param(
            ["1c.3g.40gb", "2c.3g.40gb"],
            [GI(A100, "3g.40gb", 0, [(2, None)])],
            "keep 3g.40gb@0(+1c@2)",
            id="an unknown place that can only be one is known",
        ),
        pytest.param(
            ["1c.3g.40gb"],
            [GI(A100, "3g.40gb", 0, [(1, None), (1, None)], busy_compute=[1])],
            "keep 3g.40gb@0(-1c)",
            id="the idle compute instance goes, not the busy one",
        ),
        pytest.param(
            ["7g.79gb"],
            [GI(A100, "7g.80gb", 0)],
            "keep 7g.80gb@0()",
            id="another accepted size is the same profile",
        ),
        pytest.param(
            ["3g.40gb", "4g.40gb"],
            [GI(A100, "3g.40gb", 0, busy=True)],
            "destroy 3g.40gb@0, create 4g.40gb@0(+4c), create 3g.40gb@4(+3c)",
            id="even a busy one goes where the layout leaves no other way",
        ),
    ],
)
def test_a_plan_changes_the_least(devices: list[str], present: list[GpuInstance], expected: str) -> None:
    assert words(plan(devices, *present)) == expected


def test_of_two_names_of_one_profile_the_devices_are_added_up() -> None:
    found = plan_gpu(target(["7g.79gb"]), state(A100))
    assert [str(new.profile) for new in found.create] == ["7g.80gb"]
    with pytest.raises(MigManagerError, match=r"can't hold 2x7g\.80gb"):
        plan_gpu(target(["7g.79gb", "7g.80gb"]), state(A100))


def test_an_instance_of_a_profile_that_the_gpu_does_not_list_is_destroyed() -> None:
    strange = replace(instance(A100, "1g.10gb", 2), profile=MigProfile.parse("1g.9gb"), profile_id=77)
    gpu = state(A100, [strange, instance(A100, "1g.10gb", 3)])
    found = plan_gpu(target(["1g.10gb"] * 7), gpu)
    assert found.destroy == (strange,)
    assert [kept.instance.placement.start for kept in found.keep] == [3]
    assert [new.placement.start for new in found.create] == [0, 1, 2, 4, 5, 6]


def test_the_busy_instance_stays_where_it_is_and_the_rest_is_laid_around_it() -> None:
    # NVIDIA's manager destroys three idle neighbours and then fails on the busy one.
    present = [instance(A100, "1g.10gb", start, busy=start == 2) for start in range(7)]
    found = plan_gpu(target(["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]), state(A100, present))
    assert 2 in {kept.instance.placement.start for kept in found.keep}
    assert {one.placement.start for one in found.affected} == {0, 1, 4, 5, 6}
    assert [(str(new.profile), new.placement.start) for new in found.create] == [
        ("2g.20gb", 0),
        ("3g.40gb", 4),
    ]


def test_affected_is_whatever_loses_a_compute_instance() -> None:
    split = instance(A100, "3g.40gb", 0, [(1, 0), (1, 1)], busy_compute=[0])
    stays = instance(A100, "2g.20gb", 4)
    goes = instance(A100, "1g.10gb", 6)
    found = plan_gpu(target(["1c.3g.40gb", "2g.20gb"]), state(A100, [split, stays, goes]))
    assert found.affected == (split, goes)
    assert Counter(found.lost) == Counter([split.compute[1], goes.compute[0]])


def _with_mode(current: bool, pending: bool, needs_reset: bool = True) -> GpuState:
    return replace(state(A100), mig_current=current, mig_pending=pending, mode_change_needs_reset=needs_reset)


@pytest.mark.parametrize(
    ("gpu", "wanted", "reset", "changes"),
    [
        (_with_mode(False, False), True, True, True),
        (_with_mode(False, False, needs_reset=False), True, False, True),
        (_with_mode(False, True), True, True, True),
        (_with_mode(True, True), True, False, False),
        (_with_mode(True, False), True, False, True),
        (_with_mode(True, True), False, True, True),
        (_with_mode(True, True, needs_reset=False), False, False, True),
        (_with_mode(False, True), False, False, True),
        (_with_mode(True, False), False, True, True),
        (_with_mode(False, False), False, False, False),
    ],
)
def test_the_mode_is_decided_from_what_is_in_force_and_what_is_pending(
    gpu: GpuState, wanted: bool, reset: bool, changes: bool
) -> None:
    found = plan_gpu(target([], enabled=wanted), gpu)
    assert found.mig == ModeChange(gpu.mig_current, gpu.mig_pending, wanted, reset)
    assert found.changes is changes
    assert found.mig.switches is (gpu.mig_current != wanted)


def test_turning_mig_off_destroys_every_instance_and_proves_nothing() -> None:
    present = [instance(A100, "1g.10gb", 0), instance(A100, "3g.40gb", 4, [])]
    found = plan_gpu(target([], enabled=False), state(A100, present))
    assert found.destroy == tuple(present)
    assert not found.keep
    assert not found.create


def test_instances_of_a_gpu_without_mig_mode_are_not_believed() -> None:
    gpu = state(A100, [instance(A100, "1g.10gb", 0)], current=False)
    found = plan_gpu(target(["1g.10gb"]), gpu)
    assert [new.placement for new in found.create] == [Placement(0, 1)]
    assert not found.keep
    assert not found.destroy


def test_a_gpu_without_mig_needs_nothing_when_mig_shall_be_off() -> None:
    gpu = state(None, current=False)
    gpu = replace(gpu, gpu=replace(gpu.gpu, mig_capable=False))
    assert not plan_gpu(target([], enabled=False), gpu).changes
    with pytest.raises(MigManagerError, match="has no MIG") as caught:
        plan_gpu(target([]), gpu)
    assert caught.value.reason is Reason.INVALID_LAYOUT


def test_without_a_list_of_profiles_only_an_empty_layout_can_be_proven() -> None:
    gpu = state(None, current=False)
    assert plan_gpu(target([]), gpu).mig.target
    with pytest.raises(MigManagerError, match="lists no profiles while MIG is off") as caught:
        plan_gpu(target(["1g.10gb"]), gpu)
    assert caught.value.reason is Reason.INVALID_LAYOUT


def test_an_unsupported_profile_names_line_gpu_and_nearest_profile() -> None:
    with pytest.raises(MigManagerError) as caught:
        plan_gpu(target(["2g.10gb"]), state(A100))
    assert caught.value.reason is Reason.UNSUPPORTED_PROFILE
    assert caught.value.message.startswith(
        "config.yaml:12: GPU 0: NVIDIA A100-SXM4-80GB has no profile 2g.10gb; it has"
    )
    assert caught.value.message.endswith("Did you mean 2g.20gb?")


def test_a_node_is_planned_gpu_by_gpu_and_the_rest_is_named_as_untouched() -> None:
    first = state(A100)
    second = replace(first, gpu=replace(first.gpu, index=1, uuid="GPU-1"))
    wanted = NodeTarget("some", (target(["7g.80gb"]),), (1,))
    found = plan_node(wanted, inventory(first, second))
    assert found.layout == "some"
    assert [one.gpu.index for one in found.gpus] == [0]
    assert found.untouched == (1,)
    assert found.changes


def test_a_selected_gpu_that_is_gone_is_an_error() -> None:
    with pytest.raises(MigManagerError, match=r"config\.yaml:12: GPU 0 .* is not on this node any more"):
        plan_node(node(target([])), inventory())
