"""What NVML tells about a node and its GPUs, by model and driver version."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from pynvml import (
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_INSUFFICIENT_SIZE,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNINITIALIZED,
)

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, catalogue, find_model
from mig_manager.simulation.gpus import SimulatedGpus
from mig_manager.simulation.nvml import install
from tests.simulation.nvml_node import create_at, fails, gpu, mig_devices, node, placements, profiles, pynvml

A100 = "A100-SXM4-80GB"


def test_opens_are_counted(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        device = gpu()
        assert len(gpus.sessions()) == 1
        pynvml.nvmlShutdown()
        assert gpus.sessions() == []
        fails(NVML_ERROR_UNINITIALIZED, pynvml.nvmlDeviceGetUUID, device)
        fails(NVML_ERROR_UNINITIALIZED, pynvml.nvmlDeviceGetCount)
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetUUID, device)


def test_nothing_works_before_the_first_open(tmp_path: Path) -> None:
    with node(tmp_path, A100) as gpus:
        pynvml.nvmlShutdown()
        install(str(gpus.path))
        fails(NVML_ERROR_UNINITIALIZED, pynvml.nvmlDeviceGetCount)
        fails(NVML_ERROR_UNINITIALIZED, pynvml.nvmlShutdown)
        assert str(pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)) == "In use by another client"
        pynvml.nvmlInit()


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.key)
def test_every_known_model_shows_its_own_facts(tmp_path: Path, model: GpuModel) -> None:
    with node(tmp_path, f"2x{model.name}"):
        for index in (0, 1):
            device = gpu(index)
            assert pynvml.nvmlDeviceGetName(device) == model.name
            pci = pynvml.nvmlDeviceGetPciInfo(device)
            assert pci.pciDeviceId == model.device_ids[0]
            assert pynvml.nvmlDeviceGetMemoryInfo(device).total == model.memory_mb << 20
            assert pynvml.nvmlDeviceGetMinorNumber(device) == index
            assert (
                pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId.encode())) == index
            )
        if model.geometry is None:
            fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetMigMode, gpu())
            return
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
        device = gpu()
        expected = {
            str(p.name): (p.profile_id, p.name.gpu_slices, p.max_instances, p.memory_mb)
            for p in model.geometry.profiles
        }
        listed = profiles(device)
        assert expected == {
            name: (info.id, info.sliceCount, info.instanceCount, info.memorySizeMB)
            for name, info in listed.items()
        }
        for profile in model.geometry.profiles:
            assert placements(device, profile.profile_id) == [(p.start, p.size) for p in profile.placements]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == model.geometry.compute_slices


@pytest.mark.parametrize(
    ("model", "architecture", "capability"),
    [
        ("T4", pynvml.NVML_DEVICE_ARCH_TURING, (7, 5)),
        ("A30", pynvml.NVML_DEVICE_ARCH_AMPERE, (8, 0)),
        ("L4", pynvml.NVML_DEVICE_ARCH_ADA, (8, 9)),
        ("H200 NVL", pynvml.NVML_DEVICE_ARCH_HOPPER, (9, 0)),
        ("GB200", pynvml.NVML_DEVICE_ARCH_BLACKWELL, (10, 0)),
        ("RTX PRO 6000 Blackwell Server Edition", pynvml.NVML_DEVICE_ARCH_BLACKWELL, (12, 0)),
    ],
)
def test_generations(tmp_path: Path, model: str, architecture: int, capability: tuple[int, int]) -> None:
    with node(tmp_path, model):
        assert pynvml.nvmlDeviceGetArchitecture(gpu()) == architecture
        assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu()) == capability


def test_nvml_may_number_gpus_in_any_order(tmp_path: Path) -> None:
    with node(tmp_path, f"2x{A100},A30", enumeration=[2, 0, 1], minors=[4, 5, 6]) as gpus:
        shown = gpus.snapshot()["gpus"]
        assert [g["bus_id"][9:11] for g in shown] == ["07", "0F", "47"]
        buses = [pynvml.nvmlDeviceGetPciInfo(gpu(index)).bus for index in range(3)]
        assert buses == [0x47, 0x07, 0x0F]
        assert pynvml.nvmlDeviceGetUUID(gpu(0)) == shown[2]["uuid"]
        assert [pynvml.nvmlDeviceGetMinorNumber(gpu(index)) for index in range(3)] == [6, 4, 5]
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(shown[1]["uuid"].encode())) == 2
        fails(NVML_ERROR_INVALID_ARGUMENT, gpu, 3)
        fails(NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetHandleByUUID, b"GPU-other")


def test_profiles_are_asked_by_enum_with_holes_and_an_end(tmp_path: Path) -> None:
    query = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
    with node(tmp_path, A100, mig=True):
        device = gpu()
        old, new = query(device, 9, 1), query(device, 9, 2)
        assert (old.id, old.memorySizeMB) == (new.id, new.memorySizeMB) == (15, 19968)
        assert new.name == "MIG 1g.20gb"
        by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, 15)
        assert by_id.name == new.name
        for enum in (5, 6, 8, 10, 17):
            fails(NVML_ERROR_NOT_SUPPORTED, query, device, enum)
        fails(NVML_ERROR_INVALID_ARGUMENT, query, device, 18)
        short = (pynvml.c_nvmlGpuInstancePlacement_t * 2)()
        possible = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
        fails(NVML_ERROR_INSUFFICIENT_SIZE, possible, device, 14, short, ctypes.byref(ctypes.c_uint(2)))
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetGpuInstanceProfileInfoById, device, 1)


@pytest.mark.parametrize(
    ("driver", "model", "listed"),
    [
        ("535.261.03", A100, False),
        ("535.261.03", "H100 PCIe", False),
        ("580.95.05", A100, False),
        ("580.95.05", "H100 PCIe", True),
    ],
)
def test_older_drivers_and_ampere_list_no_profiles_while_mig_is_off(
    tmp_path: Path, driver: str, model: str, listed: bool
) -> None:
    with node(tmp_path, model, driver=driver):
        assert bool(profiles(gpu())) is listed
        query = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById
        code = NVML_ERROR_FUNCTION_NOT_FOUND if driver.startswith("535") else None
        if code:
            fails(code, query, gpu(), 19)
        fields = [
            pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED,
            pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE,
            1,
        ]
        values = pynvml.nvmlDeviceGetFieldValues(gpu(), fields)
        assert [value.value.uiVal for value in values[:2]] == [model != A100, listed]
        assert values[2].nvmlReturn == NVML_ERROR_NOT_SUPPORTED
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, gpu(), 19)
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceCreateGpuInstance, gpu(), 19)
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
        assert "1g.10gb" in profiles(gpu())


def test_a_gpu_that_no_catalogue_knows(tmp_path: Path) -> None:
    known = find_model("H200 NVL")
    assert known.geometry is not None
    odd = replace(known.geometry.profiles[0], enum=25, profile_id=77, name=MigProfile.parse("1g.18gb+new"))
    geometry = replace(known.geometry, profiles=(*known.geometry.profiles, odd))
    model = replace(known, names=("NVIDIA X1",), device_ids=(0x7FFF10DE,), geometry=geometry)
    with node(tmp_path, [model], mig=True):
        listed = profiles(gpu())
        assert len(listed) == len(geometry.profiles)
        assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), 25).id == listed["1g.18gb+new"].id == 77
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu(), 24)
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu(), 26)
        assert pynvml.nvmlDeviceGetName(gpu()) == "NVIDIA X1"


def test_a_driver_without_the_versioned_queries(tmp_path: Path) -> None:
    with node(tmp_path, A100, driver="510.47.03", mig=True):
        query = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
        fails(NVML_ERROR_FUNCTION_NOT_FOUND, query, gpu(), 0)
        assert query(gpu(), 0, 1).id == 19
        fails(NVML_ERROR_NOT_SUPPORTED, query, gpu(), 5, 1)
        fails(NVML_ERROR_INVALID_ARGUMENT, query, gpu(), 9, 1)


def test_what_is_allowed_without_root(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        gpus.change_options(permission="instances")
        fails(NVML_ERROR_NO_PERMISSION, pynvml.nvmlDeviceSetMigMode, gpu(), 0)
        instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(), 19)
        gpus.change_options(permission="none")
        for function, arguments in [
            (pynvml.nvmlGpuInstanceDestroy, (instance,)),
            (pynvml.nvmlDeviceCreateGpuInstance, (gpu(), 19)),
            (pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, (gpu(), 19)),
            (pynvml.nvmlDeviceGetGpuInstanceById, (gpu(), 13)),
            (pynvml.nvmlDeviceSetPersistenceMode, (gpu(), 1)),
        ]:
            fails(NVML_ERROR_NO_PERMISSION, function, *arguments)
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


def test_processes_and_memory_of_gpus_and_mig_devices(tmp_path: Path) -> None:
    running = pynvml.nvmlDeviceGetComputeRunningProcesses
    with node(tmp_path, f"{A100},T4") as gpus:
        pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
        for start in (0, 4):
            instance = create_at(gpu(0), 9, start, 4)
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        devices = mig_devices(gpu(0))
        gpus.add_process(pynvml.nvmlDeviceGetUUID(devices[1]), pid=10, name="python train.py", memory_mb=1024)
        gpus.add_process(0, 2, 0, pid=11, name="job", memory_mb=2048)
        gpus.add_process(1, pid=12, name="Xorg", kind="graphics")
        found = [(p.pid, p.gpuInstanceId, p.computeInstanceId) for p in running(gpu(0))]
        assert found == [(10, 1, 1), (11, 2, 0)]
        assert [[p.pid for p in running(device)] for device in devices.values()] == [[], [10], [11], []]
        (graphics,) = pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu(1))
        assert (graphics.pid, graphics.gpuInstanceId) == (12, 0xFFFFFFFF)
        assert running(gpu(1)) == []
        assert pynvml.nvmlSystemGetProcessName(10) == "python train.py"
        memory = pynvml.nvmlDeviceGetMemoryInfo(devices[0])
        assert (memory.total >> 20, memory.used >> 20) == (40192, 1024), "a GPU instance's, shared"
        parent = pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
        assert parent.used >> 20 == 3072
        attributes = pynvml.nvmlDeviceGetAttributes(devices[1])
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 1)
        assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (14, 40192)
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetAttributes, gpu(0))
        fails(NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetMigMode, devices[0])


MONITORED = (
    (pynvml.nvmlDeviceGetTemperature, (pynvml.NVML_TEMPERATURE_GPU,), True),
    (pynvml.nvmlDeviceGetPowerUsage, (), True),
    (pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,), True),
    (pynvml.nvmlDeviceGetEccMode, (), True),
    (pynvml.nvmlDeviceGetUtilizationRates, (), False),
    (pynvml.nvmlDeviceGetDecoderUtilization, (), False),
    (pynvml.nvmlDeviceGetComputeMode, (), False),
)
"""What monitors read, and whether a GPU in MIG mode tells it."""


def test_monitors_find_what_they_read_and_not_in_mig_mode_what_no_gpu_tells_there(tmp_path: Path) -> None:
    with node(tmp_path, f"{A100},T4"):
        pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
        for function, arguments, in_mig_mode in MONITORED:
            function(gpu(1), *arguments)
            if in_mig_mode:
                function(gpu(0), *arguments)
            else:
                fails(NVML_ERROR_NOT_SUPPORTED, function, gpu(0), *arguments)
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetFanSpeed, gpu(1))
        fails(NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetProcessUtilization, gpu(1), 0)
        fails(NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetProcessUtilization, gpu(0), 0)


def test_the_state_file_is_there_for_later(tmp_path: Path) -> None:
    with node(tmp_path, A100, mig=True) as gpus:
        pynvml.nvmlGpuInstanceCreateComputeInstance(create_at(gpu(), 9, 4, 4), 2)
        (mig,) = mig_devices(gpu()).values()
        uuid = pynvml.nvmlDeviceGetUUID(mig)
    (picture,) = SimulatedGpus.open(gpus.path).snapshot()["gpus"]
    assert picture["mig"] == {"current": True, "pending": True}
    (instance,) = picture["instances"]
    assert (instance["profile"], instance["start"], instance["size"]) == ("3g.40gb", 4, 4)
    assert instance["compute"] == [
        {"id": 0, "profile": "3g.40gb", "start": 0, "size": 3, "uuid": uuid, "index": 0, "busy": False}
    ]


def test_misreported_instance_counts(tmp_path: Path) -> None:
    with node(tmp_path, "A30", mig=True, instance_counts={"1g.6gb": 1}):
        info = profiles(gpu())["1g.6gb"]
        assert info.instanceCount == 1
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), info.id) == 4
