"""Asking drivers of all ages: what one lacks is passed over or asked in an older way, never a failure."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint
from functools import partial
from typing import Any, TypeVar

from mig_manager.gpu import nvml as codes
from mig_manager.gpu.nvml import NvmlCallError
from mig_manager.planning.geometry import Placement

_T = TypeVar("_T")

_MOST_PROFILES = 64
"""No driver knows that many; the end of an enumeration that never says INVALID_ARGUMENT."""


def denied_twice(read: Callable[[], _T]) -> _T:
    """What a read gives. One that says there is no such thing is asked again, and its second answer counts.

    A GPU would be left out of a layout, or a layout be called impossible, for one such answer that was wrong.
    """
    try:
        return read()
    except NvmlCallError as error:
        if error.code not in codes.NO_SUCH_THING:
            raise
        return read()


def enumerated(read: Callable[[int], _T], known: int) -> tuple[_T, ...]:
    """All answers for 0, 1, 2..., without those that are NOT_SUPPORTED, until INVALID_ARGUMENT.

    The first `known` numbers are asked in any case: some drivers call those that a GPU lacks invalid.
    """
    found = []
    for enum in range(_MOST_PROFILES):
        try:
            found.append(denied_twice(partial(read, enum)))
        except NvmlCallError as error:
            if error.code == codes.INVALID_ARGUMENT:
                if enum >= known:
                    break
            elif error.code != codes.NOT_SUPPORTED:
                raise
    return tuple(found)


def newest(read: Callable[[int, int], _T], known: int) -> tuple[_T, ...]:
    """As `enumerated`, by the second version of a call; by the first where the second does not answer for any.

    Drivers that are too old for the second say so in several ways, or by nothing but NOT_SUPPORTED.

    Args:
        read: is given the number and the version.
        known: as in `enumerated`.
    """

    def second_or_first(enum: int) -> _T:
        try:
            return read(enum, 2)
        except NvmlCallError as error:
            if error.code not in (codes.FUNCTION_NOT_FOUND, codes.ARGUMENT_VERSION_MISMATCH):
                raise
            return read(enum, 1)

    return enumerated(second_or_first, known) or enumerated(lambda enum: read(enum, 1), known)


def placements(call: Callable[[Any, Any], Any], struct: Any) -> tuple[Placement, ...]:
    """The placements that a call lists; none where the driver lacks the call, or does not know the profile."""

    def read() -> tuple[Placement, ...]:
        count = c_uint()
        call(None, byref(count))
        array = (struct * count.value)()
        call(array, byref(count))
        return tuple(sorted(Placement(int(p.start), int(p.size)) for p in array[: count.value]))

    try:
        return denied_twice(read)
    except NvmlCallError as error:
        if error.code in (codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT):
            return ()
        raise
