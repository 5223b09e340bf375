"""Asking drivers of all ages: what one lacks is passed over or asked in an older way, never a failure."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint
from typing import Any, TypeVar

from mig_manager.gpu import nvml as codes
from mig_manager.gpu.nvml import NvmlCallError
from mig_manager.planning.geometry import Placement

_T = TypeVar("_T")

_MOST_PROFILES = 64
"""No driver knows that many; the end of an enumeration that never says INVALID_ARGUMENT."""


def enumerated(read: Callable[[int], _T], known: int) -> tuple[_T, ...]:
    """All answers for 0, 1, 2..., without those that are NOT_SUPPORTED, until INVALID_ARGUMENT.

    The first `known` numbers are asked in any case: some drivers call those that a GPU lacks invalid.
    """
    found = []
    for enum in range(_MOST_PROFILES):
        try:
            found.append(read(enum))
        except NvmlCallError as error:
            if error.code == codes.INVALID_ARGUMENT:
                if enum >= known:
                    break
            elif error.code != codes.NOT_SUPPORTED:
                raise
    return tuple(found)


def newest(call: Callable[[int], Any]) -> Any:
    """The second version of a call, or the first one where the driver is too old for the second."""
    try:
        return call(2)
    except NvmlCallError as error:
        if error.code not in (codes.FUNCTION_NOT_FOUND, codes.ARGUMENT_VERSION_MISMATCH):
            raise
        return call(1)


def placements(call: Callable[[Any, Any], Any], struct: Any) -> tuple[Placement, ...]:
    """The placements that a call lists; none where the driver lacks the call, or does not know the profile."""
    count = c_uint()
    try:
        call(None, byref(count))
        array = (struct * count.value)()
        call(array, byref(count))
    except NvmlCallError as error:
        if error.code in (codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT):
            return ()
        raise
    return tuple(sorted(Placement(int(p.start), int(p.size)) for p in array[: count.value]))
