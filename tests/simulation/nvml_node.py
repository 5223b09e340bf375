"""A simulated node for a test, and short forms of the pynvml calls that tests make all the time."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mig_manager.planning.catalogue import GpuModel, parse_gpus
from mig_manager.simulation.gpus import SimulatedGpus
from mig_manager.simulation.nvml import install

pynvml: Any = importlib.import_module("pynvml")
"""The real module. It makes its exception classes at run time, so a type checker knows none of them."""

PROFILE_ENUMS = 32
"""More than any driver knows."""


@contextmanager
def node(
    directory: Path, gpus: str | Sequence[GpuModel], *, mig: bool = False, **options: Any
) -> Iterator[SimulatedGpus]:
    """A node with NVML open in this process; `mig`: with MIG on everywhere."""
    models = parse_gpus(gpus) if isinstance(gpus, str) else gpus
    simulated = SimulatedGpus.create(directory / "gpus.json", models, **options)
    install(str(simulated.path))
    try:
        pynvml.nvmlInit()
        if mig:
            for index in range(pynvml.nvmlDeviceGetCount()):
                assert pynvml.nvmlDeviceSetMigMode(gpu(index), 1) == 0
        yield simulated
        pynvml.nvmlShutdown()
    finally:
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


def gpu(index: int = 0) -> Any:
    """A fresh handle."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def fails(code: int, function: Any, *arguments: Any) -> None:
    """Assert that a call answers `code`."""
    with pytest.raises(pynvml.NVMLError) as caught:
        function(*arguments)
    assert caught.value.value == code, f"{function.__name__} answered {caught.value}"


def profiles(device: Any) -> dict[str, Any]:
    """The GPU-instance profiles that a GPU lists, by the driver's name without its prefix."""
    found = {}
    for enum in range(PROFILE_ENUMS):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, enum)
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            break
        found[info.name.removeprefix("MIG ")] = info
    return found


def placements(device: Any, profile_id: int) -> list[tuple[int, int]]:
    """All placements of a profile."""
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, array, ctypes.byref(count))
    return [(slot.start, slot.size) for slot in array]


def create_at(device: Any, profile_id: int, start: int, size: int) -> Any:
    """A GPU instance at a placement."""
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, ctypes.byref(placement))


def instances(device: Any) -> list[Any]:
    """Handles of all GPU instances, found profile by profile."""
    found = []
    for info in profiles(device).values():
        array = (pynvml.c_nvmlGpuInstance_t * 16)()
        count = ctypes.c_uint()
        pynvml.nvmlDeviceGetGpuInstances(device, info.id, array, ctypes.byref(count))
        found += array[: count.value]
    return found


def compute_instances(instance: Any) -> list[Any]:
    """Handles of all compute instances of a GPU instance."""
    found = []
    for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        array = (pynvml.c_nvmlComputeInstance_t * 8)()
        count = ctypes.c_uint()
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, ctypes.byref(count))
        found += array[: count.value]
    return found


def clear(device: Any) -> None:
    """Destroy everything."""
    for instance in instances(device):
        for compute in compute_instances(instance):
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)


def where(instance: Any) -> tuple[int, int]:
    """The placement of a GPU instance."""
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return info.placement.start, info.placement.size


def mig_devices(device: Any) -> dict[int, Any]:
    """MIG device handles by index."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found[index] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
    return found
