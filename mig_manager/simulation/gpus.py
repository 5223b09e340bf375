"""The GPUs of a simulated node, as tests, the simulated kubelet and the command line handle them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pynvml import NVML_ERROR_UNKNOWN

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel
from mig_manager.simulation.board import Board
from mig_manager.simulation.device import Device
from mig_manager.simulation.gpustate import ClientState, FaultState, GpuDeviceState, NodeState, OptionState
from mig_manager.simulation.statefile import StateFile, process_start

_NAMES = uuid.UUID("0d4ff7b5-29c5-4ff4-9a9f-2f2b6fb0c9d3")
_BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
"""PCI buses of the eight GPUs of a DGX A100."""


class ResetRefused(Exception):  # noqa: N818
    """A reset or an unload that did not happen. `holders`: GPU index to what keeps it; empty: not supported."""

    def __init__(self, message: str, holders: Mapping[int, Sequence[str]]) -> None:
        super().__init__(message)
        self.holders = holders


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """How a simulated node and its driver behave. The defaults are a bare-metal node with a current driver."""

    driver: str = "580.95.05"
    seed: str = ""
    """Nodes with different seeds have different GPU UUIDs and serial numbers."""
    enumeration: Sequence[int] | None = None
    """NVML's order of the GPUs, as indices by PCI bus id; None: by bus id."""
    minors: Sequence[int] | None = None
    """Minor numbers of /dev/nvidiaN by PCI bus id; None: 0, 1, 2."""
    swapped: Sequence[int] = ()
    """Indices of GPUs that number GPU instances with the halves exchanged."""
    missing: Sequence[str] = ()
    """C functions that the library does not export, besides what its version lacks."""
    query_without_mig: bool | None = None
    """Whether profiles can be read with MIG off; None: as the driver version has it."""
    passthrough: bool = False
    """A virtual machine that can't reset its GPUs: a pending mode waits for a reboot."""
    resets: Literal["work", "refused", "unsupported"] = "work"
    grouped_resets: bool = False
    """GPUs can only be reset all together (NVLink without a Fabric Manager)."""
    drm: bool = False
    """nvidia_drm holds the GPUs, so that none can be reset."""
    persistence: bool = False
    """Persistence mode is on at boot."""
    permission: Literal["full", "instances", "none"] = "full"
    """What callers may do: all; all but change modes; only read what anybody may."""
    mig_uuids: Literal["derived", "fresh"] = "derived"
    """A MIG UUID depends on GPU and instance ids alone, or is another one each time. Both were reported."""
    instance_counts: Mapping[str, int] = field(default_factory=dict)
    """instanceCount that the profile query gives, where it differs from the truth (seen on A30)."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One NVML call."""

    function: str
    gpu: int | None
    """By PCI bus id; None for calls that concern no GPU, or none that exists."""
    code: int
    changes: bool
    """Whether the function is one that changes the GPU."""
    seconds: float
    pid: int


class SimulatedGpus:
    """A handle on the state file. Any number of processes may have one; each change is atomic and visible at once.

    GPUs are numbered by PCI bus id from 0, whatever order NVML shows them in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: StateFile[NodeState] = StateFile(path)
        self._store.read()

    @classmethod
    def create(cls, path: Path, models: Sequence[GpuModel], **options: Any) -> SimulatedGpus:
        """A new node with one GPU a model, MIG off, in the order of their bus ids. `options`: see GpuOptions."""
        StateFile[NodeState](path).write_new(_new_state(models, GpuOptions(**options)))
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
    ) -> int:
        """Let a process use a GPU (index or UUID), a GPU instance, or a MIG device (UUID, or ids).

        `handle` is an open device file that NVML lists nowhere, such as a leaked one. Returns an id for
        remove_process.
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
            return _add_client(state, pid, name, gpu, gi, ci, kind, memory_mb)

    def hold(self, *, pid: int, name: str) -> int:
        """Let a simulated process have NVML open, as a monitor does: no GPU can be reset. Returns an id."""
        with self._store.change() as state:
            return _add_client(state, pid, name, None, None, None, "handle", 0)

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
    ) -> None:
        """Make calls of a C function go wrong, beginning with the nth from now; `*`: all that change something.

        Args:
            function: such as `nvmlComputeInstanceDestroy`; for versioned ones the name that pynvml calls.
            code: what the call answers. 0 with `acts` false: it says that it worked, and did nothing. None: it
                works, but takes `seconds` longer or kills its process.
            nth: 1 for the next call.
            times: how many calls in a row; None for all.
            gpu: only calls on this GPU count.
            acts: whether the call does its work all the same.
            seconds: how much longer it takes; large for a call that hangs.
            kills: whether the calling process dies (before the work, or behind it with `acts`).
        """
        with self._store.change() as state:
            state["faults"].append(
                FaultState(
                    function=function,
                    code=code,
                    nth=nth,
                    times=times,
                    gpu=gpu,
                    acts=acts or code is None,
                    seconds=seconds,
                    kills=kills,
                    seen=0,
                )
            )

    def clear_faults(self) -> None:
        """No more faults."""
        with self._store.change() as state:
            state["faults"] = []

    def refuse_placement(self, gpu: int, start: int, size: int) -> None:
        """Let a GPU answer INSUFFICIENT_RESOURCES for a placement, although its lists and counts offer it."""
        with self._store.change() as state:
            state["gpus"][gpu]["refused"].append([start, size])

    def latency(self, **seconds: float) -> None:
        """How long calls take, by C function; `reset` for a GPU reset, `driver` for a reload of the module."""
        with self._store.change() as state:
            state["latencies"].update(seconds)

    def record_calls(self, on: bool = True) -> None:
        """Begin (with an empty record) or end the record of all calls of all processes."""
        with self._store.change() as state:
            state["logging"] = on
            if on:
                self._calls.unlink(missing_ok=True)

    def calls(self, *, changes: bool | None = None) -> list[CallRecord]:
        """The record, in the order in which the calls ended; `changes` picks those that change something, or not."""
        if not self._calls.exists():
            return []
        lines = self._calls.read_text(encoding="utf-8").splitlines()
        records = [CallRecord(*json.loads(line)) for line in lines]
        return [record for record in records if changes in (None, record.changes)]

    @property
    def _calls(self) -> Path:
        return Path(f"{self.path}.calls")

    # Driver, reset, reboot

    def reset(self, gpus: Sequence[int | str]) -> None:
        """Reset GPUs as nvidia-smi --gpu-reset does, all or none.

        Raises:
            ResetRefused: something holds one of them, or resets do not work here.
        """
        with self._store.change() as state:
            wanted = sorted({self._find(state, gpu) for gpu in gpus})
            options = state["options"]
            if options["passthrough"] or options["resets"] == "unsupported":
                raise ResetRefused("not supported", {})
            if options["grouped_resets"] and len(wanted) < len(state["gpus"]):
                rest = sorted(set(range(len(state["gpus"]))) - set(wanted))
                raise ResetRefused("linked", {index: () for index in rest})
            devices = [Device(state, _boards(state), index) for index in wanted]
            held = {device.index: device.holders() for device in devices}
            if options["resets"] == "refused":
                held = {index: [*names, "a client that nobody can name"] for index, names in held.items()}
            held = {index: names for index, names in held.items() if names}
            if held:
                raise ResetRefused("in use", held)
            for device in devices:
                device.reset()

    def unload_driver(self, *, force: bool = False) -> None:
        """Unload the kernel module; `force`: also from under processes that use it, which then find GPUs lost.

        Raises:
            ResetRefused: somebody uses a GPU.
        """
        with self._store.change() as state:
            held = {i: Device(state, _boards(state), i).holders() for i in range(len(state["gpus"]))}
            held = {i: [name for name in names if name != "nvidia-persistenced"] for i, names in held.items()}
            held = {i: names for i, names in held.items() if names}
            if held and not force:
                raise ResetRefused("in use", held)
            _restart(state)
            state["loaded"] = False

    def load_driver(self, version: str | None = None) -> None:
        """Load the kernel module, of another version if asked; the library on disk becomes the same version."""
        with self._store.change() as state:
            state["loaded"] = True
            state["driver"] = state["library"] = version or state["driver"]

    def restart_driver(self, version: str | None = None, *, force: bool = False) -> None:
        """Unload and load the kernel module."""
        self.unload_driver(force=force)
        self.load_driver(version)

    def replace_library(self, version: str) -> None:
        """Put another libnvidia-ml on disk and leave the kernel module: LIB_RM_VERSION_MISMATCH from nvmlInit."""
        with self._store.change() as state:
            state["library"] = version

    def reboot(self) -> None:
        """Restart the node: every process ends, pending modes hold (Ampere) or all modes are off (later ones)."""
        with self._store.change() as state:
            state["clients"], state["sessions"] = [], []
            _restart(state)
            state["loaded"] = True
            state["driver"] = state["library"]
            state["boot_id"] = str(uuid.uuid4())

    def lose(self, gpu: int) -> None:
        """Let a GPU fall off the bus: every call on it answers GPU_IS_LOST until a reset, reload or reboot."""
        with self._store.change() as state:
            state["gpus"][gpu]["lost"] = True

    def change_options(self, **options: Any) -> None:
        """Change options of a running node by the names in GpuOptions, such as drm=False."""
        with self._store.change() as state:
            unknown = set(options) - set(state["options"])
            if unknown:
                raise TypeError(f"cannot change {', '.join(sorted(unknown))} of a running node")
            state["options"].update(options)  # type: ignore[typeddict-item]

    # What there is

    @property
    def boot_id(self) -> str:
        """Another one after each reboot."""
        return self._store.read()["boot_id"]

    def snapshot(self) -> dict[str, Any]:
        """Everything that pictures and the kubelet need, as plain data.

        {"driver", "loaded", "gpus": [{"index", "uuid", "bus_id", "minor", "model", "mig_capable", "memory_mb",
        "memory_slices", "mig": {"current", "pending"}, "lost", "instances": [{"id", "profile", "start", "size",
        "memory_mb", "compute": [{"id", "profile", "start", "size", "uuid", "index", "busy"}]}]}]}

        A compute instance's `profile` is the name of its MIG device, such as 1c.3g.40gb.
        """
        state = self._store.read()
        return {
            "driver": state["driver"],
            "loaded": state["loaded"],
            "gpus": [_picture(Device(state, _boards(state), i)) for i in range(len(state["gpus"]))],
        }

    @staticmethod
    def _find(state: NodeState, device: int | str) -> int:
        for index, gpu in enumerate(state["gpus"]):
            uuids = [ci["uuid"] for gi in gpu["instances"] for ci in gi["compute"]]
            if device in (index, gpu["uuid"], gpu["bus_id"], *uuids):
                return index
        raise KeyError(device)


def _boards(state: NodeState) -> list[Board]:
    return [Board.decode(row) for row in state["boards"]]


def _add_client(
    state: NodeState,
    pid: int,
    name: str,
    gpu: int | None,
    gi: int | None,
    ci: int | None,
    kind: str,
    memory_mb: int,
) -> int:
    state["serial"] += 1
    state["clients"].append(
        ClientState(
            id=state["serial"], pid=pid, name=name, gpu=gpu, gi=gi, ci=ci, kind=kind, memory_mb=memory_mb
        )
    )
    return state["serial"]


def _restart(state: NodeState) -> None:
    boards = _boards(state)
    for index in range(len(state["gpus"])):
        Device(state, boards, index).restart()
    state["driver_epoch"] += 1


def _picture(device: Device) -> dict[str, Any]:
    gpu, board = device.gpu, device.board
    users = {(client["gi"], client["ci"]) for client in device.clients()}
    instances = []
    for gi in gpu["instances"]:
        profile = device.profile(gi["profile"])
        compute = [
            {
                "id": ci["id"],
                "profile": _device_name(device, profile.name, gi["profile"], ci["profile"]),
                "start": ci["start"],
                "size": ci["size"],
                "uuid": ci["uuid"],
                "index": ci["index"],
                "busy": (gi["id"], ci["id"]) in users or (gi["id"], None) in users,
            }
            for ci in gi["compute"]
        ]
        instances.append(
            {
                "id": gi["id"],
                "profile": str(profile.name),
                "start": gi["start"],
                "size": gi["size"],
                "memory_mb": profile.memory_mb,
                "compute": compute,
            }
        )
    return {
        "index": device.index,
        "uuid": gpu["uuid"],
        "bus_id": gpu["bus_id"],
        "minor": gpu["minor"],
        "model": board.name,
        "mig_capable": bool(board.profiles),
        "memory_mb": board.memory_mb,
        "memory_slices": board.geometry.memory_slices if board.geometry else 0,
        "mig": {"current": bool(gpu["current"]), "pending": bool(gpu["pending"])},
        "lost": gpu["lost"],
        "instances": instances,
    }


def _device_name(device: Device, name: MigProfile, gi_profile: int, ci_profile: int) -> str:
    profile = device.profile(gi_profile)
    for offer in device.board.offers(profile, variants=True):
        if offer.profile.profile_id == ci_profile:
            return str(name.split(offer.profile.slices))
    return str(name)


def _new_state(models: Sequence[GpuModel], options: GpuOptions) -> NodeState:
    boards: list[Board] = []
    gpus: list[GpuDeviceState] = []
    for index, model in enumerate(models):
        board = Board(
            name=model.names[0],
            device_id=model.device_ids[0],
            subsystem_id=model.subsystem_ids[0] if model.subsystem_ids else 0x000010DE,
            architecture=model.architecture,
            memory_mb=model.memory_mb,
            needs_reset=model.mode_change_needs_reset,
            geometry=model.geometry,
        )
        if board not in boards:
            boards.append(board)
        bus = _BUSES[index] if index < len(_BUSES) else 0xC0 + index - len(_BUSES)
        name = uuid.uuid5(_NAMES, f"{options.seed}/{index}/{board.name}")
        gpus.append(
            GpuDeviceState(
                board=boards.index(board),
                uuid=f"GPU-{name}",
                bus_id=f"00000000:{bus:02X}:00.0",
                serial_number=str(name.int % 10**13).zfill(13),
                minor=options.minors[index] if options.minors else index,
                swapped=index in options.swapped,
                current=0,
                pending=0,
                persistence=int(options.persistence),
                epoch=0,
                lost=False,
                refused=[],
                instances=[],
            )
        )
    order = list(range(len(gpus))) if options.enumeration is None else list(options.enumeration)
    if sorted(order) != list(range(len(gpus))):
        raise ValueError(f"enumeration {order} does not name each of {len(gpus)} GPUs once")
    return NodeState(
        id=str(uuid.uuid4()),
        boards=[board.encode() for board in boards],
        gpus=gpus,
        options=OptionState(
            enumeration=order,
            missing=list(options.missing),
            query_without_mig=options.query_without_mig,
            passthrough=options.passthrough,
            resets=options.resets,
            grouped_resets=options.grouped_resets,
            drm=options.drm,
            permission=options.permission,
            mig_uuids=options.mig_uuids,
            instance_counts=dict(options.instance_counts),
        ),
        driver=options.driver,
        library=options.driver,
        loaded=True,
        driver_epoch=1,
        boot_id=str(uuid.uuid4()),
        serial=0,
        clients=[],
        sessions=[],
        faults=[],
        latencies={},
        logging=False,
    )
