"""Calls that begin and do not come back until they are let: what happens meanwhile needs no race against a clock."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from mig_manager.simulation.gpu.faults import Fault, new_fault
from mig_manager.simulation.gpu.state import NodeState
from mig_manager.simulation.gpu.statefile import StateFile

_POLL_S = 0.005


class Gate:
    """Closed from the start; `open`, the end of a `with` block, or the end of this process opens it for good."""

    def __init__(
        self, store: StateFile[NodeState], function: str, *, nth: int, times: int | None, gpu: int | None
    ) -> None:
        """Which calls have to wait: as SimulatedGpus.fail has it."""
        self._store = store
        with store.change() as state:
            state["serial"] += 1
            self._name = f"gate{state['serial']}"
            self._path = Path(f"{store.path}.{self._name}")
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            fault = new_fault(function, None, nth=nth, times=times, gpu=gpu, gate=self._name)
            state["faults"].append(fault)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    @property
    def reached(self) -> bool:
        """Whether a call stands before it. For a gate that has not been opened."""
        mine = (fault for fault in self._store.read()["faults"] if fault["gate"] == self._name)
        return any(fault["seen"] >= fault["nth"] for fault in mine)

    def wait(self, timeout_s: float = 60) -> None:
        """Come back when a call stands before it. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while not self.reached:
            if time.monotonic() > end:
                raise TimeoutError(f"no call has come to {self._name}")
            time.sleep(_POLL_S)

    def open(self) -> None:
        """Let the calls do their work; nothing when it has been opened already."""
        if self._lock < 0:
            return
        with self._store.change() as state:
            state["faults"] = [fault for fault in state["faults"] if fault["gate"] != self._name]
        self._path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1


def pass_through(store: StateFile[NodeState], fault: Fault) -> None:
    """Wait until the gate that a call has come to is open."""
    if fault.gate:
        with store.hold(fault.gate):
            pass
