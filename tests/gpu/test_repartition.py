"""From one layout to another, with the real worker: what is kept, and what a failure leaves behind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle

import pytest

from mig_manager.errors import Reason
from mig_manager.gpu.repartition import RepartitionError, repartition
from mig_manager.planning.catalogue import GpuModel, find_model
from mig_manager.planning.geometry import ComputeProfile, Placement
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuInstance, Inventory
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, bare, shape

IN_USE, INSUFFICIENT, UNKNOWN, RESET_REQUIRED = 19, 23, 999, 16
SEVEN = "1g.10gb " * 7


def shapes(inventory: Inventory) -> list[str]:
    return [shape(state) for state in inventory.gpus]


def uuids(inventory: Inventory, gpu: int = 0) -> dict[tuple[str, int], tuple[object, ...]]:
    """GI id and MIG UUIDs by profile and start."""
    return {
        (str(each.profile), each.placement.start): (each.id, *(c.uuid for c in each.compute))
        for each in inventory.gpus[gpu].instances
    }


def fails(node: Node, *wanted: str | None) -> RepartitionError:
    with pytest.raises(RepartitionError) as failed:
        node.apply(*wanted)
    assert failed.value.inventory is None or bare(failed.value.inventory) == bare(node.worker.inventory())
    return failed.value


TRANSITIONS = [
    (SEVEN, "1g.10gb 1g.10gb 2g.20gb 3g.40gb", 2),
    ("1g.10gb 1g.10gb 2g.20gb 3g.40gb", SEVEN, 2),
    ("3g.40gb 3g.40gb", "3g.40gb 2g.20gb 1g.10gb", 1),
    ("7g.80gb", "1c.7g.80gb 2c.7g.80gb 4c.7g.80gb", 1),
    ("1c.4g.40gb 2c.4g.40gb 1c.4g.40gb", "2c.4g.40gb 2c.4g.40gb", 1),
    ("4g.40gb 3g.40gb", "4g.40gb 1c.3g.40gb 2c.3g.40gb", 2),
    ("3g.40gb 1g.10gb", "3g.40gb", 1),
    ("1g.10gb+me 1g.20gb", "1g.10gb 1g.20gb", 1),
    ("2g.20gb 2g.20gb 2g.20gb", "", 0),
]


@pytest.mark.parametrize(
    ("model", "old", "new", "kept"),
    [
        (model, *transition)
        for model, transition in zip(cycle(("A100-SXM4-80GB", "H100-80GB-HBM3")), TRANSITIONS, strict=False)
    ],
)
def test_what_both_layouts_hold_keeps_its_ids_and_uuids(
    make_node: MakeNode, model: str, old: str, new: str, kept: int
) -> None:
    node = make_node(f"1x{model}", mig_uuids="fresh")
    before = node.apply(old)
    after = node.apply(new)
    target = node.target(new, inventory=after)
    assert not plan_node(target, after).changes
    assert after == node.worker.inventory()
    same = {
        key for key in uuids(before).keys() & uuids(after) if uuids(before)[key][0] == uuids(after)[key][0]
    }
    assert len(same) == kept
    whole = {key for key in same if len(uuids(before)[key]) == len(uuids(after)[key]) == 2}
    assert all(uuids(before)[key] == uuids(after)[key] for key in whole)


def test_nothing_to_do_makes_no_call_that_changes(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply("3g.40gb 1g.10gb")
    node.gpus.record_calls()
    node.apply("3g.40gb 1g.10gb")
    assert node.gpus.calls(changes=True) == []


def test_gpus_that_the_layout_does_not_name_are_left_alone(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB")
    node.apply(SEVEN, "off", "3g.40gb")
    node.run(0, node.worker.inventory().gpus[0].instances[0])
    node.gpus.record_calls()
    assert shapes(node.apply(None, "7g.80gb", None))[1] == "7g.80gb@0"
    assert {call.gpu for call in node.gpus.calls(changes=True)} == {1}


def test_no_session_is_open_during_a_reset(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", grouped_resets=True)
    node.configure(linger_s=60.0)
    seen: list[list[int]] = []
    node.before_reset = lambda: seen.append(node.gpus.sessions())
    node.apply("3g.40gb", "3g.40gb")
    assert seen == [[]]


def test_instances_are_changed_in_one_session_and_read_back_in_a_fresh_one(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB")
    before = node.apply(SEVEN, "3g.40gb")
    node.gpus.record_calls()
    node.apply("3g.40gb", SEVEN, before=before)
    calls = node.gpus.calls()
    opened = [index for index, call in enumerate(calls) if call.function.startswith("nvmlInit")]
    assert len(opened) == 2
    assert not any(call.changes for call in calls[opened[1] :])


def test_nothing_is_created_before_every_gpu_has_destroyed_what_goes(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB")
    before = node.apply(SEVEN, "3g.40gb")
    node.gpus.latency(nvmlGpuInstanceDestroy=0.02)
    node.gpus.record_calls()
    node.apply("3g.40gb", SEVEN, before=before)
    kinds = ["Create" in call.function for call in node.gpus.calls(changes=True)]
    assert kinds == sorted(kinds)


def test_only_gpus_whose_mode_is_pending_are_reset_by_one_command(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB")
    node.apply("off", SEVEN, "off")
    assert node.resets == []
    monitor = node.gpus.hold(pid=77, name="monitor")
    node.before_reset = lambda: node.gpus.remove_process(monitor)
    assert shapes(node.apply("7g.80gb", SEVEN, "3g.40gb"))[::2] == ["7g.80gb@0", "3g.40gb@0"]
    assert node.resets == [(0, 2)]


def test_a_reset_that_changes_the_order_of_the_gpus_changes_nothing_else(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB", grouped_resets=True, enumeration=[1, 2, 0])
    node.before_reset = lambda: node.gpus.change_options(enumeration=[2, 0, 1])
    expected = ["7g.80gb@0", "3g.40gb@0", "2g.20gb@0"]
    assert shapes(node.apply("7g.80gb", "3g.40gb", "2g.20gb")) == expected
    held = [gpu["instances"][0]["profile"] for gpu in node.gpus.snapshot()["gpus"]]
    assert held == [shape.partition("@")[0] for shape in expected]


def test_a_refused_reset_ends_the_attempt_and_puts_instances_and_pending_modes_back(
    make_node: MakeNode,
) -> None:
    node = make_node("3xA100-SXM4-80GB")
    before = node.apply(SEVEN, "off", "3g.40gb")
    node.gpus.change_options(resets="refused")
    node.gpus.record_calls()
    error = fails(node, "off", "3g.40gb", "2g.20gb")
    assert error.reason is Reason.GPU_IN_USE
    assert error.restored
    assert "GPU 0 and GPU 1" in error.message
    assert bare(node.worker.inventory()) == bare(before)
    assert len(node.resets) == 1
    created = [c for c in node.gpus.calls() if c.function == "nvmlDeviceCreateGpuInstanceWithPlacement"]
    assert {call.gpu for call in created} == {0, 2}, "only what was destroyed comes back"


def test_a_virtual_machine_that_cannot_reset_says_so_and_is_as_before(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", passthrough=True)
    error = fails(node, "3g.40gb")
    assert error.reason is Reason.RESET_NOT_SUPPORTED
    assert error.restored
    (state,) = node.worker.inventory().gpus
    assert (state.mig_current, state.mig_pending) == (False, False)


def test_a_reset_that_does_not_take_effect_asks_for_a_reboot(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", passthrough=True)
    before = node.worker.inventory()
    target = node.target("3g.40gb", inventory=before)
    with pytest.raises(RepartitionError, match="off, and on after the next reset") as failed:
        repartition(node.worker, target, plan_node(target, before), before, lambda gpus: None)
    assert failed.value.reason is Reason.REBOOT_REQUIRED
    assert failed.value.restored
    assert bare(node.worker.inventory()) == bare(before)


def test_a_pending_mode_is_seen_and_corrected(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply("3g.40gb")
    node.gpus.fail("nvmlDeviceSetMigMode", IN_USE, acts=True)
    node.gpus.change_options(resets="refused")
    fails(node, "off")
    monitor = node.gpus.hold(pid=77, name="monitor")
    try:
        after = node.apply("3g.40gb")
    finally:
        node.gpus.remove_process(monitor)
    assert (after.gpus[0].mig_current, after.gpus[0].mig_pending) == (True, True)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_mode_change_that_answers_with_an_error_counts_if_the_mode_reads_so(
    make_node: MakeNode, grouped: bool
) -> None:
    """In force at once, or pending until the reset: what reads back decides."""
    node = make_node("1xA100-SXM4-80GB", grouped_resets=grouped)
    node.gpus.fail("nvmlDeviceSetMigMode", UNKNOWN, acts=True)
    assert shapes(node.apply("7g.80gb")) == ["7g.80gb@0"]
    node.gpus.fail("nvmlDeviceSetMigMode", IN_USE, acts=True)
    assert shapes(node.apply("off")) == ["off"]
    assert node.resets == ([(0,), (0,)] if grouped else [])


def test_a_mode_change_that_is_refused_tells_the_refusal(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.gpus.fail("nvmlDeviceSetMigMode", UNKNOWN)
    error = fails(node, "7g.80gb")
    assert "GPU 0: switching MIG on failed: nvmlDeviceSetMigMode answered" in error.message
    node.gpus.fail("nvmlDeviceSetMigMode", 0, times=None)
    error = fails(node, "7g.80gb")
    assert "switching MIG on has no effect: MIG is off, and off after the next reset" in error.message


def test_hopper_changes_its_mode_without_a_reset(make_node: MakeNode) -> None:
    node = make_node("2xH100-80GB-HBM3")
    assert shapes(node.apply("7g.80gb", SEVEN))[0] == "7g.80gb@0"
    assert shapes(node.apply("off", "off")) == ["off", "off"]
    assert node.resets == []


def test_hopper_in_use_is_waited_for_then_named(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    job = node.gpus.add_process(0, pid=4321, name="train")
    error = fails(node, "7g.80gb")
    assert error.reason is Reason.GPU_IN_USE
    assert re.search(r"GPU 0: switching MIG on .*pid 4321", error.message)
    assert error.restored
    node.gpus.remove_process(job)
    assert shapes(node.apply("7g.80gb")) == ["7g.80gb@0"]


@pytest.mark.parametrize("function", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_in_use_that_passes_is_waited_for(make_node: MakeNode, function: str) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.configure(in_use_window_s=60)
    node.apply("3g.40gb 3g.40gb")
    node.gpus.fail(function, IN_USE, times=2)
    assert shapes(node.apply("7g.80gb")) == ["7g.80gb@0"]
    assert [c.code for c in node.worker.calls if c.function == function][:3] == [IN_USE, IN_USE, 0]


def test_in_use_that_stays_is_named_and_everything_comes_back(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    before = node.apply("1g.10gb 1g.10gb 3g.40gb")
    busy = next(each for each in before.gpus[0].instances if each.profile.gpu_slices == 3)
    node.run(0, busy, pid=31337)
    error = fails(node, SEVEN)
    assert error.reason is Reason.GPU_IN_USE
    assert re.search(rf"GPU 0: .*{busy.profile} at {busy.placement.start}.*pid 31337", error.message)
    assert "The GPUs are as they were." in error.message
    assert bare(node.worker.inventory()) == bare(before)


def test_a_destroy_that_says_it_worked_and_did_not_is_no_success(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    before = node.apply("3g.40gb 1g.10gb")
    node.gpus.fail("nvmlGpuInstanceDestroy", 0, times=2)
    assert shapes(node.apply("7g.80gb")) == ["7g.80gb@0"]
    node.apply("3g.40gb 1g.10gb")
    node.gpus.fail("nvmlGpuInstanceDestroy", 0, times=None)
    error = fails(node, "7g.80gb")
    assert "still lists it" in error.message
    node.gpus.clear_faults()
    assert bare(node.apply("3g.40gb 1g.10gb")) == bare(before)


def test_a_create_that_says_it_worked_and_did_not_is_no_success(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    before = node.apply("3g.40gb")
    node.gpus.fail("nvmlGpuInstanceCreateComputeInstance", 0)
    error = fails(node, "3g.40gb 2g.20gb")
    assert error.reason is Reason.VERIFY_FAILED
    assert "2g.20gb" in error.message
    assert bare(node.worker.inventory()) == bare(before)


def test_a_placement_that_the_gpu_refuses_is_replaced_by_another(make_node: MakeNode) -> None:
    node = make_node("2xH100-80GB-HBM3")
    before = node.apply("1g.10gb", "")
    kept = before.gpus[0].instances[0]
    node.run(0, kept)
    target = node.target("1g.10gb 2g.20gb 1g.10gb", "7g.80gb", inventory=before)
    plan = plan_node(target, before)
    first = next(new.placement for new in plan.gpus[0].create if new.profile.gpu_slices == 2)
    node.gpus.refuse_placement(0, first.start, first.size)
    after = repartition(node.worker, target, plan, before, node.reset)
    assert sorted(str(each.profile) for each in after.gpus[0].instances) == ["1g.10gb", "1g.10gb", "2g.20gb"]
    assert all(each.placement != first for each in after.gpus[0].instances)
    assert find(after, kept).id == kept.id
    assert shape(after.gpus[1]) == "7g.80gb@0"


def test_when_no_arrangement_is_left_the_previous_layout_comes_back(make_node: MakeNode) -> None:
    node = make_node("2xH100-80GB-HBM3")
    before = node.apply("3g.40gb", "2g.20gb")
    node.gpus.refuse_placement(0, 6, 1)
    error = fails(node, SEVEN, SEVEN)
    assert error.reason is Reason.NVML_ERROR
    assert "No other arrangement" in error.message
    assert bare(node.worker.inventory()) == bare(before)


def test_a_rollback_that_fails_too_says_so_and_shows_what_is_there(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply("7g.80gb")
    node.gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN, times=None)
    error = fails(node, "3g.40gb 3g.40gb")
    assert error.reason is Reason.ROLLBACK_FAILED
    assert not error.restored
    assert "creating 3g.40gb" in error.message
    assert "creating 7g.80gb" in error.message
    assert error.inventory is not None
    assert shapes(error.inventory) == [""]


def test_a_busy_instance_outlives_a_rollback(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", mig_uuids="fresh")
    before = node.apply(SEVEN)
    busy = before.gpus[0].instances[2]
    node.run(0, busy)
    node.gpus.fail("nvmlGpuInstanceCreateComputeInstance", UNKNOWN, nth=2)
    error = fails(node, "1g.10gb 2g.20gb 3g.40gb")
    assert error.restored
    assert error.inventory is not None
    assert find(error.inventory, busy).compute[0].uuid == busy.compute[0].uuid


def find(inventory: Inventory, wanted: GpuInstance, gpu: int = 0) -> GpuInstance:
    return next(i for i in inventory.gpus[gpu].instances if i.placement == wanted.placement)


def test_leftovers_without_compute_instances_come_back_as_they_were(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply("3g.40gb")
    node.gpus.fail("nvmlGpuInstanceCreateComputeInstance", UNKNOWN, times=None)
    node.gpus.fail("nvmlGpuInstanceDestroy", UNKNOWN, times=None)
    fails(node, "3g.40gb 2g.20gb")
    node.gpus.clear_faults()
    before = node.worker.inventory()
    assert shapes(before) == ["3g.40gb@0 2g.20gb@4[]"]
    node.gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN)
    assert fails(node, "7g.80gb").restored
    assert bare(node.worker.inventory()) == bare(before)
    assert shapes(node.apply("7g.80gb")) == ["7g.80gb@0"]


def test_one_gpu_s_failure_stops_the_others_and_all_go_back(make_node: MakeNode) -> None:
    node = make_node("4xH100-80GB-HBM3")
    before = node.apply(SEVEN, SEVEN, SEVEN, "off")
    node.gpus.fail("nvmlGpuInstanceDestroy", UNKNOWN, nth=2, gpu=1)
    error = fails(node, "7g.80gb", "7g.80gb", "off", "3g.40gb")
    assert error.reason is Reason.NVML_ERROR
    assert "GPU 1: destroying 1g.10gb" in error.message
    assert bare(node.worker.inventory()) == bare(before)


def test_serial_work_does_the_same(make_node: MakeNode) -> None:
    node = make_node("3xH100-80GB-HBM3")
    node.configure(parallel=False)
    node.gpus.record_calls()
    assert shapes(node.apply("7g.80gb", "3g.40gb", SEVEN))[:2] == ["7g.80gb@0", "3g.40gb@0"]
    creates = [c.gpu for c in node.gpus.calls() if c.function == "nvmlDeviceCreateGpuInstanceWithPlacement"]
    assert creates == sorted(creates, key=lambda gpu: gpu or 0)


def test_a_call_that_lacks_permission_says_what_is_missing(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3", permission="instances")
    error = fails(node, "7g.80gb")
    assert error.reason is Reason.NVML_ERROR
    assert "Insufficient Permissions" in error.message
    assert "/dev/nvidia-caps/nvidia-cap1" in error.message
    assert error.restored


def test_compute_instances_go_where_the_device_offers_places_for_them(make_node: MakeNode) -> None:
    model = find_model("H100-80GB-HBM3")
    assert model.geometry is not None
    apart = ComputeProfile(0, 1, 2, (Placement(0, 1), Placement(2, 1)))
    end_to_end = ComputeProfile(2, 3, 2, (Placement(0, 3), Placement(3, 3)))
    odd = {"3g.40gb": apart, "7g.80gb": end_to_end}
    profiles = tuple(
        replace(
            each,
            compute=tuple(
                odd[str(each.name)] if inner.profile_id == odd[str(each.name)].profile_id else inner
                for inner in each.compute
            ),
        )
        if str(each.name) in odd
        else each
        for each in model.geometry.profiles
    )
    node = make_node([replace(model, geometry=replace(model.geometry, profiles=profiles))])
    after = node.apply("1c.3g.40gb 1c.3g.40gb")
    assert shapes(after) == ["3g.40gb@0[1c@0,1c@2]"]
    assert not plan_node(node.target("1c.3g.40gb 1c.3g.40gb", inventory=after), after).changes
    after = node.apply("3c.7g.80gb 3c.7g.80gb 1c.7g.80gb")
    assert shapes(after)[0].startswith("7g.80gb@0["), (
        "the usual place of the small one is taken, and another is free"
    )
    assert sorted(c.slices for c in after.gpus[0].instances[0].compute) == [1, 3, 3]


def unlike_the_catalogue(**changes: Mapping[str, object]) -> GpuModel:
    """An A100 whose device differs from the catalogue in some profiles, by `g` and their slices."""
    model = find_model("A100-SXM4-80GB")
    assert model.geometry is not None
    profiles = tuple(
        replace(each, **changes.get(f"g{each.name.gpu_slices}", {}))  # type: ignore[arg-type]
        for each in model.geometry.profiles
    )
    return replace(model, geometry=replace(model.geometry, profiles=profiles))


def test_the_device_decides_once_mig_is_on(make_node: MakeNode) -> None:
    ids = {f"g{slices}": {"profile_id": 200 + slices} for slices in (3, 4)}
    node = make_node([unlike_the_catalogue(**ids)], query_without_mig=False)
    before = node.worker.inventory()
    target = node.target("4g.40gb 3g.40gb", inventory=before)
    plan = plan_node(target, before)
    assert {new.profile_id for new in plan.gpus[0].create} == {5, 9}
    after = repartition(node.worker, target, plan, before, node.reset)
    assert shapes(after) == ["4g.40gb@0 3g.40gb@4"]
    assert {each.profile_id for each in after.gpus[0].instances} == {203, 204}


def test_a_layout_that_only_the_catalogue_believed_in_is_taken_back(make_node: MakeNode) -> None:
    node = make_node(
        [unlike_the_catalogue(g3={"placements": (Placement(4, 4),), "max_instances": 1})],
        query_without_mig=False,
    )
    node.gpus.record_calls()
    error = fails(node, "3g.40gb 3g.40gb")
    assert error.reason is Reason.IMPOSSIBLE_LAYOUT
    assert error.restored
    assert shapes(node.worker.inventory()) == ["off"]
    assert {call.function for call in node.gpus.calls(changes=True)} == {"nvmlDeviceSetMigMode"}


def test_two_gpus_that_refuse_placements_both_find_others(make_node: MakeNode) -> None:
    node = make_node("3xH100-80GB-HBM3")
    before = node.apply("", "", "")
    target = node.target("2g.20gb 1g.10gb", "2g.20gb 2g.20gb 1g.10gb", SEVEN, inventory=before)
    plan = plan_node(target, before)
    for index in (0, 1):
        first = plan.gpus[index].create[0].placement
        node.gpus.refuse_placement(index, first.start, first.size)
    after = repartition(node.worker, target, plan, before, node.reset)
    assert not plan_node(node.target("2g.20gb 1g.10gb", "2g.20gb 2g.20gb 1g.10gb", SEVEN), after).changes
