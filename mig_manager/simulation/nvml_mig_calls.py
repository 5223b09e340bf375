"""The MIG functions of NVML: mode, GPU instances, compute instances, MIG devices."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pynvml
from pynvml import (
    NVML_ERROR_INSUFFICIENT_SIZE,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
)

from mig_manager.planning.geometry import InstanceProfile, Placement
from mig_manager.simulation.board import ComputeOffer
from mig_manager.simulation.calls import BUFFER, HANDLE_OUT, UINT, UINT_OUT, Call, nvml
from mig_manager.simulation.device import Refused
from mig_manager.simulation.driver import knows_profile, profile_count, queries_without_mig
from mig_manager.simulation.gpustate import GpuInstanceState

_PLACEMENT = ctypes.POINTER(pynvml.c_nvmlGpuInstancePlacement_t)
_COMPUTE_PLACEMENT = ctypes.POINTER(pynvml.c_nvmlComputeInstancePlacement_t)
_PROFILE_V1 = ctypes.POINTER(pynvml.c_nvmlGpuInstanceProfileInfo_t)
_PROFILE_V2 = ctypes.POINTER(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t)
_COMPUTE_V1 = ctypes.POINTER(pynvml.c_nvmlComputeInstanceProfileInfo_t)
_COMPUTE_V2 = ctypes.POINTER(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t)


# Mode


@nvml("nvmlDeviceGetMigMode", UINT_OUT, UINT_OUT, on="gpu")
def get_mode(call: Call, current: Any, pending: Any) -> None:
    """NOT_SUPPORTED on a GPU without MIG: this is how everybody tells."""
    if not call.device.board.profiles:
        raise Refused(NVML_ERROR_NOT_SUPPORTED)
    current[0] = call.device.gpu["current"]
    pending[0] = call.device.gpu["pending"]


@nvml("nvmlDeviceSetMigMode", UINT, UINT_OUT, on="gpu", changes=True, needs="mode")
def set_mode(call: Call, mode: int, status: Any) -> None:
    """Whether the mode is active goes into `status`; the call itself succeeds either way."""
    if not call.device.board.profiles:
        raise Refused(NVML_ERROR_NOT_SUPPORTED)
    if mode not in (0, 1):
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)
    status[0], call.reset = call.device.set_mode(mode, os.getpid())


# GPU-instance profiles


def _require_profiles(call: Call) -> None:
    """NOT_SUPPORTED where no profile can be read: no MIG, or MIG off with a driver that cannot then."""
    device = call.device
    if not device.board.profiles:
        raise Refused(NVML_ERROR_NOT_SUPPORTED)
    if not device.gpu["current"] and not queries_without_mig(device.state, device.board):
        raise Refused(NVML_ERROR_NOT_SUPPORTED)


def _profile_by_enum(call: Call, enum: int) -> InstanceProfile:
    """INVALID_ARGUMENT behind the last enum that the driver knows, NOT_SUPPORTED for one that the GPU lacks."""
    if enum >= profile_count(call.state, call.device.board):
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)
    _require_profiles(call)
    for profile in call.device.board.profiles:
        if profile.enum == enum and knows_profile(call.state, enum):
            return profile
    raise Refused(NVML_ERROR_NOT_SUPPORTED)


def _fill_profile(call: Call, profile: InstanceProfile, info: Any) -> None:
    board = call.device.board
    info.id = profile.profile_id
    info.isP2pSupported = 0
    info.sliceCount = profile.name.gpu_slices
    counts = call.state["options"]["instance_counts"]
    info.instanceCount = counts.get(str(profile.name), profile.max_instances)
    info.multiprocessorCount = board.multiprocessors(profile)
    engines = board.engines(profile)
    info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount = engines
    info.memorySizeMB = profile.memory_mb


@nvml("nvmlDeviceGetGpuInstanceProfileInfo", UINT, _PROFILE_V1, on="gpu")
def profile_info(call: Call, enum: int, info: Any) -> None:
    """The unversioned struct, without a name."""
    _fill_profile(call, _profile_by_enum(call, enum), info[0])


@nvml("nvmlDeviceGetGpuInstanceProfileInfoV", UINT, _PROFILE_V2, on="gpu")
def profile_info_v(call: Call, enum: int, info: Any) -> None:
    """Struct version 2."""
    _require_version(info[0].version, pynvml.nvmlGpuInstanceProfileInfo_v2)
    profile = _profile_by_enum(call, enum)
    _fill_profile(call, profile, info[0])
    info[0].name = f"MIG {profile.name}"


@nvml("nvmlDeviceGetGpuInstanceProfileInfoByIdV", UINT, _PROFILE_V2, on="gpu")
def profile_info_by_id(call: Call, profile_id: int, info: Any) -> None:
    """By profile id instead of the enum."""
    _require_version(info[0].version, pynvml.nvmlGpuInstanceProfileInfo_v2)
    _require_profiles(call)
    profile = call.device.profile(profile_id)
    _fill_profile(call, profile, info[0])
    info[0].name = f"MIG {profile.name}"


def _require_version(found: int, known: int) -> None:
    if found != known:
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)


def _fill_placements(struct: Any, placements: tuple[Placement, ...], buffer: int | None, count: Any) -> None:
    """The count alone without a buffer; INSUFFICIENT_SIZE when the caller's count is too small."""
    room = count[0]
    count[0] = len(placements)
    if buffer is None:
        return
    if room < len(placements):
        raise Refused(NVML_ERROR_INSUFFICIENT_SIZE)
    for slot, placement in zip((struct * len(placements)).from_address(buffer), placements, strict=True):
        slot.start, slot.size = placement.start, placement.size


@nvml("nvmlDeviceGetGpuInstancePossiblePlacements_v2", UINT, BUFFER, UINT_OUT, on="gpu", needs="config")
def placements(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """All placements that the profile ever has, whatever is occupied now."""
    _require_profiles(call)
    profile = call.device.profile(profile_id)
    _fill_placements(pynvml.c_nvmlGpuInstancePlacement_t, profile.placements, buffer, count)


@nvml("nvmlDeviceGetGpuInstanceRemainingCapacity", UINT, UINT_OUT, on="gpu", needs="config")
def capacity(call: Call, profile_id: int, count: Any) -> None:
    """How many more could be created now."""
    call.device.require_mig()
    count[0] = call.device.capacity(call.device.profile(profile_id))


# GPU instances


@nvml("nvmlDeviceCreateGpuInstance", UINT, HANDLE_OUT, on="gpu", changes=True, needs="config")
def create_instance(call: Call, profile_id: int, out: Any) -> None:
    """Where the driver likes."""
    out[0] = call.gi_handle(call.device.create_instance(profile_id, None))


@nvml(
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    UINT,
    _PLACEMENT,
    HANDLE_OUT,
    on="gpu",
    changes=True,
    needs="config",
)
def create_instance_at(call: Call, profile_id: int, placement: Any, out: Any) -> None:
    """Where the caller says, or not at all."""
    wanted = Placement(placement[0].start, placement[0].size)
    out[0] = call.gi_handle(call.device.create_instance(profile_id, wanted))


@nvml("nvmlGpuInstanceDestroy", on="gi", changes=True, needs="config")
def destroy_instance(call: Call) -> None:
    """IN_USE while it has compute instances or users."""
    call.device.destroy_instance(call.gi)


@nvml("nvmlDeviceGetGpuInstances", UINT, BUFFER, UINT_OUT, on="gpu", needs="config")
def instances(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """Those of one profile; the caller's buffer holds the profile's largest count."""
    device = call.device
    device.require_mig()
    device.profile(profile_id)
    found = [call.gi_handle(gi) for gi in device.gpu["instances"] if gi["profile"] == profile_id]
    _fill_handles(found, buffer, count)


def _fill_handles(handles: list[int], buffer: int | None, count: Any) -> None:
    if buffer is None:
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)
    (ctypes.c_void_p * len(handles)).from_address(buffer)[:] = handles
    count[0] = len(handles)


@nvml("nvmlDeviceGetGpuInstanceById", UINT, HANDLE_OUT, on="gpu", needs="config")
def instance_by_id(call: Call, key: int, out: Any) -> None:
    """NOT_FOUND where no instance has that id."""
    call.device.require_mig()
    for gi in call.device.gpu["instances"]:
        if gi["id"] == key:
            out[0] = call.gi_handle(gi)
            return
    raise Refused(NVML_ERROR_NOT_FOUND)


@nvml("nvmlGpuInstanceGetInfo", ctypes.POINTER(pynvml.c_nvmlGpuInstanceInfo_t), on="gi")
def instance_info(call: Call, info: Any) -> None:
    """Parent, id, profile id and placement."""
    gi = call.gi
    info[0].device = _as_device(call.gpu_handle(call.device.index))
    info[0].id, info[0].profileId = gi["id"], gi["profile"]
    info[0].placement.start, info[0].placement.size = gi["start"], gi["size"]


def _as_device(address: int) -> Any:
    return ctypes.cast(address, pynvml.c_nvmlDevice_t)


# Compute instances


def _compute_by_enum(call: Call, enum: int, engines: int) -> ComputeOffer:
    if enum >= pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or engines >= (
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
    ):
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)
    for offer in call.device.compute_offers(call.gi):
        # In every published listing the id of a compute-instance profile is its enum.
        if offer.profile.profile_id == enum:
            return offer
    raise Refused(NVML_ERROR_NOT_SUPPORTED)


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


@nvml("nvmlGpuInstanceGetComputeInstanceProfileInfo", UINT, UINT, _COMPUTE_V1, on="gi")
def compute_info(call: Call, enum: int, engines: int, info: Any) -> None:
    """The unversioned struct."""
    _fill_compute(call, _compute_by_enum(call, enum, engines), info[0])


@nvml("nvmlGpuInstanceGetComputeInstanceProfileInfoV", UINT, UINT, _COMPUTE_V2, on="gi")
def compute_info_v(call: Call, enum: int, engines: int, info: Any) -> None:
    """Struct version 2."""
    _require_version(info[0].version, pynvml.nvmlComputeInstanceProfileInfo_v2)
    offer = _compute_by_enum(call, enum, engines)
    _fill_compute(call, offer, info[0])
    info[0].name = f"MIG {device_name(call, call.gi, offer.profile.slices)}"


def device_name(call: Call, gi: GpuInstanceState, slices: int) -> str:
    """The name of the MIG device that a compute instance of that many slices makes."""
    return str(call.device.profile(gi["profile"]).name.split(slices))


@nvml("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", UINT, UINT_OUT, on="gi", needs="config")
def compute_capacity(call: Call, profile_id: int, count: Any) -> None:
    """How many more could be created now."""
    offer = call.device.compute_offer(call.gi, profile_id)
    count[0] = call.device.compute_capacity(call.gi, offer)


@nvml("nvmlGpuInstanceGetComputeInstancePossiblePlacements", UINT, BUFFER, UINT_OUT, on="gi", needs="config")
def compute_placements(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """All placements, in compute slices, whatever is occupied now."""
    offer = call.device.compute_offer(call.gi, profile_id)
    _fill_placements(pynvml.c_nvmlComputeInstancePlacement_t, offer.profile.placements, buffer, count)


@nvml("nvmlGpuInstanceCreateComputeInstance", UINT, HANDLE_OUT, on="gi", changes=True, needs="config")
def create_compute(call: Call, profile_id: int, out: Any) -> None:
    """At the lowest free place."""
    out[0] = call.ci_handle(call.device.create_compute(call.gi, profile_id, None))


@nvml(
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    UINT,
    _COMPUTE_PLACEMENT,
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
    _fill_handles(found, buffer, count)


@nvml("nvmlGpuInstanceGetComputeInstanceById", UINT, HANDLE_OUT, on="gi", needs="config")
def compute_by_id(call: Call, key: int, out: Any) -> None:
    """NOT_FOUND where no compute instance has that id."""
    for ci in call.gi["compute"]:
        if ci["id"] == key:
            out[0] = call.ci_handle(ci)
            return
    raise Refused(NVML_ERROR_NOT_FOUND)


@nvml("nvmlComputeInstanceGetInfo_v2", ctypes.POINTER(pynvml.c_nvmlComputeInstanceInfo_t), on="ci")
def compute_instance_info(call: Call, info: Any) -> None:
    """`device` is the MIG device, as on hardware, although the header calls it the parent."""
    ci = call.ci
    info[0].device = _as_device(call.mig_handle(call.device.index, ci))
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
        raise Refused(NVML_ERROR_INVALID_ARGUMENT)
    for gi in call.device.gpu["instances"]:
        for ci in gi["compute"]:
            if ci["index"] == index:
                out[0] = call.mig_handle(call.device.index, ci)
                return
    raise Refused(NVML_ERROR_NOT_FOUND)


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
        raise Refused(NVML_ERROR_NOT_SUPPORTED)
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
