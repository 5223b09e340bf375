"""NVML at the C boundary: C functions that act on the state file, where pynvml expects libnvidia-ml.so.1."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
from pynvml import (
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_UNKNOWN,
    NVML_SUCCESS,
)

from mig_manager.simulation.gpu import compute_calls, device_calls, mig_calls, monitor_calls, process_calls
from mig_manager.simulation.gpu.calls import Call, Function, Key
from mig_manager.simulation.gpu.device import Device, RefusedError
from mig_manager.simulation.gpu.driver import missing_symbols
from mig_manager.simulation.gpu.faults import Fault, die, strike
from mig_manager.simulation.gpu.gate import pass_through
from mig_manager.simulation.gpu.hostfiles import render
from mig_manager.simulation.gpu.record import CallRecord, append
from mig_manager.simulation.gpu.state import NodeState, SessionState
from mig_manager.simulation.gpu.statefile import StateFile, process_start

_TABLES = (device_calls.TABLE, mig_calls.TABLE, compute_calls.TABLE, process_calls.TABLE, monitor_calls.TABLE)

_PERMITS = {"full": {"", "config", "mode"}, "instances": {"", "config"}, "none": {""}}
"""Kinds of calls that a process may make, by the option `permission`."""


def install(argument: str) -> None:
    """Put the simulation in the place of the library that pynvml would load.

    `argument` is the path of the state file. An object stands in whose attributes are C functions without
    declared argument types, exactly like those of a ctypes.CDLL, so that pynvml's own marshalling, structs,
    struct versions and return codes run.
    """
    library = Library(StateFile(Path(argument), written=render))
    pynvml.nvmlLib = library.symbols()  # type: ignore[assignment]
    pynvml._nvmlLib_refcount = 0
    pynvml._nvmlGetFunctionPointer_cache.clear()


class _Symbol:
    """A C function without declared argument types, as an attribute of a ctypes.CDLL is one.

    The call goes through C and comes back into Python. No exception can pass through C (ctypes would turn it
    into SUCCESS), so one that a signal handler raised on the way surfaces when the function has returned.
    """

    def __init__(self, function: Function, body: Callable[..., int]) -> None:
        self._body = body
        self._raised = threading.local()
        # Kept, because the foreign function must not outlive the Python function behind it.
        self._callback = ctypes.CFUNCTYPE(function.result, *function.parameters)(self._enter)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        self._foreign = ctypes.CFUNCTYPE(ctypes.c_int)(address)

    @property
    def restype(self) -> Any:
        """The ctypes type of what it returns; c_int unless it is set."""
        return self._foreign.restype

    @restype.setter
    def restype(self, kind: Any) -> None:
        self._foreign.restype = kind

    def __call__(self, *arguments: Any) -> Any:
        self._raised.error = None
        answer = self._foreign(*arguments)
        if self._raised.error is not None:
            raise self._raised.error
        return answer

    def _enter(self, *arguments: Any) -> int:
        try:
            return self._body(*arguments)
        except BaseException as error:  # noqa: BLE001
            self._raised.error = error
            return int(NVML_ERROR_UNKNOWN)


class Library:
    """A loaded libnvidia-ml: what it keeps in the memory of one process."""

    def __init__(self, store: StateFile[NodeState]) -> None:
        self._store = store
        self._calls = f"{store.path}.calls"
        self._version = store.read()["library"]
        self._users_lock = threading.Lock()
        self._handles_lock = threading.Lock()
        self._users = 0
        self._initialised_once = False
        self._driver_epoch = 0
        self._handles: dict[int, Key] = {}
        self._addresses: dict[Key, int] = {}
        self._last_address = 0x7F5A00000000

    def symbols(self) -> SimpleNamespace:
        """The exported C functions as attributes. What this driver lacks is missing."""
        missing = missing_symbols(self._store.read())
        found = SimpleNamespace()
        for table in _TABLES:
            for function in table.functions.values():
                if function.name not in missing:
                    setattr(found, function.name, self._export(function))
        return found

    def _export(self, function: Function) -> _Symbol:
        if function.pure is not None:
            return _Symbol(function, function.pure)

        def body(*arguments: Any) -> int:
            return self._logged(function, arguments)

        return _Symbol(function, body)

    def _logged(self, function: Function, arguments: tuple[Any, ...]) -> int:
        state = self._store.read()
        key = self._handles.get(arguments[0] or 0) if function.target else None
        gpu = key.gpu if key else None
        if not state["logging"]:
            return self._run(state, function, key, gpu, arguments)
        began = time.monotonic()
        code = self._run(state, function, key, gpu, arguments)
        append(
            self._calls,
            CallRecord(function.name, gpu, code, function.changes, time.monotonic() - began, os.getpid()),
        )
        return code

    def _run(
        self,
        state: NodeState,
        function: Function,
        key: Key | None,
        gpu: int | None,
        arguments: tuple[Any, ...],
    ) -> int:
        if not function.lifecycle and self._users == 0:
            return int(NVML_ERROR_UNINITIALIZED)
        if function.target and (key is None or not key.fits(function.target)):
            return int(NVML_ERROR_INVALID_ARGUMENT)
        if any(isinstance(argument, ctypes._Pointer) and not argument for argument in arguments):
            return int(NVML_ERROR_INVALID_ARGUMENT)
        if function.needs_permission not in _PERMITS[state["options"]["permission"]]:
            return int(NVML_ERROR_NO_PERMISSION)
        fault = strike(self._store, state, function.name, gpu, function.changes)
        seconds = state["latencies"].get(function.name, 0.0) + fault.seconds
        with self._busy(gpu, seconds, fault):
            die(fault, acted=False)
            if fault.code is not None and not fault.acts:
                return fault.code
            code = self._act(function, key, arguments)
            die(fault, acted=True)
            return code if fault.code is None else fault.code

    @contextmanager
    def _busy(self, gpu: int | None, seconds: float, fault: Fault) -> Iterator[None]:
        """The time a call takes. Calls on one GPU wait for each other, those on different GPUs overlap."""
        if seconds <= 0 and not fault.gate:
            yield
            return
        with nullcontext() if gpu is None else self._store.hold(f"gpu{gpu}"):
            pass_through(self._store, fault)
            time.sleep(seconds)
            yield

    def _act(self, function: Function, key: Key | None, arguments: tuple[Any, ...]) -> int:
        """The call does its work."""
        try:
            if function.lifecycle:
                return self._close() if function.name == "nvmlShutdown" else self._open()
            if function.changes:
                with self._store.change() as state:
                    call = self._call(state, key)
                    function.body(call, *arguments[bool(function.target) :])
            else:
                call = self._call(self._store.read(), key)
                function.body(call, *arguments[bool(function.target) :])
        except RefusedError as refused:
            return refused.code
        if call.reset:
            time.sleep(call.state["latencies"].get("reset", 0.0))
        return int(NVML_SUCCESS)

    def _call(self, state: NodeState, key: Key | None) -> Call:
        """The call with what its handle stands for. A handle of something gone is an invalid argument."""
        if state["driver_epoch"] != self._driver_epoch:
            raise RefusedError(NVML_ERROR_GPU_IS_LOST)
        call = Call(state=state, address=self._address)
        if key is None:
            return call
        call.device = device = Device(state, key.gpu)
        call.kind = key.kind
        if device.gpu["lost"]:
            raise RefusedError(NVML_ERROR_GPU_IS_LOST)
        if key.kind == "gpu":
            if key.serial != device.gpu["epoch"]:
                raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
            return call
        for gi in device.gpu["instances"]:
            if key.kind == "gi" and gi["serial"] == key.serial:
                call.gi = gi
                return call
            for ci in gi["compute"]:
                if key.kind in ("ci", "mig") and ci["serial"] == key.serial:
                    call.gi, call.ci = gi, ci
                    return call
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)

    def _address(self, key: Key) -> int:
        """The handle of something: the same for the same thing, never one that was used before."""
        with self._handles_lock:
            address = self._addresses.get(key)
            if address is None:
                self._last_address += 0x40
                address = self._addresses[key] = self._last_address
                self._handles[address] = key
            return address

    def _open(self) -> int:
        with self._users_lock, self._store.change() as state:
            if not state["loaded"]:
                return int(NVML_ERROR_DRIVER_NOT_LOADED)
            if state["driver"] != self._version:
                return int(NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            if self._users == 0:
                alive = [s for s in state["sessions"] if process_start(s["pid"]) == s["started"]]
                state["sessions"] = [*alive, self._session()]
                self._driver_epoch = state["driver_epoch"]
            self._users += 1
            self._initialised_once = True
            return int(NVML_SUCCESS)

    def _close(self) -> int:
        """More closes than opens are no error (nvmlShutdown); a close without any open is."""
        with self._users_lock:
            if not self._initialised_once:
                return int(NVML_ERROR_UNINITIALIZED)
            if self._users == 1:
                with self._store.change() as state:
                    mine = self._session()
                    if mine in state["sessions"]:
                        state["sessions"].remove(mine)
                with self._handles_lock:
                    self._handles.clear()
                    self._addresses.clear()
            self._users = max(0, self._users - 1)
            return int(NVML_SUCCESS)

    def _session(self) -> SessionState:
        return SessionState(pid=os.getpid(), started=process_start(os.getpid()) or 0)
