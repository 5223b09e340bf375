"""GPU instances and compute instances: where they go, what fits, what is in the way."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pynvml import (
    NVML_ERROR_IN_USE,
    NVML_ERROR_INSUFFICIENT_RESOURCES,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
)

from tests.simulation.nvml_node import (
    clear,
    compute_instances,
    create_at,
    fails,
    gpu,
    instances,
    mig_devices,
    node,
    placements,
    profiles,
    pynvml,
    where,
)

A100 = "A100-SXM4-40GB"
RTX = "RTX PRO 6000 Blackwell Server Edition"


def _id(device: Any, name: str) -> int:
    return int(profiles(device)[name].id)


@pytest.mark.parametrize(
    ("model", "names", "starts"),
    [
        (A100, ["1g.5gb"] * 7, [6, 4, 5, 0, 1, 2, 3]),
        (A100, ["1g.5gb", "2g.10gb", "4g.20gb"], [6, 4, 0]),
        (A100, ["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"], [4, 0, 2, 1]),
        (A100, ["2g.10gb", *["1g.5gb"] * 5], [4, 6, 0, 1, 2, 3]),
        (A100, ["3g.20gb", "3g.20gb"], [4, 0]),
        (A100, ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"], [6, 4, 0, None]),
        ("H100 PCIe", ["1g.10gb"] * 7, [6, 4, 5, 0, 1, 2, 3]),
        ("A30", ["1g.6gb", "1g.6gb", "2g.12gb"], [0, 1, 2]),
        (RTX, ["1g.24gb"] * 4, [0, 3, 6, 9]),
        (RTX, ["2g.48gb", "1g.24gb", "1g.24gb"], [0, 6, 9]),
    ],
)
def test_without_a_placement_instances_go_where_they_were_seen_to_go(
    tmp_path: Path, model: str, names: list[str], starts: list[int | None]
) -> None:
    with node(tmp_path, model, mig=True):
        device = gpu()
        for name, start in zip(names, starts, strict=True):
            if start is None:
                code = NVML_ERROR_INSUFFICIENT_RESOURCES
                fails(code, pynvml.nvmlDeviceCreateGpuInstance, device, _id(device, name))
            else:
                instance = pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, name))
                assert where(instance)[0] == start


def test_which_orders_fail_without_placements(tmp_path: Path) -> None:
    maximal = ["7", "43", "33", "421", "4111", "322", "3211", "31111", "2221", "22111", "211111", "1111111"]
    failing: dict[str, tuple[int, int]] = {}
    with node(tmp_path, A100, mig=True):
        device = gpu()
        by_slices = {name[0]: info.id for name, info in profiles(device).items() if name != "1g.5gb+me"}
        by_slices["1"] = _id(device, "1g.5gb")
        for slices in maximal:
            orders = set(itertools.permutations(slices))
            for order in orders:
                try:
                    for size in order:
                        pynvml.nvmlDeviceCreateGpuInstance(device, by_slices[size])
                except pynvml.NVMLError_InsufficientResources:
                    failing[slices] = (failing.get(slices, (0, 0))[0] + 1, len(orders))
                clear(device)
    assert failing == {"31111": (4, 5), "3211": (9, 12), "322": (2, 3)}


@pytest.mark.parametrize(
    ("model", "swapped", "ids"),
    [
        (A100, False, {"1g.5gb": [7, 8, 9, 10, 11, 12, 13], "2g.10gb": [3, 4, 5], "3g.20gb": [1, 2]}),
        (A100, True, {"1g.5gb": [11, 12, 13, 14, 7, 8, 9], "2g.10gb": [5, 6, 3], "3g.20gb": [2, 1]}),
        (A100, True, {"4g.20gb": [2], "7g.40gb": [0], "1g.10gb": [5, 6, 3, 4]}),
        ("A30", False, {"1g.6gb": [3, 4, 5, 6], "2g.12gb": [1, 2], "4g.24gb": [0]}),
        (RTX, False, {"1g.24gb": [3, 4, 5, 6], "2g.48gb": [1, 2], "4g.96gb": [0]}),
    ],
)
def test_instance_ids_follow_the_board_not_the_order(
    tmp_path: Path, model: str, swapped: bool, ids: dict[str, list[int]]
) -> None:
    with node(tmp_path, model, mig=True, swapped=[0] if swapped else []):
        device = gpu()
        for name, expected in ids.items():
            profile_id = _id(device, name)
            found = []
            for start, size in reversed(placements(device, profile_id)):
                instance = create_at(device, profile_id, start, size)
                found.append(pynvml.nvmlGpuInstanceGetInfo(instance).id)
                again = pynvml.nvmlDeviceGetGpuInstanceById(device, found[-1])
                assert where(again) == (start, size)
            assert found[::-1] == expected
            clear(device)


def test_an_explicit_placement_is_taken_or_refused(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True):
        device = gpu()
        one, two, seven = (_id(device, name) for name in ("1g.5gb", "2g.10gb", "7g.40gb"))
        create_at(device, two, 2, 2)
        assert placements(device, two) == [(0, 2), (2, 2), (4, 2)], "placements do not shrink"
        for profile, start, size, code in [
            (two, 2, 2, NVML_ERROR_INSUFFICIENT_RESOURCES),
            (one, 3, 1, NVML_ERROR_INSUFFICIENT_RESOURCES),
            (seven, 0, 8, NVML_ERROR_INSUFFICIENT_RESOURCES),
            (two, 6, 2, NVML_ERROR_INVALID_ARGUMENT),
            (two, 1, 2, NVML_ERROR_INVALID_ARGUMENT),
            (one, 0, 2, NVML_ERROR_INVALID_ARGUMENT),
            (one, 7, 1, NVML_ERROR_INVALID_ARGUMENT),
            (47, 0, 1, NVML_ERROR_INVALID_ARGUMENT),
        ]:
            fails(code, create_at, device, profile, start, size)
        assert [where(instance) for instance in instances(device)] == [(2, 2)]


def test_media_engines_run_out(tmp_path: Path) -> None:
    with node(tmp_path, f"{RTX},A30", mig=True):
        device = gpu(0)
        left = {}
        pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "1g.24gb+me.all"))
        for name, info in profiles(device).items():
            left[name] = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, info.id)
        assert {name for name, room in left.items() if room} == {"1g.24gb-me", "2g.48gb-me"}
        device = gpu(1)
        pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "1g.6gb+me"))
        code = NVML_ERROR_INSUFFICIENT_RESOURCES
        fails(code, pynvml.nvmlDeviceCreateGpuInstance, device, _id(device, "2g.12gb+me"))
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, _id(device, "2g.12gb")) == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    model=st.sampled_from([A100, "A30", "H100-80GB-HBM3", "B200", RTX]),
    steps=st.lists(st.tuples(st.integers(0, 10), st.integers(-1, 7)), max_size=14),
)
def test_whatever_is_created_and_destroyed_the_slices_are_never_shared(
    tmp_path: Path, model: str, steps: list[tuple[int, int]]
) -> None:
    with node(tmp_path, model, mig=True):
        device = gpu()
        offers = list(profiles(device).values())
        for which, choice in steps:
            offer = offers[which % len(offers)]
            existing = instances(device)
            if choice < 0 and existing:
                pynvml.nvmlGpuInstanceDestroy(existing[which % len(existing)])
                continue
            room = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, offer.id)
            allowed = placements(device, offer.id)
            try:
                if choice % 2:
                    created = create_at(device, offer.id, *allowed[choice % len(allowed)])
                else:
                    created = pynvml.nvmlDeviceCreateGpuInstance(device, offer.id)
            except pynvml.NVMLError_InsufficientResources:
                assert room == 0 or choice % 2, "there was room, and no placement was asked for"
            else:
                assert room > 0
                assert where(created) in allowed
                assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, offer.id) < room
        infos = [pynvml.nvmlGpuInstanceGetInfo(instance) for instance in instances(device)]
        used = [s for i in infos for s in range(i.placement.start, i.placement.start + i.placement.size)]
        assert len(used) == len(set(used))
        assert len({info.id for info in infos}) == len(infos)
        assert all(0 <= info.id <= 14 for info in infos)


def test_remaining_capacity_is_how_many_more_are_made(tmp_path: Path) -> None:
    with node(tmp_path, "H100-80GB-HBM3", mig=True):
        device = gpu()
        offers = profiles(device)
        for first, name in itertools.product(offers, offers):
            pynvml.nvmlDeviceCreateGpuInstance(device, offers[first].id)
            room = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, offers[name].id)
            for _ in range(room):
                pynvml.nvmlDeviceCreateGpuInstance(device, offers[name].id)
            code = NVML_ERROR_INSUFFICIENT_RESOURCES
            fails(code, pynvml.nvmlDeviceCreateGpuInstance, device, offers[name].id)
            clear(device)


def test_a_gpu_instance_is_split_into_compute_instances(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True):
        device = gpu()
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "3g.20gb"))
        infos = {}
        for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0)
            except pynvml.NVMLError_NotSupported:
                continue
            infos[info.id] = (info.sliceCount, info.instanceCount, info.multiprocessorCount, info.name)
        assert infos == {
            0: (1, 3, 14, "MIG 1c.3g.20gb"),
            1: (2, 1, 28, "MIG 2c.3g.20gb"),
            2: (3, 1, 42, "MIG 3g.20gb"),
        }
        count = ctypes.c_uint()
        pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 0, None, ctypes.byref(count))
        assert count.value == 3
        two = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        capacity = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
        assert [capacity(instance, key) for key in (0, 1, 2)] == [1, 0, 0]
        place = pynvml.c_nvmlComputeInstancePlacement_t(1, 1)
        create = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
        fails(NVML_ERROR_INSUFFICIENT_RESOURCES, create, instance, 0, ctypes.byref(place))
        place.start = 3
        fails(NVML_ERROR_INVALID_ARGUMENT, create, instance, 0, ctypes.byref(place))
        place.start = 2
        one = create(instance, 0, ctypes.byref(place))
        found = {i.id: (i.profileId, i.placement.start, i.placement.size) for i in map(_info, (two, one))}
        assert found == {0: (1, 0, 2), 1: (0, 2, 1)}
        fails(NVML_ERROR_IN_USE, pynvml.nvmlGpuInstanceDestroy, instance)
        pynvml.nvmlComputeInstanceDestroy(two)
        assert (
            pynvml.nvmlComputeInstanceGetInfo(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)).id
            == 0
        )
        for compute in compute_instances(instance):
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)


def _info(compute: Any) -> Any:
    return pynvml.nvmlComputeInstanceGetInfo(compute)


def test_second_compute_profiles_of_a_size_are_listed_but_not_what_to_take(tmp_path: Path) -> None:
    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    with node(tmp_path, "H100-80GB-HBM3", mig=True):
        device = gpu()
        whole = pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "7g.80gb"))
        assert info(whole, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL, 0).sliceCount == 7
        create = pynvml.nvmlGpuInstanceCreateComputeInstance
        fails(NVML_ERROR_NOT_SUPPORTED, create, whole, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL)
        create(whole, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE)
        clear(device)
        wide = pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "1g.20gb"))
        assert info(wide, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 0).multiprocessorCount == 16
        rev1 = info(wide, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1, 0)
        assert rev1.multiprocessorCount == profiles(device)["1g.20gb"].multiprocessorCount == 26
        create(wide, rev1.id)
        (mig,) = mig_devices(device).values()
        assert pynvml.nvmlDeviceGetAttributes(mig).multiprocessorCount == 26


def test_who_uses_an_instance_keeps_it(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        device = gpu()
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, _id(device, "3g.20gb"))
        key = pynvml.nvmlGpuInstanceGetInfo(instance).id
        busy, idle = (pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2))
        job = gpus.add_process(0, key, 0, pid=4711, name="train.py")
        fails(NVML_ERROR_IN_USE, pynvml.nvmlComputeInstanceDestroy, busy)
        pynvml.nvmlComputeInstanceDestroy(idle)
        gpus.remove_process(job)
        leak = gpus.add_process(0, key, pid=815, name="dcgm", kind="handle")
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
        fails(NVML_ERROR_IN_USE, pynvml.nvmlComputeInstanceDestroy, busy)
        gpus.remove_process(leak)
        pynvml.nvmlComputeInstanceDestroy(busy)
        leak = gpus.add_process(0, key, pid=815, name="dcgm", kind="handle")
        fails(NVML_ERROR_IN_USE, pynvml.nvmlGpuInstanceDestroy, instance)
        gpus.remove_process(leak)
        pynvml.nvmlGpuInstanceDestroy(instance)


def test_handles_of_what_is_gone_are_refused(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True):
        device = gpu()
        instance = create_at(device, _id(device, "1g.5gb"), 0, 1)
        key = pynvml.nvmlGpuInstanceGetInfo(instance).id
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        (mig,) = mig_devices(device).values()
        pynvml.nvmlComputeInstanceDestroy(compute)
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlComputeInstanceGetInfo, compute)
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetUUID, mig)
        fails(NVML_ERROR_NOT_FOUND, pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, 0)
        pynvml.nvmlGpuInstanceDestroy(instance)
        fails(NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetGpuInstanceById, device, key)
        again = create_at(device, _id(device, "1g.5gb"), 0, 1)
        assert pynvml.nvmlGpuInstanceGetInfo(again).id == key
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlGpuInstanceGetInfo, instance)


def test_mig_devices_have_indices_with_holes(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True):
        device = gpu()
        made = [create_at(device, _id(device, "1g.5gb"), start, 1) for start in (2, 0, 1)]
        bare = create_at(device, _id(device, "3g.20gb"), 4, 4)
        computes = [pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for instance in made]
        ids = {i: pynvml.nvmlDeviceGetGpuInstanceId(mig) for i, mig in mig_devices(device).items()}
        assert ids == {0: 7, 1: 8, 2: 9}, "ascending by id; the one without a compute instance has no device"
        pynvml.nvmlComputeInstanceDestroy(computes[1])
        left = mig_devices(device)
        assert {i: pynvml.nvmlDeviceGetGpuInstanceId(mig) for i, mig in left.items()} == {1: 8, 2: 9}
        assert pynvml.nvmlDeviceIsMigDeviceHandle(left[1]).value == 1
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(left[1])
        assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(device)
        assert pynvml.nvmlDeviceGetName(left[1]) == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        pynvml.nvmlGpuInstanceCreateComputeInstance(bare, 1)
        names = [pynvml.nvmlDeviceGetName(mig).split(" MIG ")[1] for mig in mig_devices(device).values()]
        assert names == ["2c.3g.20gb", "1g.5gb", "1g.5gb"]


@pytest.mark.parametrize(("policy", "same"), [("derived", True), ("fresh", False)])
def test_mig_uuids_come_back_or_not(tmp_path: Path, policy: str, same: bool) -> None:
    with node(tmp_path, A100, mig=True, mig_uuids=policy):
        device = gpu()
        seen = []
        for _ in range(2):
            instance = create_at(device, _id(device, "1g.5gb"), 0, 1)
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            seen.append(pynvml.nvmlDeviceGetUUID(mig_devices(device)[0]))
            handle = pynvml.nvmlDeviceGetHandleByUUID(seen[-1].encode())
            assert pynvml.nvmlDeviceGetGpuInstanceId(handle) == 7
            clear(device)
        assert (seen[0] == seen[1]) is same
        fails(NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetHandleByUUID, seen[-1].encode())
