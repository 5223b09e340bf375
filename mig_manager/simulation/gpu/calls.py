"""How a simulated NVML function is written down: its C signature, what it acts on, and its body."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from mig_manager.simulation.gpu.device import Device
from mig_manager.simulation.gpu.state import ComputeInstanceState, GpuInstanceState, NodeState

HANDLE = ctypes.c_void_p
UINT = ctypes.c_uint
UINT_OUT = ctypes.POINTER(ctypes.c_uint)
INT_OUT = ctypes.POINTER(ctypes.c_int)
HANDLE_OUT = ctypes.POINTER(ctypes.c_void_p)
BUFFER = ctypes.c_void_p
"""Memory of the caller as an address; None for NULL."""

Kind = Literal["gpu", "mig", "gi", "ci"]
Target = Literal["", "gpu", "mig", "device", "gi", "ci"]
"""What the first argument must be a handle of; `device`: a GPU or a MIG device."""


class Key(NamedTuple):
    """What a handle stands for."""

    kind: Kind
    gpu: int
    serial: int
    """Of the instance, or the epoch of the GPU: a handle does not outlive what it stands for."""

    def fits(self, target: Target) -> bool:
        """Whether a function that takes `target` takes such a handle."""
        return self.kind == target or (target == "device" and self.kind in ("gpu", "mig"))


@dataclass(slots=True)
class Call:
    """One call while it runs: the state, and what its handle stands for."""

    state: NodeState
    address: Callable[[Key], int]
    """The handle of something."""
    kind: Kind | None = None
    reset: bool = False
    """Whether the call reset the GPU, which takes its time."""
    _device: Device | None = None
    _gi: GpuInstanceState | None = None
    _ci: ComputeInstanceState | None = None

    @property
    def device(self) -> Device:
        """The GPU of the handle, whatever kind it is."""
        assert self._device is not None
        return self._device

    @device.setter
    def device(self, device: Device) -> None:
        self._device = device

    @property
    def gi(self) -> GpuInstanceState:
        """The GPU instance of the handle."""
        assert self._gi is not None
        return self._gi

    @gi.setter
    def gi(self, gi: GpuInstanceState) -> None:
        self._gi = gi

    @property
    def ci(self) -> ComputeInstanceState:
        """The compute instance of the handle."""
        assert self._ci is not None
        return self._ci

    @ci.setter
    def ci(self, ci: ComputeInstanceState) -> None:
        self._ci = ci

    @property
    def mig(self) -> bool:
        """Whether the handle is a MIG device's."""
        return self.kind == "mig"

    def gpu_handle(self, index: int) -> int:
        """The handle of a GPU, by its place in the state."""
        return self.address(Key("gpu", index, self.state["gpus"][index]["epoch"]))

    def gi_handle(self, gi: GpuInstanceState) -> int:
        """The handle of a GPU instance of this GPU."""
        return self.address(Key("gi", self.device.index, gi["serial"]))

    def ci_handle(self, ci: ComputeInstanceState) -> int:
        """The handle of a compute instance of this GPU."""
        return self.address(Key("ci", self.device.index, ci["serial"]))

    def mig_handle(self, index: int, ci: ComputeInstanceState) -> int:
        """The handle of a MIG device."""
        return self.address(Key("mig", index, ci["serial"]))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the C library."""

    name: str
    parameters: tuple[Any, ...]
    """ctypes of all parameters, the handle included."""
    target: Target
    body: Callable[..., None]
    """Called with the Call and the arguments behind the handle; raises device.RefusedError."""
    changes: bool
    """Whether it changes the GPU."""
    needs_permission: str
    """`` for anyone, `config` for managing instances, `mode` for root only."""
    lifecycle: bool = False
    """nvmlInit and nvmlShutdown."""
    pure: Callable[..., int] | None = None
    """Set where the function needs neither a session nor the state."""
    result: Any = ctypes.c_int


Body = TypeVar("Body", bound=Callable[..., None])


class Table:
    """The functions that one module simulates, by name."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}

    def function(
        self, name: str, *parameters: Any, on: Target = "", changes: bool = False, needs: str = ""
    ) -> Callable[[Body], Body]:
        """Enter the body of a C function. `parameters` are those behind the handle."""

        def enter(body: Body) -> Body:
            every = (HANDLE, *parameters) if on else parameters
            self.functions[name] = Function(name, every, on, body, changes, needs)
            return body

        return enter

    def lifecycle(self, name: str, *parameters: Any) -> None:
        """Enter a way to open or close the library."""
        self.functions[name] = Function(name, parameters, "", _nothing, False, "", lifecycle=True)

    def pure(
        self, name: str, *parameters: Any, result: Any
    ) -> Callable[[Callable[..., int]], Callable[..., int]]:
        """Enter a function that works without a session."""

        def enter(body: Callable[..., int]) -> Callable[..., int]:
            self.functions[name] = Function(
                name, parameters, "", _nothing, False, "", pure=body, result=result
            )
            return body

        return enter


def _nothing(call: Call) -> None:
    """The body of a function that the library does by itself."""
