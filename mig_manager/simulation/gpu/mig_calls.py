"""The MIG functions of NVML: mode, GPU instances, compute instances, MIG devices."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pynvml
from pynvml import (
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
)

from mig_manager.planning.geometry import InstanceProfile, Placement
from mig_manager.simulation.gpu.calls import BUFFER, HANDLE_OUT, UINT, UINT_OUT, Call, Table
from mig_manager.simulation.gpu.device import RefusedError
from mig_manager.simulation.gpu.driver import knows_profile, lacking, profile_count, queries_without_mig
from mig_manager.simulation.gpu.memory import as_device, fill_handles, fill_placements, require_version

TABLE = Table()
nvml = TABLE.function

_PLACEMENT = ctypes.POINTER(pynvml.c_nvmlGpuInstancePlacement_t)
_PROFILE_V1 = ctypes.POINTER(pynvml.c_nvmlGpuInstanceProfileInfo_t)
_PROFILE_V2 = ctypes.POINTER(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t)


# Mode


@nvml("nvmlDeviceGetMigMode", UINT_OUT, UINT_OUT, on="gpu")
def get_mode(call: Call, current: Any, pending: Any) -> None:
    """NOT_SUPPORTED on a GPU without MIG: this is how everybody tells."""
    if not call.device.board.profiles:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
    current[0] = call.device.gpu["current"]
    pending[0] = call.device.gpu["pending"]


@nvml("nvmlDeviceSetMigMode", UINT, UINT_OUT, on="gpu", changes=True, needs="mode")
def set_mode(call: Call, mode: int, status: Any) -> None:
    """Whether the mode is active goes into `status`; the call itself succeeds either way."""
    if not call.device.board.profiles:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
    if mode not in (0, 1):
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    status[0], call.reset = call.device.set_mode(mode, os.getpid())


# GPU-instance profiles


def _require_profiles(call: Call) -> None:
    """NOT_SUPPORTED where no profile can be read: no MIG, or MIG off with a driver that cannot then."""
    device = call.device
    if not device.board.profiles:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
    if not device.gpu["current"] and not queries_without_mig(device.state, device.board):
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)


def _profile_by_enum(call: Call, enum: int) -> InstanceProfile:
    """INVALID_ARGUMENT behind the driver's last enum, NOT_SUPPORTED for one that the GPU lacks (or as an option)."""
    if enum >= profile_count(call.state, call.device.board):
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    _require_profiles(call)
    for profile in call.device.board.profiles:
        if profile.enum == enum and knows_profile(call.state, enum):
            return profile
    raise RefusedError(lacking(call.state))


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
    require_version(info[0].version, pynvml.nvmlGpuInstanceProfileInfo_v2)
    profile = _profile_by_enum(call, enum)
    _fill_profile(call, profile, info[0])
    info[0].name = f"MIG {profile.name}"


@nvml("nvmlDeviceGetGpuInstanceProfileInfoByIdV", UINT, _PROFILE_V2, on="gpu")
def profile_info_by_id(call: Call, profile_id: int, info: Any) -> None:
    """By profile id instead of the enum."""
    require_version(info[0].version, pynvml.nvmlGpuInstanceProfileInfo_v2)
    _require_profiles(call)
    profile = call.device.profile(profile_id)
    _fill_profile(call, profile, info[0])
    info[0].name = f"MIG {profile.name}"


@nvml("nvmlDeviceGetGpuInstancePossiblePlacements_v2", UINT, BUFFER, UINT_OUT, on="gpu", needs="config")
def placements(call: Call, profile_id: int, buffer: int | None, count: Any) -> None:
    """All placements that the profile ever has, whatever is occupied now."""
    _require_profiles(call)
    profile = call.device.profile(profile_id)
    fill_placements(pynvml.c_nvmlGpuInstancePlacement_t, profile.placements, buffer, count)


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
    fill_handles(found, buffer, count)


@nvml("nvmlDeviceGetGpuInstanceById", UINT, HANDLE_OUT, on="gpu", needs="config")
def instance_by_id(call: Call, key: int, out: Any) -> None:
    """NOT_FOUND where no instance has that id."""
    call.device.require_mig()
    for gi in call.device.gpu["instances"]:
        if gi["id"] == key:
            out[0] = call.gi_handle(gi)
            return
    raise RefusedError(NVML_ERROR_NOT_FOUND)


@nvml("nvmlGpuInstanceGetInfo", ctypes.POINTER(pynvml.c_nvmlGpuInstanceInfo_t), on="gi")
def instance_info(call: Call, info: Any) -> None:
    """Parent, id, profile id and placement."""
    gi = call.gi
    info[0].device = as_device(call.gpu_handle(call.device.index))
    info[0].id, info[0].profileId = gi["id"], gi["profile"]
    info[0].placement.start, info[0].placement.size = gi["start"], gi["size"]
