"""What differs between driver versions, as far as a MIG manager notices."""

from __future__ import annotations

from functools import cache

from pynvml import NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED

from mig_manager.simulation.gpu.board import Board
from mig_manager.simulation.gpu.state import NodeState

_SINCE_ENUM = {7: 470, 8: 525, 9: 525, **dict.fromkeys(range(10, 18), 575)}
"""NVML_GPU_INSTANCE_PROFILE_*: the first driver branch that knows it. The MIG User Guide names the branches
for +me (7, 8) and double memory (9); those from 10 on came with the GPUs that offer them."""

_SINCE_SYMBOL = {
    "nvmlDeviceGetGpuInstanceProfileInfoByIdV": 550,
    "nvmlDeviceGetGpuInstanceProfileInfoV": 520,
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": 520,
}
"""The first branch that exports a symbol. 535 is known to lack ByIdV; the other two are a guess in the right
order, for the fall-back to the unversioned calls."""

_INDEPENDENT_QUERIES = 550
"""From this branch on, profiles can be read with MIG off, here only on GPUs that need no reset (a guess on
the strict side: 535 cannot, and Ampere is reported not to)."""

_VARIANTS = 550
"""From this branch on, seven slices have a second compute-instance profile (NVL)."""


@cache
def branch(version: str) -> int:
    """The driver branch: 580 for `580.95.05`."""
    return int(version.split(".")[0])


def missing_symbols(state: NodeState) -> frozenset[str]:
    """The C functions that this driver's library does not export."""
    old = {name for name, since in _SINCE_SYMBOL.items() if branch(state["library"]) < since}
    return frozenset(old | set(state["options"]["missing"]))


def knows_profile(state: NodeState, enum: int) -> bool:
    """Whether the driver knows that kind of GPU instance."""
    return branch(state["driver"]) >= _SINCE_ENUM.get(enum, 0)


def profile_count(state: NodeState, board: Board) -> int:
    """One more than the highest profile enum that the driver accepts."""
    enums: list[int] = [*range(18), *(profile.enum for profile in board.profiles)]
    return 1 + max(enum for enum in enums if knows_profile(state, enum))


def lacking(state: NodeState) -> int:
    """What a driver answers for the number of a profile that it knows and the GPU does not offer."""
    invalid = state["options"]["holes"] == "invalid"
    return int(NVML_ERROR_INVALID_ARGUMENT if invalid else NVML_ERROR_NOT_SUPPORTED)


def queries_without_mig(state: NodeState, board: Board) -> bool:
    """Whether profiles can be read while MIG mode is off (NVML field 199)."""
    forced = state["options"]["query_without_mig"]
    if forced is not None:
        return forced
    return branch(state["driver"]) >= _INDEPENDENT_QUERIES and not board.needs_reset


def lists_variants(state: NodeState) -> bool:
    """Whether GPU instances list second compute-instance profiles of the same size."""
    return branch(state["driver"]) >= _VARIANTS
