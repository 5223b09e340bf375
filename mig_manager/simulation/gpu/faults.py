"""What shall go wrong: which fault strikes a call."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from mig_manager.simulation.gpu.state import FaultState, NodeState
from mig_manager.simulation.gpu.statefile import StateFile

EVERY_CHANGE = "*"
"""Instead of a function: all that change something."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call; see FaultState."""

    code: int | None = None
    acts: bool = True
    seconds: float = 0.0
    kills: bool = False
    parent: bool = False
    gate: str = ""


NO_FAULT = Fault()


def new_fault(
    function: str,
    code: int | None,
    *,
    nth: int,
    times: int | None,
    gpu: int | None,
    acts: bool = False,
    seconds: float = 0.0,
    kills: bool = False,
    parent: bool = False,
    gate: str = "",
) -> FaultState:
    """A fault that no call has come to yet."""
    return FaultState(
        function=function,
        code=code,
        nth=nth,
        times=times,
        gpu=gpu,
        acts=acts,
        seconds=seconds,
        kills=kills,
        parent=parent,
        gate=gate,
        seen=0,
    )


def strike(
    store: StateFile[NodeState], state: NodeState, function: str, gpu: int | None, changes: bool
) -> Fault:
    """The fault that strikes this call; counts the call for every fault that listens."""
    if not any(_listens(fault, function, gpu, changes) for fault in state["faults"]):
        return NO_FAULT
    struck = NO_FAULT
    with store.change() as fresh:
        for fault in fresh["faults"]:
            if not _listens(fault, function, gpu, changes):
                continue
            fault["seen"] += 1
            after = fault["seen"] - fault["nth"]
            due = after >= 0 and (fault["times"] is None or after < fault["times"])
            if due and struck is NO_FAULT:
                kills, parent, gate = fault["kills"], fault["parent"], fault["gate"]
                struck = Fault(fault["code"], fault["acts"], fault["seconds"], kills, parent, gate)
    return struck


def die(fault: Fault, *, acted: bool) -> None:
    """End this process if the fault kills at this point: before the call has acted, or after it."""
    if not fault.kills or fault.acts is not acted:
        return
    if fault.parent:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _listens(fault: FaultState, function: str, gpu: int | None, changes: bool) -> bool:
    wanted = fault["function"]
    return (wanted == function or (wanted == EVERY_CHANGE and changes)) and fault["gpu"] in (gpu, None)
