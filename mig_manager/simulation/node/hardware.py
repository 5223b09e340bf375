"""The simulated GPUs as what runs on the node sees them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, find_model
from mig_manager.planning.geometry import Engines
from mig_manager.simulation.gpus import SimulatedGpus

_FIRST_PID = 5_000_000
"""Above what Linux gives out, so that a simulated process is never taken for one of this machine."""


class UnknownDeviceError(Exception):
    """A container shall start on a device that is not there; in the words of the container toolkit."""


class DriverError(Exception):
    """The driver is not loaded."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device."""

    uuid: str
    profile: MigProfile
    """As the driver names it."""
    memory_slices: range
    """Of its GPU."""
    memory_mb: int
    multiprocessors: int
    engines: Engines

    @property
    def attributes(self) -> tuple[MigProfile, int, int, Engines]:
        """What must be equal for two devices to be of one type."""
        return self.profile, self.memory_mb, self.multiprocessors, self.engines


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU."""

    index: int
    uuid: str
    model: GpuModel
    mig_enabled: bool
    devices: tuple[MigDevice, ...]
    """By GPU instance, then compute instance. A GPU instance without one shows nothing here."""


class Hardware:
    """Reads the GPUs, and keeps them busy with the processes of simulated containers."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus
        self._pids = count(_FIRST_PID)

    @property
    def boot_id(self) -> str:
        """Another one after each reboot."""
        return self._gpus.boot_id

    @property
    def driver_version(self) -> str:
        """Such as `580.95.05`."""
        return str(self._gpus.snapshot()["driver"])

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as NVML shows them now.

        Raises:
            DriverError: the kernel module is not loaded.
        """
        state = self._gpus.snapshot()
        if not state["loaded"]:
            raise DriverError("failed to initialize NVML: ERROR_DRIVER_NOT_LOADED")
        return tuple(
            Gpu(
                index=gpu["index"],
                uuid=gpu["uuid"],
                model=(model := find_model(gpu["model"])),
                mig_enabled=gpu["mig"]["current"],
                devices=tuple(_devices(model, gpu["instances"])),
            )
            for gpu in state["gpus"]
        )

    def open(self, devices: Sequence[str], name: str, pod_uid: str) -> tuple[int, ...]:
        """Run a process of a pod on each of these GPUs and MIG devices, or replicas of them; what `close` takes.

        Raises:
            UnknownDeviceError: one of them is not there; nothing runs then.
        """
        pid, cgroup = next(self._pids), _cgroup(pod_uid)
        opened: list[int] = []
        for device in devices:
            try:
                one = device.partition("::")[0]
                opened.append(self._gpus.add_process(one, pid=pid, name=name, cgroup=cgroup))
            except KeyError as error:
                self.close(opened)
                raise UnknownDeviceError(
                    "failed to create shim task: OCI runtime create failed: nvidia-container-cli: "
                    f"device error: {device}: unknown device"
                ) from error
        return tuple(opened)

    def hold(self, name: str, pod_uid: str) -> int:
        """Keep NVML open as a process of that name in a pod; what `close` takes."""
        return self._gpus.hold(pid=next(self._pids), name=name, cgroup=_cgroup(pod_uid))

    def close(self, opened: Iterable[int]) -> None:
        """End what `open` or `hold` began."""
        for each in opened:
            self._gpus.remove_process(each)


def _cgroup(pod_uid: str) -> str:
    """Where the kubelet puts a container, with the systemd driver and containerd; a new container each time."""
    unit = f"kubepods-burstable-pod{pod_uid.replace('-', '_')}.slice"
    return f"/kubepods.slice/kubepods-burstable.slice/{unit}/cri-containerd-{secrets.token_hex(32)}.scope"


def _devices(model: GpuModel, instances: Sequence[dict[str, Any]]) -> Iterable[MigDevice]:
    profiles = {} if model.geometry is None else {each.name: each for each in model.geometry.profiles}
    for instance in instances:
        profile = profiles[MigProfile.parse(instance["profile"])]
        whole = profile.multiprocessors or 0
        for compute in instance["compute"]:
            device = MigProfile.parse(compute["profile"])
            yield MigDevice(
                uuid=compute["uuid"],
                profile=device,
                memory_slices=range(instance["start"], instance["start"] + instance["size"]),
                memory_mb=instance["memory_mb"],
                multiprocessors=whole * device.compute_slices // device.gpu_slices,
                engines=profile.engines,
            )
