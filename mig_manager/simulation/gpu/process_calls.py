"""The functions of NVML on memory and on the processes that use a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
from pynvml import (
    NVML_ERROR_INSUFFICIENT_SIZE,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
)

from mig_manager.simulation.gpu.calls import BUFFER, UINT, UINT_OUT, Call, Table
from mig_manager.simulation.gpu.device import RefusedError
from mig_manager.simulation.gpu.memory import fill_text

TABLE = Table()
nvml = TABLE.function

_NO_INSTANCE = 0xFFFFFFFF
"""Instead of an instance id, where a process runs outside MIG."""
_RESERVED_MB = 512
"""What the driver keeps of a GPU's memory for itself (about; it differs by model and driver)."""


def _memory(call: Call) -> tuple[int, int, int]:
    """Total, reserved and used bytes of a GPU or a MIG device; NOT_SUPPORTED where it shares the host's."""
    device = call.device
    if not device.board.memory_mb:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
    clients = device.clients()
    if call.mig:
        total = device.profile(call.gi["profile"]).memory_mb
        clients = [client for client in clients if client["gi"] == call.gi["id"]]
        reserved = 0
    else:
        total, reserved = device.board.memory_mb, _RESERVED_MB
    used = min(total - reserved, sum(client["memory_mb"] for client in clients))
    return total << 20, reserved << 20, used << 20


@nvml("nvmlDeviceGetMemoryInfo", ctypes.POINTER(pynvml.c_nvmlMemory_t), on="device")
def memory(call: Call, info: Any) -> None:
    """What the driver keeps counts as used."""
    total, reserved, used = _memory(call)
    info[0].total, info[0].used, info[0].free = total, used + reserved, total - used - reserved


@nvml("nvmlDeviceGetMemoryInfo_v2", ctypes.POINTER(pynvml.c_nvmlMemory_v2_t), on="device")
def memory_v2(call: Call, info: Any) -> None:
    """What the driver keeps stands by itself."""
    if info[0].version != pynvml.nvmlMemory_v2:
        raise RefusedError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    total, reserved, used = _memory(call)
    info[0].total, info[0].reserved, info[0].used = total, reserved, used
    info[0].free = total - used - reserved


def _processes(kind: str) -> Any:
    def body(call: Call, count: Any, buffer: int | None) -> None:
        """INSUFFICIENT_SIZE and the number, until the buffer is large enough."""
        found = [client for client in call.device.clients() if client["kind"] == kind]
        if call.mig:
            here = (call.gi["id"], call.ci["id"])
            found = [client for client in found if (client["gi"], client["ci"]) == here]
        elif call.device.gpu["current"] and call.state["options"]["permission"] == "none":
            # On a GPU in MIG mode only a privileged process sees those of all instances.
            raise RefusedError(NVML_ERROR_NO_PERMISSION)
        room = count[0]
        count[0] = len(found)
        if not found:
            return
        if buffer is None or room < len(found):
            raise RefusedError(NVML_ERROR_INSUFFICIENT_SIZE)
        slots = (pynvml.c_nvmlProcessInfo_v2_t * len(found)).from_address(buffer)
        for slot, client in zip(slots, found, strict=True):
            slot.pid = client["pid"]
            slot.usedGpuMemory = client["memory_mb"] << 20
            slot.gpuInstanceId = _NO_INSTANCE if client["gi"] is None else client["gi"]
            slot.computeInstanceId = _NO_INSTANCE if client["ci"] is None else client["ci"]

    return body


for _name, _kind in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", "mps")):
    for _version in ("_v2", "_v3"):
        nvml(f"nvmlDeviceGet{_name}RunningProcesses{_version}", UINT_OUT, BUFFER, on="device")(
            _processes(_kind)
        )


@nvml("nvmlSystemGetProcessName", UINT, BUFFER, UINT)
def process_name(call: Call, pid: int, buffer: int | None, length: int) -> None:
    """Of a process on a GPU."""
    for client in call.state["clients"]:
        if client["pid"] == pid:
            fill_text(client["name"][: length - 1], buffer, length)
            return
    raise RefusedError(NVML_ERROR_NOT_FOUND)
