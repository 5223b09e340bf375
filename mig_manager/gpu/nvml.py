"""NVML: where the library is, calls, and errors in words that tell what to do.

The typed calls on a GPU are in device.py. The library is the `pynvml` module of nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pynvml

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.control import CallRecord, Control

_T = TypeVar("_T")

MUTATING = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlComputeInstanceDestroy",
    }
)
"""The functions that change a GPU."""

# Constants of nvmlReturn_t that decisions are made from, as plain integers for the type checker.
SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
ARGUMENT_VERSION_MISMATCH = 25

NO_SUCH_THING = frozenset(
    {INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH}
)
"""Codes that are answers to a question: this GPU, or this driver, has none of what was asked for."""

_ADVICE = {
    NO_PERMISSION: (
        "Run as root in a privileged container that has /dev/nvidia-caps/nvidia-cap1, the right to configure"
        " MIG (with NVIDIA's runtime: NVIDIA_MIG_CONFIG_DEVICES=all)."
    ),
    DRIVER_NOT_LOADED: "The NVIDIA kernel modules are not loaded: start the driver, or wait until it is up.",
    LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not there: is the NVIDIA driver installed, and its root mounted where"
        " DRIVER_ROOT_CTR_PATH says?"
    ),
    LIB_RM_VERSION_MISMATCH: (
        "The NVML library and the loaded kernel modules are of different driver versions: the driver was"
        " upgraded. Reload the modules or reboot the node."
    ),
    GPU_IS_LOST: "The GPU does not answer on the bus any more: look for Xid 79 in the kernel log; reboot.",
    RESET_REQUIRED: "The GPU must be reset before it can be used again.",
}


@dataclass(frozen=True, slots=True)
class NvmlSource:
    """Where NVML comes from."""

    library: Path | None = None
    """Full path of libnvidia-ml.so.1; None: the dynamic loader finds it."""
    loader: str | None = None
    """`package.module:function`, called with `argument` in place of opening a library."""
    argument: str = ""


class NvmlCallError(MigManagerError):
    """An NVML call failed.

    The reason is GPU_IN_USE for NVML_ERROR_IN_USE and NVML_ERROR otherwise.
    """

    def __init__(self, function: str, code: int, gpu: int | None, message: str) -> None:
        super().__init__(Reason.GPU_IN_USE if code == IN_USE else Reason.NVML_ERROR, message)
        self.function = function
        self.code = code
        self.gpu = gpu

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.function, self.code, self.gpu, self.message))


def call_error(function: str, code: int, gpu: int | None, doing: str = "") -> NvmlCallError:
    """The error for a return code, in words: what was tried and where, what NVML said, what to do."""
    place = "NVML" if gpu is None else f"GPU {gpu}"
    what = f"{doing} failed: " if doing else ""
    advice = f" {_ADVICE[code]}" if code in _ADVICE else ""
    return NvmlCallError(
        function, code, gpu, f"{place}: {what}{function} answered {code_text(code)} ({code}).{advice}"
    )


def is_failure(call: CallRecord) -> bool:
    """Whether a call that came back has failed, rather than answered that there is no such thing."""
    if call.function not in MUTATING and call.code in NO_SUCH_THING:
        return False
    return call.code != SUCCESS


def code_name(code: int) -> str:
    """NVML's name for a return code, such as NVML_ERROR_IN_USE; the number where it has none."""
    names = (name for name, value in vars(pynvml).items() if value == code and name.startswith("NVML_ERROR_"))
    return next(names, str(code))


def code_text(code: int) -> str:
    """NVML's words for a return code."""
    error: Exception = pynvml.NVMLError(code)  # type: ignore[no-untyped-call]
    return str(error)


class Nvml:
    """An open NVML session. `call` is the one place where functions of the binding are called."""

    def __init__(self, control: Control) -> None:
        self.control = control
        """Records the calls; that of the request in hand."""
        self._facts: dict[Hashable, Any] = {}

    def once(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """What `read` gives, asked once in a session: for what cannot change while one is open."""
        if key not in self._facts:
            self._facts[key] = read()
        return cast(_T, self._facts[key])

    def call(self, function: str, *args: object, gpu: int | None = None) -> Any:
        """Call a function of the binding, and record the call.

        Raises:
            NvmlCallError: the function answered anything but success.
            MigManagerError: INTERRUPTED, before a call that would change a GPU.
        """
        if function in MUTATING:
            self.control.check()
        started = self.control.begin(function, gpu)
        code = SUCCESS
        try:
            return getattr(pynvml, function)(*args)
        except pynvml.NVMLError as error:
            code = int(error.value)  # type: ignore[attr-defined]
            raise call_error(function, code, gpu) from None
        finally:
            self.control.end(started, code)

    def has(self, function: str) -> bool:
        """Whether the library exports that C function."""
        return hasattr(pynvml.nvmlLib, function)

    def driver_version(self) -> str:
        """Such as `570.124.06`."""
        return text(self.call("nvmlSystemGetDriverVersion"))


def text(value: str | bytes) -> str:
    """A string of the binding, which older versions of it give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_loaded: NvmlSource | None = None


def load(source: NvmlSource) -> None:
    """Have the binding use the library of that source.

    Raises:
        NvmlCallError: it cannot be loaded.
    """
    global _loaded
    if source == _loaded:
        return
    # What the binding has loaded before must not serve for another source.
    _loaded = None
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    if source.loader is not None:
        module, _, function = source.loader.partition(":")
        load: Callable[[str], None] = getattr(importlib.import_module(module), function)
        load(source.argument)
    elif source.library is not None:
        try:
            pynvml.nvmlLib = ctypes.CDLL(str(source.library))  # type: ignore[assignment]
        except OSError as error:
            raise NvmlCallError(
                "nvmlInit",
                LIBRARY_NOT_FOUND,
                None,
                f"The NVML library {source.library} cannot be loaded: {error}. {_ADVICE[LIBRARY_NOT_FOUND]}",
            ) from None
    _loaded = source
