"""The values of this room: a layout as written, a GPU as a layout can select it, a target per GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mig_manager.layouts.profile import MigProfile

Devices = Literal["all", "others"] | tuple[int | str, ...]
"""`others`: the GPUs with MIG that no entry without it selects."""

_LABEL_VALUE = re.compile("[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def label_can_hold(name: str) -> bool:
    """Whether a layout of that name can be chosen by the label of a Node."""
    return _LABEL_VALUE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the layout file something stands. `str()` gives `config.yaml:12`."""

    file: str
    line: int
    """1 for the first line; 0 for the file as a whole, and `str()` then gives `config.yaml`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class PciFilter:
    """A PCI device id as NVML packs it (device << 16 | vendor), and a subsystem id where one was given."""

    device_id: int
    """Such as 0x20B210DE."""
    subsystem_id: int | None = None

    def __str__(self) -> str:
        """As a layout file has it: `0x20B210DE`, `0x20B210DE:0x146310DE`."""
        ids = (self.device_id, self.subsystem_id)
        return ":".join(f"0x{number:08X}" for number in ids if number is not None)


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One entry of a layout: which GPUs, and what they shall look like."""

    devices: Devices
    """`all`, `others`, or GPU indices, UUIDs (`GPU-...`) and PCI bus ids (`00000000:07:00.0`)."""
    device_filter: tuple[PciFilter, ...]
    """Empty: every device id passes."""
    gpu_models: tuple[str, ...]
    """Model names as written. Empty: every model passes."""
    mig_enabled: bool
    mig_devices: tuple[tuple[MigProfile, int], ...]
    """Profiles as written with their counts, all greater than 0, larger profiles first."""
    source: Source

    @property
    def named(self) -> tuple[int | str, ...]:
        """The GPUs that it names one by one."""
        return () if isinstance(self.devices, str) else self.devices


@dataclass(frozen=True, slots=True)
class Layout:
    """A named entry of `mig-configs`."""

    name: str
    entries: tuple[LayoutEntry, ...]
    source: Source
    generated: bool = False
    """Whether the layout comes from this node's own hardware, not from a file."""


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What a layout can select a GPU by.

    GPUs are numbered by PCI bus id, from 0, as nvidia-smi does; NVML itself promises no order
    (nvmlDeviceGetHandleByIndex).
    """

    index: int
    uuid: str
    """`GPU-...` (nvmlDeviceGetUUID)."""
    bus_id: str
    """`00000000:07:00.0`, upper case (nvmlDeviceGetPciInfo)."""
    model: str
    """Product name (nvmlDeviceGetName), such as `NVIDIA A100-SXM4-80GB`."""
    device_id: int
    """PCI device and vendor, such as 0x20B210DE."""
    subsystem_id: int
    mig_capable: bool
    """nvmlDeviceGetMigMode answers anything but NOT_SUPPORTED."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What one GPU shall look like."""

    gpu: GpuIdentity
    mig_enabled: bool
    devices: tuple[MigProfile, ...]
    """One MigProfile a MIG device, as the layout names it, larger profiles first; empty with MIG off."""
    source: Source | None
    """The entry that asks for it; None where nobody wrote it."""


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """A layout held against the GPUs of one node."""

    layout: str
    gpus: tuple[GpuTarget, ...]
    """One target a selected GPU, by index."""
    untouched: tuple[int, ...]
    """Indices of the GPUs that no entry selects; nothing is done to them."""
