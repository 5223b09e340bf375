"""What the state file of the simulated GPUs holds, as JSON."""

from __future__ import annotations

from typing import Any, TypedDict


class ComputeInstanceState(TypedDict):
    """A compute instance; a MIG device is exactly one of these."""

    id: int
    profile: int
    """Compute-instance profile id."""
    start: int
    """In compute slices inside the GPU instance."""
    size: int
    uuid: str
    index: int
    """Of the MIG device: the argument of nvmlDeviceGetMigDeviceHandleByIndex."""
    serial: int
    """Never used twice, so that a handle tells this instance from a later one with the same ids."""


class GpuInstanceState(TypedDict):
    """A GPU instance."""

    id: int
    profile: int
    """GPU-instance profile id."""
    start: int
    """In memory slices."""
    size: int
    serial: int
    compute: list[ComputeInstanceState]


class GpuDeviceState(TypedDict):
    """One GPU."""

    board: int
    """Which of `boards` it is."""
    uuid: str
    bus_id: str
    serial_number: str
    minor: int
    swapped: bool
    """Whether GPU-instance ids follow the layout with the two halves of the memory exchanged."""
    current: int
    """MIG mode, 0 or 1."""
    pending: int
    persistence: int
    epoch: int
    """Grows with each reset; a device handle of an earlier epoch is stale."""
    lost: bool
    refused: list[list[int]]
    """Placements (start, size) on which the GPU refuses to create anything, for no reason that it shows."""
    instances: list[GpuInstanceState]


class ClientState(TypedDict):
    """Something simulated that uses a GPU: a process, or a handle that NVML shows nobody."""

    id: int
    pid: int
    name: str
    gpu: int | None
    """None: it holds every GPU, as an open NVML session does."""
    gi: int | None
    ci: int | None
    kind: str
    """`compute`, `graphics`, or `handle`."""
    memory_mb: int
    cgroup: str


class SessionState(TypedDict):
    """A real process that has NVML open."""

    pid: int
    started: int
    """Clock ticks since boot: a pid alone may have been used again."""


class FaultState(TypedDict):
    """Something that shall go wrong."""

    function: str
    """Name of the C function; `*` for every one that changes something."""
    code: int | None
    """nvmlReturn_t that the call answers; None: the call does its work."""
    nth: int
    """The first call that fails, counted from 1 when the fault was set."""
    times: int | None
    """How many calls in a row; None for all from then on."""
    gpu: int | None
    acts: bool
    """Whether the call does its work before it answers `code`."""
    seconds: float
    """How much longer the call takes."""
    kills: bool
    """Whether the process that called dies, as from a crash in the driver."""
    parent: bool
    """Whether the process that started it dies with it, as when a container is killed."""
    gate: str
    """The lock that the call has to wait for before it does its work; `` for none."""
    seen: int
    """How many calls that count have begun."""


class OptionState(TypedDict):
    """How this node and its driver behave; see node.GpuOptions."""

    enumeration: list[int]
    missing: list[str]
    query_without_mig: bool | None
    holes: str
    passthrough: bool
    resets: str
    reboots: str
    grouped_resets: bool
    drm: bool
    drm_users: int
    permission: str
    mig_uuids: str
    instance_counts: dict[str, int]
    host_files: str


class NodeState(TypedDict):
    """Everything."""

    id: str
    """Of this file; the boards of one id never change."""
    boards: list[dict[str, Any]]
    gpus: list[GpuDeviceState]
    """By PCI bus id."""
    options: OptionState
    driver: str
    """Version of the kernel module."""
    library: str
    """Version of the libnvidia-ml that a process would load now."""
    loaded: bool
    driver_epoch: int
    """Grows when the module is unloaded; a session of an earlier epoch is of no use any more."""
    boot_id: str
    reboots_asked: int
    """How often the reboot command was run."""
    serial: int
    """The last serial number given out."""
    clients: list[ClientState]
    sessions: list[SessionState]
    faults: list[FaultState]
    latencies: dict[str, float]
    logging: bool
