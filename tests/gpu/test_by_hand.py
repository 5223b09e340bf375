"""Exact plans on the device: what is counted as free, and nothing in place of what was asked for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mig_manager.errors import Reason
from mig_manager.gpu.control import Control
from mig_manager.gpu.repartition import RepartitionError, carry_out
from mig_manager.gpu.sessions import Sessions
from mig_manager.planning.hand import NewByHand, plan_create, plan_destroy
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.restore import plan_restore
from mig_manager.planning.room import room_for
from mig_manager.planning.state import GpuState, Inventory
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, bare, kinds, shape


def device_counts(node: Node, now: Inventory) -> list[dict[str, int]]:
    """What NVML itself says that still fits, by GPU and profile."""
    with Sessions(node.source, 0).session(Control()) as nvml:
        handles = [nvml.call("nvmlDeviceGetHandleByUUID", state.gpu.uuid.encode()) for state in now.gpus]
        return [
            {
                str(profile.name): nvml.call(
                    "nvmlDeviceGetGpuInstanceRemainingCapacity", handle, profile.profile_id
                )
                for profile in (state.geometry.profiles if state.geometry else ())
            }
            for handle, state in zip(handles, now.gpus, strict=True)
        ]


def our_counts(now: Inventory) -> list[dict[str, int]]:
    return [
        {str(p.name): room_for(state, p) for p in (state.geometry.profiles if state.geometry else ())}
        for state in now.gpus
    ]


def test_what_counts_as_free_is_what_the_device_says(make_node: MakeNode) -> None:
    """Instances come and go at random; where one is counted as free, one can be created."""
    models = kinds()
    node = make_node(models)
    chance = random.Random(7)
    now = node.apply(*[""] * len(models))
    created = 0
    for _ in range(6):
        assert our_counts(now) == device_counts(node, now)
        plans = []
        for state in now.gpus:
            assert state.geometry is not None
            open_ = [profile for profile in state.geometry.profiles if room_for(state, profile)]
            if open_ and chance.random() < 0.8:
                new = NewByHand(chance.choice(open_), None, None)
                plans.append(plan_create(state, state.geometry, [new]))
                created += 1
            elif state.instances:
                plans.append(plan_destroy(state, [chance.choice(state.instances)]))
        before = now
        now = carry_out(node.worker, NodePlan("random", tuple(plans), ()), before, node.reset)
    assert created > 2 * len(models)


def test_a_place_that_the_gpu_refuses_is_not_replaced_by_another(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB")
    before = node.apply("1g.10gb", "1g.10gb")
    node.gpus.refuse_placement(1, 4, 4)
    geometry = before.gpus[0].geometry
    assert geometry is not None
    profile = next(p for p in geometry.profiles if str(p.name) == "3g.40gb")
    plans = [plan_create(state, geometry, [NewByHand(profile, 4, 3)]) for state in before.gpus]
    with pytest.raises(RepartitionError) as caught:
        carry_out(node.worker, NodePlan("both", tuple(plans), ()), before, node.reset)
    assert caught.value.restored
    assert bare(node.worker.inventory()) == bare(before)


def test_a_restore_over_a_mode_change_is_exact_or_undone(make_node: MakeNode) -> None:
    node = make_node("A100-SXM4-80GB,H100-80GB-HBM3")
    saved = node.apply("1c.3g.40gb 1c.3g.40gb 1g.10gb", "2g.20gb 1g.10gb+me")
    off = node.apply("off", "off")
    plan = plan_restore(saved, off)
    node.gpus.fail("nvmlGpuInstanceCreateComputeInstanceWithPlacement", gpu=0)
    with pytest.raises(RepartitionError) as caught:
        carry_out(node.worker, plan, off, node.reset)
    assert (caught.value.reason, caught.value.restored) == (Reason.NVML_ERROR, True)
    assert bare(node.worker.inventory()) == bare(off)
    assert bare(carry_out(node.worker, plan, off, node.reset)) == bare(saved)


def test_a_compute_instance_that_lands_elsewhere_is_no_success(make_node: MakeNode) -> None:
    """The device offers other places than the plan names: an exact plan then fails, and is undone."""
    node = make_node("A100-SXM4-80GB")
    before = node.apply("")
    saved = node.apply("3g.40gb")
    empty = node.apply("")
    bent = replace(saved, gpus=tuple(_shifted(state) for state in saved.gpus))
    with pytest.raises(RepartitionError) as caught:
        carry_out(node.worker, plan_restore(bent, empty), empty, node.reset)
    assert (caught.value.reason, caught.value.restored) == (Reason.VERIFY_FAILED, True)
    assert shape(node.worker.inventory().gpus[0]) == shape(before.gpus[0])


def _shifted(state: GpuState) -> GpuState:
    (instance,) = state.instances
    (compute,) = instance.compute
    assert compute.placement is not None
    elsewhere = replace(compute, placement=replace(compute.placement, start=1))
    return replace(state, instances=(replace(instance, compute=(elsewhere,)),))


def test_users_are_told_by_gpu_instance_and_pid(make_node: MakeNode) -> None:
    node = make_node("2xA30")
    now = node.apply("1g.6gb 1g.6gb", "off")
    first, second = now.gpus[0].instances
    node.run(0, second, pid=77)
    node.gpus.add_process(1, pid=78, name="train")
    found = {
        (usage.gpu.uuid, process.gpu_instance, process.pid)
        for usage in node.worker.usage()
        for process in usage.processes
    }
    assert found == {(now.gpus[0].gpu.uuid, second.id, 77), (now.gpus[1].gpu.uuid, None, 78)}
    assert first.id != second.id
