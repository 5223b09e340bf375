"""Resets of GPUs and restarts of the driver, as far as they concern more than one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pynvml import NVML_ERROR_IN_USE, NVML_ERROR_INVALID_STATE, NVML_ERROR_NOT_SUPPORTED

from mig_manager.simulation.gpu.device import Device
from mig_manager.simulation.gpu.state import NodeState

NOBODY = ("a client that nobody can name",)


class ResetRefusedError(Exception):
    """A reset of GPUs, or an unloading of the driver, that did not happen."""

    def __init__(self, code: int, holders: Mapping[int, Sequence[str]]) -> None:
        super().__init__(f"refused with {code}: {dict(holders)}")
        self.code = code
        """nvmlReturn_t: IN_USE, NOT_SUPPORTED, or INVALID_STATE where only all GPUs can be reset together."""
        self.holders = holders
        """By GPU, what keeps it; for INVALID_STATE the GPUs that are missing, with nothing."""


def holders(state: NodeState, indices: Iterable[int]) -> dict[int, list[str]]:
    """What keeps GPUs, by index; those that nothing keeps are left out."""
    found = {index: Device(state, index).holders() for index in indices}
    return {index: names for index, names in found.items() if names}


def reset(state: NodeState, indices: Sequence[int]) -> None:
    """Reset all of these GPUs, or none.

    Raises:
        ResetRefusedError: as the options of the node and the users of the GPUs have it.
    """
    options = state["options"]
    if options["passthrough"] or options["resets"] == "unsupported":
        raise ResetRefusedError(NVML_ERROR_NOT_SUPPORTED, {})
    missing = set(range(len(state["gpus"]))) - set(indices)
    if options["grouped_resets"] and missing:
        raise ResetRefusedError(NVML_ERROR_INVALID_STATE, dict.fromkeys(sorted(missing), ()))
    if options["resets"] == "refused":
        raise ResetRefusedError(NVML_ERROR_IN_USE, dict.fromkeys(indices, NOBODY))
    if held := holders(state, indices):
        raise ResetRefusedError(NVML_ERROR_IN_USE, held)
    for index in indices:
        Device(state, index).reset()


def restart(state: NodeState) -> None:
    """Unload the kernel module from under everybody."""
    for index in range(len(state["gpus"])):
        Device(state, index).restart()
    state["driver_epoch"] += 1
