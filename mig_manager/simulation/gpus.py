"""The GPUs of a simulated node, as tests, the simulated kubelet and the command line handle them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pynvml import NVML_ERROR_IN_USE, NVML_ERROR_UNKNOWN, NVML_SUCCESS

from mig_manager.simulation.gpu.device import Device
from mig_manager.simulation.gpu.faults import die, new_fault, strike
from mig_manager.simulation.gpu.gate import Gate, pass_through
from mig_manager.simulation.gpu.hostfiles import render
from mig_manager.simulation.gpu.node import GpuOptions, new_state
from mig_manager.simulation.gpu.picture import picture
from mig_manager.simulation.gpu.record import CallRecord, append, read
from mig_manager.simulation.gpu.resets import NOBODY, ResetRefusedError, holders, reset, restart
from mig_manager.simulation.gpu.state import ClientState, NodeState
from mig_manager.simulation.gpu.statefile import StateFile, process_start

if TYPE_CHECKING:
    from mig_manager.planning.catalogue import GpuModel

__all__ = ["ResetRefusedError", "SimulatedGpus"]


class SimulatedGpus:
    """A handle on the state file. Many processes may have one; each change is atomic and visible at once.

    GPUs are numbered by PCI bus id from 0, whatever order NVML shows them in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: StateFile[NodeState] = StateFile(path, written=render)
        self._store.read()

    @classmethod
    def create(cls, path: Path, models: Sequence[GpuModel], **options: Any) -> SimulatedGpus:
        """A new node: one GPU a model in the order of the bus ids, MIG off. `options`: see GpuOptions."""
        StateFile[NodeState](path, written=render).write_new(new_state(models, GpuOptions(**options)))
        Path(f"{path}.calls").unlink(missing_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> SimulatedGpus:
        """An existing one. Raises FileNotFoundError."""
        return cls(path)

    # Users of the GPUs

    def add_process(
        self,
        device: int | str,
        gi: int | None = None,
        ci: int | None = None,
        *,
        pid: int,
        name: str,
        kind: Literal["compute", "graphics", "mps", "handle"] = "compute",
        memory_mb: int = 256,
        cgroup: str = "",
    ) -> int:
        """Let a process use a GPU (index or UUID), a GPU instance, or a MIG device (UUID, or ids).

        `handle` is an open device file that NVML lists nowhere, such as a leaked one; `cgroup`: the path in
        /proc/PID/cgroup. Returns an id for remove_process.
        """
        with self._store.change() as state:
            gpu = self._find(state, device)
            if isinstance(device, str) and device.startswith("MIG-"):
                gi, ci = next(
                    (i["id"], c["id"])
                    for i in state["gpus"][gpu]["instances"]
                    for c in i["compute"]
                    if c["uuid"] == device
                )
            return _add_client(state, pid, name, gpu, gi, ci, kind, memory_mb, cgroup)

    def hold(self, *, pid: int, name: str, cgroup: str = "") -> int:
        """Let a simulated process have NVML open, as a monitor does: no GPU can be reset. Returns an id."""
        with self._store.change() as state:
            return _add_client(state, pid, name, None, None, None, "handle", 0, cgroup)

    def remove_process(self, client: int) -> None:
        """End what add_process or hold began; nothing when it has ended already."""
        with self._store.change() as state:
            state["clients"] = [known for known in state["clients"] if known["id"] != client]

    def processes(self) -> list[ClientState]:
        """All of them."""
        return list(self._store.read()["clients"])

    def sessions(self) -> list[int]:
        """Pids of the real processes that have NVML open."""
        state = self._store.read()
        return [s["pid"] for s in state["sessions"] if process_start(s["pid"]) == s["started"]]

    # Faults, latencies, records

    def fail(
        self,
        function: str,
        code: int | None = NVML_ERROR_UNKNOWN,
        *,
        nth: int = 1,
        times: int | None = 1,
        gpu: int | None = None,
        acts: bool = False,
        seconds: float = 0.0,
        kills: bool = False,
        parent: bool = False,
    ) -> None:
        """Make calls of a C function go wrong; `*`: of all that change something.

        Args:
            function: such as `nvmlComputeInstanceDestroy`; for versioned ones the name that pynvml calls;
                `reset` for GPU resets.
            code: what the call answers. 0 without `acts`: it says that it worked, and did nothing. None: it
                works, but takes `seconds` longer or kills its process.
            nth: 1 for the next call.
            times: how many calls in a row; None for all.
            gpu: only calls on this GPU count.
            acts: whether the call does its work all the same.
            seconds: how much longer it takes; large for a call that hangs.
            kills: whether the calling process dies (before the work, or behind it with `acts`).
            parent: whether the process that started it dies with it.
        """
        with self._store.change() as state:
            state["faults"].append(
                new_fault(
                    function,
                    code,
                    nth=nth,
                    times=times,
                    gpu=gpu,
                    acts=acts,
                    seconds=seconds,
                    kills=kills,
                    parent=parent,
                )
            )

    def hold_calls(
        self, function: str, *, nth: int = 1, times: int | None = None, gpu: int | None = None
    ) -> Gate:
        """Let calls of a C function begin and wait before they do their work, until the gate is opened; see `fail`."""
        return Gate(self._store, function, nth=nth, times=times, gpu=gpu)

    def clear_faults(self) -> None:
        """No more faults."""
        with self._store.change() as state:
            state["faults"] = []

    def refuse_placement(self, gpu: int, start: int, size: int) -> None:
        """Let a GPU answer INSUFFICIENT_RESOURCES for a placement, although its lists and counts offer it."""
        with self._store.change() as state:
            state["gpus"][gpu]["refused"].append([start, size])

    def latency(self, **seconds: float) -> None:
        """How long calls take, by C function; `reset` for a reset, also within nvmlDeviceSetMigMode."""
        with self._store.change() as state:
            state["latencies"].update(seconds)

    def record_calls(self, on: bool = True) -> None:
        """Begin (with an empty record) or end the record of all calls of all processes."""
        with self._store.change() as state:
            state["logging"] = on
            if on:
                self._calls.unlink(missing_ok=True)

    def calls(self, *, changes: bool | None = None) -> list[CallRecord]:
        """The record, in the order in which the calls ended; `changes` picks those that change, or not."""
        return [call for call in read(self._calls) if changes in (None, call.changes)]

    @property
    def _calls(self) -> Path:
        return Path(f"{self.path}.calls")

    # Driver, reset, reboot

    def reset(self, gpus: Sequence[int | str]) -> None:
        """Reset GPUs as nvidia-smi --gpu-reset does, all or none; takes the latency of `reset`.

        Raises:
            ResetRefusedError: something holds one of them, or resets do not work here.
            KeyError: no such GPU.
        """
        began = time.monotonic()
        with self._store.change() as state:
            wanted = sorted({self._find(state, gpu) for gpu in gpus})
        faults = {gpu: strike(self._store, state, "reset", gpu, True) for gpu in wanted}
        code = next((fault.code for fault in faults.values() if fault.code), NVML_SUCCESS)
        try:
            for fault in faults.values():
                pass_through(self._store, fault)
                die(fault, acted=False)
            if all(fault.acts or fault.code is None for fault in faults.values()):
                with self._store.change() as state:
                    reset(state, wanted)
            for fault in faults.values():
                die(fault, acted=True)
            time.sleep(state["latencies"].get("reset", 0.0) + sum(f.seconds for f in faults.values()))
            if code:
                raise ResetRefusedError(code, dict.fromkeys(wanted, NOBODY))
        except ResetRefusedError as refused:
            code = refused.code
            raise
        finally:
            if state["logging"]:
                for gpu in wanted:
                    seconds = time.monotonic() - began
                    append(str(self._calls), CallRecord("reset", gpu, code, True, seconds, os.getpid()))

    def unload_driver(self, *, force: bool = False) -> None:
        """Unload the kernel module; `force`: also from under its users, who then find the GPUs lost.

        Raises:
            ResetRefusedError: somebody uses a GPU, or persistence mode is on.
        """
        with self._store.change() as state:
            held = holders(state, range(len(state["gpus"])))
            if held and not force:
                raise ResetRefusedError(NVML_ERROR_IN_USE, held)
            restart(state)
            state["loaded"] = False

    def load_driver(self, version: str | None = None) -> None:
        """Load the kernel module that goes with the library on disk, or both of another version."""
        with self._store.change() as state:
            state["loaded"] = True
            state["driver"] = state["library"] = version or state["library"]

    def restart_driver(self, version: str | None = None, *, force: bool = False) -> None:
        """Unload and load the kernel module."""
        self.unload_driver(force=force)
        self.load_driver(version)

    def replace_library(self, version: str) -> None:
        """Put another libnvidia-ml on disk: nvmlInit answers LIB_RM_VERSION_MISMATCH until a reload."""
        with self._store.change() as state:
            state["library"] = version

    def reboot(self) -> None:
        """Restart the node: processes end, pending modes hold (Ampere), later GPUs have MIG off."""
        with self._store.change() as state:
            if state["options"]["reboots"] == "in vain":
                for gpu in state["gpus"]:
                    gpu["pending"] = gpu["current"]
            state["clients"], state["sessions"] = [], []
            restart(state)
            state["loaded"] = True
            state["driver"] = state["library"]
            state["boot_id"] = str(uuid.uuid4())

    def ask_for_reboot(self) -> str:
        """Note that the reboot command was run; gives what becomes of it, by the names in GpuOptions."""
        with self._store.change() as state:
            state["reboots_asked"] += 1
        return state["options"]["reboots"]

    @property
    def reboots_asked(self) -> int:
        """How often that was."""
        return self._store.read()["reboots_asked"]

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus: calls on it answer GPU_IS_LOST until a reset, reload or reboot."""
        with self._store.change() as state:
            state["gpus"][gpu]["lost"] = True

    def change_options(self, **options: Any) -> None:
        """Change options of a running node by the names in GpuOptions, such as drm=False."""
        with self._store.change() as state:
            unknown = set(options) - set(state["options"])
            if unknown:
                raise TypeError(f"cannot change {', '.join(sorted(unknown))} of a running node")
            state["options"].update(options)  # type: ignore[typeddict-item]

    def option(self, name: str) -> object:
        """An option of the node as it is now, by its name in GpuOptions."""
        return dict(self._store.read()["options"])[name]

    # What there is

    @property
    def boot_id(self) -> str:
        """Another one after each reboot."""
        return self._store.read()["boot_id"]

    def snapshot(self) -> dict[str, Any]:
        """Everything that pictures and the kubelet need, as plain data.

        {"driver", "loaded", "gpus": [{"index", "uuid", "bus_id", "minor", "model", "mig_capable",
        "memory_mb", "memory_slices", "mig": {"current", "pending"}, "persistence", "lost", "instances":
        [{"id", "profile", "start", "size", "memory_mb", "compute": [{"id", "profile", "start", "size",
        "uuid", "index", "busy"}]}]}]}

        A compute instance's `profile` is the name of its MIG device, such as 1c.3g.40gb.
        """
        state = self._store.read()
        return {
            "driver": state["driver"],
            "loaded": state["loaded"],
            "gpus": [picture(Device(state, i)) for i in range(len(state["gpus"]))],
        }

    @staticmethod
    def _find(state: NodeState, device: int | str) -> int:
        for index, gpu in enumerate(state["gpus"]):
            uuids = [ci["uuid"] for gi in gpu["instances"] for ci in gi["compute"]]
            if device in (index, gpu["uuid"], gpu["bus_id"], *uuids):
                return index
        raise KeyError(device)


def _add_client(
    state: NodeState,
    pid: int,
    name: str,
    gpu: int | None,
    gi: int | None,
    ci: int | None,
    kind: str,
    memory_mb: int,
    cgroup: str,
) -> int:
    state["serial"] += 1
    state["clients"].append(
        ClientState(
            id=state["serial"],
            pid=pid,
            name=name,
            gpu=gpu,
            gi=gi,
            ci=ci,
            kind=kind,
            memory_mb=memory_mb,
            cgroup=cgroup,
        )
    )
    return state["serial"]
