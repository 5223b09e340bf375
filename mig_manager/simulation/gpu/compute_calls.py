"""The functions of NVML on compute instances and MIG devices."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
from pynvml import NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED

from mig_manager.planning.geometry import Placement
from mig_manager.simulation.gpu.board import ComputeOffer
from mig_manager.simulation.gpu.calls import BUFFER, HANDLE_OUT, UINT, UINT_OUT, Call, Table
from mig_manager.simulation.gpu.device import RefusedError
from mig_manager.simulation.gpu.driver import lacking
from mig_manager.simulation.gpu.memory import as_device, fill_handles, fill_placements, require_version

TABLE = Table()
nvml = TABLE.function

_PLACEMENT = ctypes.POINTER(pynvml.c_nvmlComputeInstancePlacement_t)
_PROFILE_V1 = ctypes.POINTER(pynvml.c_nvmlComputeInstanceProfileInfo_t)
_PROFILE_V2 = ctypes.POINTER(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t)


# Compute instances


def _compute_by_enum(call: Call, enum: int, engines: int) -> ComputeOffer:
    if enum >= pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or engines >= (
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
    ):
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    for offer in call.device.compute_offers(call.gi):
        # In every published listing the id of a compute-instance profile is its enum.
        if offer.profile.profile_id == enum:
            return offer
    raise RefusedError(lacking(call.state))


def _fill_compute(call: Call, offer: ComputeOffer, info: Any) -> None:
    board = call.device.board
    gi = call.device.profile(call.gi["profile"])
    info.id = offer.profile.profile_id
    info.sliceCount = offer.profile.slices
    info.instanceCount = offer.profile.max_instances
    info.multiprocessorCount = offer.multiprocessors
    (
        info.sharedCopyEngineCount,
        info.sharedDecoderCount,
        info.sharedEncoderCount,
        info.sharedJpegCount,
        info.sharedOfaCount,
    ) = board.engines(gi)


@nvml("nvmlGpuInstanceGetComputeInstanceProfileInfo", UINT, UINT, _PROFILE_V1, on="gi")
def compute_info(call: Call, enum: int, engines: int, info: Any) -> None:
    """The unversioned struct."""
    _fill_compute(call, _compute_by_enum(call, enum, engines), info[0])


@nvml("nvmlGpuInstanceGetComputeInstanceProfileInfoV", UINT, UINT, _PROFILE_V2, on="gi")
def compute_info_v(call: Call, enum: int, engines: int, info: Any) -> None:
    """Struct version 2."""
    require_version(info[0].version, pynvml.nvmlComputeInstanceProfileInfo_v2)
    offer = _compute_by_enum(call, enum, engines)
    _fill_compute(call, offer, info[0])
    name = call.device.profile(call.gi["profile"]).name
    info[0].name = f"MIG {name.split(offer.profile.slices)}"


@nvml("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", UINT, UINT_OUT, on="gi", needs="config")
def compute_capacity(call: Call, profile_id: int, count: Any) -> None:
    """How many more could be created now."""
    offer = call.device.compute_offer(call.gi, profile_id)
    count[0] = call.device.compute_capacity(call.gi, offer)


@nvml("nvmlGpuInstanceGetComputeInstancePossiblePlacements", UINT, BUFFER, UINT_OUT, on="gi", needs="config")
def compute_placements(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """All placements, in compute slices, whatever is occupied now."""
    offer = call.device.compute_offer(call.gi, profile_id)
    fill_placements(pynvml.c_nvmlComputeInstancePlacement_t, offer.profile.placements, buffer, count)


@nvml("nvmlGpuInstanceCreateComputeInstance", UINT, HANDLE_OUT, on="gi", changes=True, needs="config")
def create_compute(call: Call, profile_id: int, out: Any) -> None:
    """At the lowest free place."""
    out[0] = call.ci_handle(call.device.create_compute(call.gi, profile_id, None))


@nvml(
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    UINT,
    _PLACEMENT,
    HANDLE_OUT,
    on="gi",
    changes=True,
    needs="config",
)
def create_compute_at(call: Call, profile_id: int, placement: Any, out: Any) -> None:
    """Where the caller says, or not at all."""
    wanted = Placement(placement[0].start, placement[0].size)
    out[0] = call.ci_handle(call.device.create_compute(call.gi, profile_id, wanted))


@nvml("nvmlComputeInstanceDestroy", on="ci", changes=True, needs="config")
def destroy_compute(call: Call) -> None:
    """IN_USE while somebody uses it."""
    call.device.destroy_compute(call.gi, call.ci)


@nvml("nvmlGpuInstanceGetComputeInstances", UINT, BUFFER, UINT_OUT, on="gi", needs="config")
def compute_instances(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """Those of one profile."""
    call.device.compute_offer(call.gi, profile_id)
    found = [call.ci_handle(ci) for ci in call.gi["compute"] if ci["profile"] == profile_id]
    fill_handles(found, buffer, count)


@nvml("nvmlGpuInstanceGetComputeInstanceById", UINT, HANDLE_OUT, on="gi", needs="config")
def compute_by_id(call: Call, key: int, out: Any) -> None:
    """NOT_FOUND where no compute instance has that id."""
    for ci in call.gi["compute"]:
        if ci["id"] == key:
            out[0] = call.ci_handle(ci)
            return
    raise RefusedError(NVML_ERROR_NOT_FOUND)


@nvml("nvmlComputeInstanceGetInfo_v2", ctypes.POINTER(pynvml.c_nvmlComputeInstanceInfo_t), on="ci")
def compute_instance_info(call: Call, info: Any) -> None:
    """`device` is the MIG device, as on hardware, although the header calls it the parent."""
    ci = call.ci
    info[0].device = as_device(call.mig_handle(call.device.index, ci))
    info[0].gpuInstance = ctypes.cast(call.gi_handle(call.gi), pynvml.c_nvmlGpuInstance_t)
    info[0].id, info[0].profileId = ci["id"], ci["profile"]
    info[0].placement.start, info[0].placement.size = ci["start"], ci["size"]


# MIG devices


@nvml("nvmlDeviceIsMigDeviceHandle", UINT_OUT, on="device")
def is_mig_device(call: Call, out: Any) -> None:
    """1 for a MIG device, 0 for a GPU."""
    out[0] = call.mig


@nvml("nvmlDeviceGetMaxMigDeviceCount", UINT_OUT, on="gpu")
def max_mig_devices(call: Call, out: Any) -> None:
    """0 without MIG or with MIG off."""
    geometry = call.device.board.geometry
    out[0] = geometry.compute_slices if geometry and call.device.gpu["current"] else 0


@nvml("nvmlDeviceGetMigDeviceHandleByIndex", UINT, HANDLE_OUT, on="gpu")
def mig_device(call: Call, index: int, out: Any) -> None:
    """NOT_FOUND for an index that no MIG device has; there may be others behind it."""
    call.device.require_mig()
    geometry = call.device.board.geometry
    if geometry is None or index >= geometry.compute_slices:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    for gi in call.device.gpu["instances"]:
        for ci in gi["compute"]:
            if ci["index"] == index:
                out[0] = call.mig_handle(call.device.index, ci)
                return
    raise RefusedError(NVML_ERROR_NOT_FOUND)


@nvml("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", HANDLE_OUT, on="mig")
def parent(call: Call, out: Any) -> None:
    """The GPU that a MIG device is part of."""
    out[0] = call.gpu_handle(call.device.index)


@nvml("nvmlDeviceGetGpuInstanceId", UINT_OUT, on="mig")
def gpu_instance_id(call: Call, out: Any) -> None:
    """Of a MIG device."""
    out[0] = call.gi["id"]


@nvml("nvmlDeviceGetComputeInstanceId", UINT_OUT, on="mig")
def compute_instance_id(call: Call, out: Any) -> None:
    """Of a MIG device."""
    out[0] = call.ci["id"]


@nvml("nvmlDeviceGetAttributes_v2", ctypes.POINTER(pynvml.c_nvmlDeviceAttributes), on="device")
def attributes(call: Call, out: Any) -> None:
    """Of a MIG device; NOT_SUPPORTED on a GPU."""
    if not call.mig:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
    device, gi, ci = call.device, call.gi, call.ci
    profile = device.profile(gi["profile"])
    offer = device.compute_offer(gi, ci["profile"])
    out[0].multiprocessorCount = offer.multiprocessors
    (
        out[0].sharedCopyEngineCount,
        out[0].sharedDecoderCount,
        out[0].sharedEncoderCount,
        out[0].sharedJpegCount,
        out[0].sharedOfaCount,
    ) = device.board.engines(profile)
    out[0].gpuInstanceSliceCount = profile.name.gpu_slices
    out[0].computeInstanceSliceCount = offer.profile.slices
    out[0].memorySizeMB = profile.memory_mb
