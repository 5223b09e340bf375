"""Which devices a plan takes away, and how what pods hold is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mig_manager.layouts.layout import NodeTarget
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_gpu, plan_node
from mig_manager.planning.state import GpuInstance, GpuState
from tests.planning.geometries import A100, H100, instance, inventory, node_plan, state, target


def named(found: GpuInstance, *uuids: str | None) -> GpuInstance:
    compute = (replace(one, uuid=uuid) for one, uuid in zip(found.compute, uuids, strict=True))
    return replace(found, compute=tuple(compute))


SPLIT = named(instance(A100, "3g.40gb", 4, [(1, 0), (2, 1)]), "MIG-c", "MIG-d")
PARTED = state(
    A100,
    [
        named(instance(A100, "1g.10gb", 0), "MIG-a"),
        named(instance(A100, "1g.10gb", 1), "MIG-b"),
        instance(A100, "1g.10gb", 2, []),
        SPLIT,
    ],
)
KEPT = ["1g.10gb", "1g.10gb", "1c.3g.40gb", "2c.3g.40gb"]


@pytest.mark.parametrize(
    ("gpu", "wanted", "lost"),
    [
        (PARTED, KEPT, set()),  # the GPU instance without compute instances goes; nobody can hold it
        (PARTED, [*KEPT, "1g.10gb"], set()),
        (PARTED, ["1g.10gb", *KEPT[2:]], {"GPU-0", "MIG-b"}),
        (PARTED, ["1g.10gb", "1g.10gb", "2c.3g.40gb"], {"GPU-0", "MIG-c"}),
        (PARTED, [], {"GPU-0", "MIG-a", "MIG-b", "MIG-c", "MIG-d"}),
        (PARTED, None, {"GPU-0", "MIG-a", "MIG-b", "MIG-c", "MIG-d"}),
        (state(A100), ["7g.80gb"], set()),
        (state(A100, current=False), None, set()),
        (state(A100, current=False), [], {"GPU-0"}),
        (replace(state(H100, current=False), mode_change_needs_reset=False), [], {"GPU-0"}),
        (replace(state(A100), mig_pending=False), [], set()),
        (state(A100, [instance(A100, "7g.80gb", 0)]), [], {"GPU-0"}),  # a UUID that is not known
    ],
)
def test_what_nobody_may_use_any_more(gpu: GpuState, wanted: list[str] | None, lost: set[str]) -> None:
    plan = node_plan(plan_gpu(target(wanted or [], enabled=wanted is not None), gpu))
    assert plan.devices_lost == lost


def test_a_node_loses_what_its_gpus_lose_and_knows_what_they_have() -> None:
    other = replace(PARTED, gpu=replace(PARTED.gpu, index=1, uuid="GPU-1"))
    plans = tuple(plan_gpu(target([]), gpu) for gpu in (PARTED, other))
    assert NodePlan("test", plans, ()).devices_lost == inventory(PARTED, other).uuids
    assert inventory(PARTED).uuids == {"GPU-0", "MIG-a", "MIG-b", "MIG-c", "MIG-d"}


@pytest.mark.parametrize("held", ["MIG-a", "MIG-b"])
def test_an_instance_that_a_pod_holds_is_kept_like_one_that_is_busy(held: str) -> None:
    found = inventory(PARTED).held({held, "MIG-unknown"})
    busy = {one.uuid for each in found.gpus[0].instances for one in each.compute if one.busy}
    assert busy == {held}

    plan = plan_node(NodeTarget("test", (target(["1g.10gb"]),), ()), found)
    assert held not in plan.devices_lost
    assert plan.devices_lost == found.uuids - {held}


def test_a_gpu_that_a_pod_holds_is_busy_unless_it_is_in_mig_mode() -> None:
    whole = state(A100, current=False)
    assert inventory(whole).held({"GPU-0"}).gpus[0].busy
    assert not inventory(PARTED).held({"GPU-0"}).gpus[0].busy
    assert not inventory(whole).held({"GPU-1"}).gpus[0].busy
