"""The functions of NVML that do not concern MIG alone: the system, devices, memory, processes."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pynvml
from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_SUCCESS,
)

from mig_manager.simulation.gpu.calls import (
    BUFFER,
    HANDLE_OUT,
    INT_OUT,
    UINT,
    UINT_OUT,
    Call,
    Table,
)
from mig_manager.simulation.gpu.device import RefusedError
from mig_manager.simulation.gpu.driver import branch, queries_without_mig
from mig_manager.simulation.gpu.memory import fill_text

TABLE = Table()
nvml = TABLE.function

_ARCHITECTURES = {
    "volta": (pynvml.NVML_DEVICE_ARCH_VOLTA, (7, 0)),
    "turing": (pynvml.NVML_DEVICE_ARCH_TURING, (7, 5)),
    "ampere": (pynvml.NVML_DEVICE_ARCH_AMPERE, (8, 0)),
    "ada": (pynvml.NVML_DEVICE_ARCH_ADA, (8, 9)),
    "hopper": (pynvml.NVML_DEVICE_ARCH_HOPPER, (9, 0)),
    "blackwell": (pynvml.NVML_DEVICE_ARCH_BLACKWELL, (10, 0)),
}

_TEXTS = {
    0: "Success",
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    5: "Already Initialized",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    14: "Corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "The operating system has blocked the request.",
    18: "Driver/library version mismatch",
    19: "In use by another client",
    20: "Insufficient Memory",
    21: "No data",
    23: "Insufficient Resources",
    25: "Argument version mismatch",
    27: "System is not in ready state",
    28: "GPU not found",
    29: "Invalid state",
    30: "Reset type not supported",
    999: "Unknown Error",
}
_TEXT_BUFFERS = {code: ctypes.create_string_buffer(text.encode()) for code, text in _TEXTS.items()}


# The system

TABLE.lifecycle("nvmlInitWithFlags", UINT)
TABLE.lifecycle("nvmlInit_v2")
TABLE.lifecycle("nvmlShutdown")


@TABLE.pure("nvmlErrorString", UINT, result=ctypes.c_void_p)
def error_string(code: int) -> int:
    """The text of a return code."""
    return ctypes.addressof(_TEXT_BUFFERS.get(code, _TEXT_BUFFERS[999]))


@nvml("nvmlSystemGetDriverVersion", BUFFER, UINT)
def driver_version(call: Call, buffer: int | None, length: int) -> None:
    """Of the kernel module."""
    fill_text(call.state["driver"], buffer, length)


@nvml("nvmlSystemGetNVMLVersion", BUFFER, UINT)
def nvml_version(call: Call, buffer: int | None, length: int) -> None:
    """The driver version with the API version before it."""
    fill_text(f"{13 if branch(call.state['library']) >= 580 else 12}.{call.state['library']}", buffer, length)


def _cuda(call: Call, out: Any) -> None:
    out[0] = 13000 if branch(call.state["driver"]) >= 580 else 12020


nvml("nvmlSystemGetCudaDriverVersion", INT_OUT)(_cuda)
nvml("nvmlSystemGetCudaDriverVersion_v2", INT_OUT)(_cuda)


# Devices


@nvml("nvmlDeviceGetCount_v2", UINT_OUT)
def count(call: Call, out: Any) -> None:
    """All GPUs; MIG devices do not count."""
    out[0] = len(call.state["gpus"])


def _give(call: Call, index: int, out: Any) -> None:
    if call.state["gpus"][index]["lost"]:
        raise RefusedError(NVML_ERROR_GPU_IS_LOST)
    out[0] = call.gpu_handle(index)


@nvml("nvmlDeviceGetHandleByIndex_v2", UINT, HANDLE_OUT)
def by_index(call: Call, index: int, out: Any) -> None:
    """NVML promises no order: the option `enumeration` says which GPU comes where."""
    order = call.state["options"]["enumeration"]
    if index >= len(order):
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    _give(call, order[index], out)


@nvml("nvmlDeviceGetHandleByUUID", ctypes.c_char_p, HANDLE_OUT)
def by_uuid(call: Call, text: bytes | None, out: Any) -> None:
    """Of a GPU or a MIG device."""
    wanted = (text or b"").decode(errors="replace")
    for index, gpu in enumerate(call.state["gpus"]):
        if gpu["uuid"] == wanted:
            _give(call, index, out)
            return
        for gi in gpu["instances"]:
            for ci in gi["compute"]:
                if ci["uuid"] == wanted:
                    out[0] = call.mig_handle(index, ci)
                    return
    raise RefusedError(NVML_ERROR_NOT_FOUND if wanted else NVML_ERROR_INVALID_ARGUMENT)


@nvml("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p, HANDLE_OUT)
def by_bus_id(call: Call, text: bytes | None, out: Any) -> None:
    """With a domain of four or eight digits, in either case."""
    wanted = _bus_id((text or b"").decode(errors="replace"))
    for index, gpu in enumerate(call.state["gpus"]):
        if _bus_id(gpu["bus_id"]) == wanted:
            _give(call, index, out)
            return
    raise RefusedError(NVML_ERROR_NOT_FOUND if wanted else NVML_ERROR_INVALID_ARGUMENT)


def _bus_id(text: str) -> tuple[int, ...]:
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.(\d)", text.lower())
    return tuple(int(part or "0", 16) for part in match.groups()) if match else ()


@nvml("nvmlDeviceGetHandleBySerial", ctypes.c_char_p, HANDLE_OUT)
def by_serial(call: Call, text: bytes | None, out: Any) -> None:
    """By the serial number on the board."""
    for index, gpu in enumerate(call.state["gpus"]):
        if gpu["serial_number"].encode() == text:
            _give(call, index, out)
            return
    raise RefusedError(NVML_ERROR_NOT_FOUND)


@nvml("nvmlDeviceGetIndex", UINT_OUT, on="gpu")
def index_of(call: Call, out: Any) -> None:
    """Its place in NVML's order."""
    out[0] = call.state["options"]["enumeration"].index(call.device.index)


@nvml("nvmlDeviceGetUUID", BUFFER, UINT, on="device")
def uuid_of(call: Call, buffer: int | None, length: int) -> None:
    """`GPU-...` or `MIG-...`."""
    fill_text(call.ci["uuid"] if call.mig else call.device.gpu["uuid"], buffer, length)


@nvml("nvmlDeviceGetName", BUFFER, UINT, on="device")
def name_of(call: Call, buffer: int | None, length: int) -> None:
    """Of a MIG device: the parent's, then `MIG` and the profile."""
    name = call.device.board.name
    if call.mig:
        profile = call.device.profile(call.gi["profile"])
        slices = call.device.compute_offer(call.gi, call.ci["profile"]).profile.slices
        name = f"{name} MIG {profile.name.split(slices)}"
    fill_text(name, buffer, length)


@nvml("nvmlDeviceGetSerial", BUFFER, UINT, on="gpu")
def serial_of(call: Call, buffer: int | None, length: int) -> None:
    """The number on the board."""
    fill_text(call.device.gpu["serial_number"], buffer, length)


@nvml("nvmlDeviceGetMinorNumber", UINT_OUT, on="gpu")
def minor_of(call: Call, out: Any) -> None:
    """N of /dev/nvidiaN."""
    out[0] = call.device.gpu["minor"]


@nvml("nvmlDeviceGetPciInfo_v3", ctypes.POINTER(pynvml.nvmlPciInfo_t), on="gpu")
def pci_info(call: Call, info: Any) -> None:
    """Ids packed as device << 16 | vendor, the bus id with eight digits of domain."""
    board, bus_id = call.device.board, call.device.gpu["bus_id"]
    domain, bus, device, _ = _bus_id(bus_id)
    info[0].busId = bus_id
    info[0].busIdLegacy = bus_id[4:]
    info[0].domain, info[0].bus, info[0].device = domain, bus, device
    info[0].pciDeviceId, info[0].pciSubSystemId = board.device_id, board.subsystem_id


@nvml("nvmlDeviceGetArchitecture", UINT_OUT, on="gpu")
def architecture(call: Call, out: Any) -> None:
    """NVML_DEVICE_ARCH_*."""
    known = _ARCHITECTURES.get(call.device.board.architecture)
    out[0] = known[0] if known else pynvml.NVML_DEVICE_ARCH_UNKNOWN


@nvml("nvmlDeviceGetCudaComputeCapability", INT_OUT, INT_OUT, on="gpu")
def compute_capability(call: Call, major: Any, minor: Any) -> None:
    """Of the architecture; 12.0 for workstation Blackwell, 8.6 for Ampere without MIG."""
    board = call.device.board
    _, version = _ARCHITECTURES.get(board.architecture, (0, (5, 0)))
    if board.architecture == "blackwell" and board.geometry and board.geometry.memory_slices == 12:
        version = (12, 0)
    if board.architecture == "ampere" and board.geometry is None:
        version = (8, 6)
    major[0], minor[0] = version


@nvml("nvmlDeviceGetPersistenceMode", UINT_OUT, on="gpu")
def persistence(call: Call, out: Any) -> None:
    """1 when nvidia-persistenced keeps the device open."""
    out[0] = call.device.gpu["persistence"]


@nvml("nvmlDeviceSetPersistenceMode", UINT, on="gpu", changes=True, needs="mode")
def set_persistence(call: Call, mode: int) -> None:
    """For root."""
    if mode not in (0, 1):
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    call.device.gpu["persistence"] = mode


@nvml("nvmlDeviceGetVirtualizationMode", UINT_OUT, on="gpu")
def virtualization(call: Call, out: Any) -> None:
    """Whether the GPU is passed through to a virtual machine."""
    passthrough = call.state["options"]["passthrough"]
    out[0] = (
        pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
        if passthrough
        else pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    )


@nvml("nvmlDeviceGetFieldValues", ctypes.c_int, ctypes.POINTER(pynvml.c_nvmlFieldValue_t), on="gpu")
def field_values(call: Call, number: int, values: Any) -> None:
    """The two fields on MIG; each value has its own return code.

    The values that real GPUs give are not published; here they say what the simulation does.
    """
    device = call.device
    known = {
        pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: not device.board.needs_reset,
        pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE: queries_without_mig(
            call.state, device.board
        ),
    }
    for value in (values[i] for i in range(number)):
        answer = known.get(value.fieldId) if device.board.profiles else None
        value.nvmlReturn = NVML_ERROR_NOT_SUPPORTED if answer is None else NVML_SUCCESS
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = int(answer or False)
