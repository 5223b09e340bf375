"""The functions of NVML that monitors call all the time. The simulated GPUs are idle whatever runs on them.

In MIG mode most of these have no answer for the GPU as a whole, as the notes in NVML's header say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
from pynvml import NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED

from mig_manager.simulation.gpu.calls import BUFFER, UINT, UINT_OUT, Call, Table
from mig_manager.simulation.gpu.device import RefusedError

TABLE = Table()
nvml = TABLE.function

_CELSIUS = 31
_IDLE_MW = 52_000
_LIMIT_MW = 400_000
_CLOCKS_MHZ = {
    pynvml.NVML_CLOCK_GRAPHICS: 210,
    pynvml.NVML_CLOCK_SM: 210,
    pynvml.NVML_CLOCK_MEM: 1593,
    pynvml.NVML_CLOCK_VIDEO: 585,
}
_SAMPLING_US = 167_000


def _whole(call: Call) -> None:
    """NOT_SUPPORTED in MIG mode."""
    if call.device.gpu["current"]:
        raise RefusedError(NVML_ERROR_NOT_SUPPORTED)


def _number(value: int) -> Callable[[Call, Any], None]:
    def body(call: Call, out: Any) -> None:
        out[0] = value

    return body


for _name, _value in (
    ("nvmlDeviceGetPowerUsage", _IDLE_MW),
    ("nvmlDeviceGetEnforcedPowerLimit", _LIMIT_MW),
    ("nvmlDeviceGetPowerManagementLimit", _LIMIT_MW),
    ("nvmlDeviceGetPerformanceState", pynvml.NVML_PSTATE_0),
    ("nvmlDeviceGetDisplayActive", 0),
    ("nvmlDeviceGetDisplayMode", 0),
):
    nvml(_name, UINT_OUT, on="gpu")(_number(_value))


@nvml("nvmlDeviceGetTemperature", UINT, UINT_OUT, on="gpu")
def temperature(call: Call, sensor: int, out: Any) -> None:
    """Of the chip, the only sensor there is."""
    if sensor != pynvml.NVML_TEMPERATURE_GPU:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    out[0] = _CELSIUS


@nvml("nvmlDeviceGetFanSpeed", UINT_OUT, on="gpu")
def fan_speed(call: Call, out: Any) -> None:
    """The fans are the server's."""
    raise RefusedError(NVML_ERROR_NOT_SUPPORTED)


@nvml("nvmlDeviceGetClockInfo", UINT, UINT_OUT, on="gpu")
def clock(call: Call, kind: int, out: Any) -> None:
    """Of an idle GPU."""
    if kind not in _CLOCKS_MHZ:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    out[0] = _CLOCKS_MHZ[kind]


@nvml("nvmlDeviceGetComputeMode", UINT_OUT, on="device")
def compute_mode(call: Call, out: Any) -> None:
    """Shared by all processes; in MIG mode it is each MIG device's own."""
    if not call.mig:
        _whole(call)
    out[0] = pynvml.NVML_COMPUTEMODE_DEFAULT


@nvml("nvmlDeviceGetEccMode", UINT_OUT, UINT_OUT, on="gpu")
def ecc(call: Call, current: Any, pending: Any) -> None:
    """On."""
    current[0] = pending[0] = 1


@nvml("nvmlDeviceGetUtilizationRates", ctypes.POINTER(pynvml.c_nvmlUtilization_t), on="gpu")
def utilization(call: Call, out: Any) -> None:
    """None, and not known in MIG mode."""
    _whole(call)
    out[0].gpu = out[0].memory = 0


def _media(call: Call, out: Any, period: Any) -> None:
    """None, and not known in MIG mode."""
    _whole(call)
    out[0], period[0] = 0, _SAMPLING_US


nvml("nvmlDeviceGetEncoderUtilization", UINT_OUT, UINT_OUT, on="gpu")(_media)
nvml("nvmlDeviceGetDecoderUtilization", UINT_OUT, UINT_OUT, on="gpu")(_media)


@nvml("nvmlDeviceGetProcessUtilization", BUFFER, UINT_OUT, ctypes.c_ulonglong, on="gpu")
def process_utilization(call: Call, buffer: int | None, count: Any, since: int) -> None:
    """No samples, and not known in MIG mode."""
    _whole(call)
    count[0] = 0
    raise RefusedError(NVML_ERROR_NOT_FOUND)
