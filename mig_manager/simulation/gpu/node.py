"""A node of simulated GPUs as it begins: its options, and the first state."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mig_manager.simulation.gpu.board import Board
from mig_manager.simulation.gpu.state import GpuDeviceState, NodeState, OptionState

if TYPE_CHECKING:
    from mig_manager.planning.catalogue import GpuModel

_NAMES = uuid.UUID("0d4ff7b5-29c5-4ff4-9a9f-2f2b6fb0c9d3")
_BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
"""PCI buses of the eight GPUs of a DGX A100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """How a simulated node and its driver behave. By default bare metal with a current driver."""

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
    holes: Literal["not_supported", "invalid"] = "not_supported"
    """What the driver says to the number of a profile that the GPU lacks, between those that it has."""
    passthrough: bool = False
    """A virtual machine that can't reset its GPUs: a pending mode waits for a reboot."""
    resets: Literal["work", "refused", "unsupported"] = "work"
    reboots: Literal["work", "refused", "ignored", "in vain"] = "work"
    """What becomes of the reboot command: it fails, or ends well without a reboot, or no pending mode outlives it."""
    grouped_resets: bool = False
    """GPUs can only be reset all together (NVLink without a Fabric Manager)."""
    drm: bool = False
    """nvidia_drm holds the GPUs, so that none can be reset."""
    drm_users: int = 0
    """How many use nvidia_drm, such as a display: it cannot be unloaded then."""
    persistence: bool = False
    """Persistence mode is on at boot."""
    permission: Literal["full", "instances", "none"] = "full"
    """What callers may do: all; all but change modes; only read what anybody may."""
    mig_uuids: Literal["derived", "fresh"] = "derived"
    """A MIG UUID depends on GPU and instance ids alone, or is another one each time. Both were reported."""
    instance_counts: Mapping[str, int] = field(default_factory=dict)
    """instanceCount that the profile query gives, where it differs from the truth (seen on A30)."""
    host_files: str = ""
    """A directory in which proc, dev and sys show the GPUs and their users; empty: none is kept."""


def new_state(models: Sequence[GpuModel], options: GpuOptions) -> NodeState:
    """One GPU a model, MIG off, nobody there."""
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
            holes=options.holes,
            passthrough=options.passthrough,
            resets=options.resets,
            reboots=options.reboots,
            grouped_resets=options.grouped_resets,
            drm=options.drm,
            drm_users=options.drm_users,
            permission=options.permission,
            mig_uuids=options.mig_uuids,
            instance_counts=dict(options.instance_counts),
            host_files=options.host_files,
        ),
        driver=options.driver,
        library=options.driver,
        loaded=True,
        driver_epoch=1,
        boot_id=str(uuid.uuid4()),
        reboots_asked=0,
        serial=0,
        clients=[],
        sessions=[],
        faults=[],
        latencies={},
        logging=False,
    )
