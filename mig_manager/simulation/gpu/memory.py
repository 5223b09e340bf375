"""How simulated NVML functions read and fill memory of the caller."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
from pynvml import NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT

from mig_manager.planning.geometry import Placement
from mig_manager.simulation.gpu.device import RefusedError


def require_version(found: int, known: int) -> None:
    """INVALID_ARGUMENT for another struct version."""
    if found != known:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)


def fill_placements(struct: Any, placements: tuple[Placement, ...], buffer: int | None, count: Any) -> None:
    """The count alone without a buffer; INSUFFICIENT_SIZE when the caller's count is too small."""
    room = count[0]
    count[0] = len(placements)
    if buffer is None:
        return
    if room < len(placements):
        raise RefusedError(NVML_ERROR_INSUFFICIENT_SIZE)
    for slot, placement in zip((struct * len(placements)).from_address(buffer), placements, strict=True):
        slot.start, slot.size = placement.start, placement.size


def fill_handles(handles: list[int], buffer: int | None, count: Any) -> None:
    """As many as there are: how much room the caller has, the function is not told."""
    if buffer is None:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    array = (ctypes.c_void_p * len(handles))(*handles)
    ctypes.memmove(buffer, array, ctypes.sizeof(array))
    count[0] = len(handles)


def as_device(address: int) -> Any:
    """A handle as a struct holds it."""
    return ctypes.cast(address, pynvml.c_nvmlDevice_t)


def fill_text(text: str, buffer: int | None, length: int) -> None:
    """With its final NUL; INSUFFICIENT_SIZE where that does not fit."""
    if buffer is None:
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
    raw = text.encode() + b"\0"
    if length < len(raw):
        raise RefusedError(NVML_ERROR_INSUFFICIENT_SIZE)
    ctypes.memmove(buffer, raw, len(raw))
