"""Who holds what is about to change: processes, with their pods.

Sources are NVML and the open files of all processes: NVML does not show a client that only keeps a handle, as
monitors do. For an instance only its own capability nodes count, for a job on an instance that stays has the
GPU's node open as well; that one counts where the whole GPU changes. /dev/nvidiactl and /dev/nvidia-uvm never.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.cgroups import Owner
from mig_manager.gpu.procfs import HostFiles, majors, open_nodes, ourselves, pids, read_process
from mig_manager.gpu.readings import GpuUsage, Process
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import GpuInstance

PERSISTENCE_DAEMON = "nvidia-persistenced"

_NVIDIA_MAJOR = 195
"""Assigned for good in the kernel's list of devices."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Stake:
    """Something that changes, so that nobody may hold it."""

    gpu: GpuIdentity
    instance: GpuInstance | None = None
    """None: the whole GPU, because its mode changes or it is reset."""
    compute: frozenset[int] | None = None
    """The compute instances that go; None: the GPU instance goes with all of them."""
    reset: bool = False
    """Whether the GPU is reset."""

    def __str__(self) -> str:
        if self.instance is None:
            return f"GPU {self.gpu.index}"
        where = f"{self.instance.profile} at {self.instance.placement.start} on GPU {self.gpu.index}"
        if self.compute is None:
            return where
        return f"compute instance {', '.join(map(str, sorted(self.compute)))} of {where}"

    @property
    def uuids(self) -> frozenset[str]:
        """UUIDs of the MIG devices that go."""
        going = () if self.instance is None else self.instance.compute
        return frozenset(
            each.uuid
            for each in going
            if each.uuid is not None and (self.compute is None or each.id in self.compute)
        )

    def used_by(self, process: Process) -> bool:
        """Whether a process that NVML shows on this GPU uses it."""
        if self.instance is None:
            return True
        if process.gpu_instance != self.instance.id:
            return False
        # A process without a compute instance holds the GPU instance as a whole.
        return self.compute is None or process.compute_instance in (None, *self.compute)

    def capabilities(self) -> Iterator[str]:
        """Names of its capabilities in mig-minors, behind the GPU's."""
        if self.instance is None:
            return
        if self.compute is None:
            yield f"gi{self.instance.id}/access"
        going = [each.id for each in self.instance.compute if self.compute is None or each.id in self.compute]
        yield from (f"gi{self.instance.id}/ci{each}/access" for each in going)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds something that is about to change."""

    pid: int
    program: str
    """File name of what it runs; empty where it cannot be seen."""
    command: str
    started: datetime | None
    """None where it cannot be seen, for it belongs to another pid namespace."""
    owner: Owner
    holds: tuple[Stake, ...]

    @property
    def uuids(self) -> frozenset[str]:
        """UUIDs of the MIG devices that it may be using."""
        return frozenset(uuid for stake in self.holds for uuid in stake.uuids)

    def __str__(self) -> str:
        where = ""
        if self.owner.pod_uid is not None:
            where = f", pod {self.owner.pod or self.owner.pod_uid}"
        elif self.owner.container is not None:
            where = f", container {self.owner.container[:12]}"
        elif self.owner.service is not None:
            where = f", {self.owner.service}"
        what = self.command or "a process that /proc does not show"
        return f"pid {self.pid} ({what}{where}) holds {' and '.join(map(str, self.holds))}"


def at_stake(plan: NodePlan) -> tuple[Stake, ...]:
    """Everything that a plan changes, and that somebody may hold."""
    found: list[Stake] = []
    for gpu in plan.gpus:
        if gpu.mig.switches:
            found.append(Stake(gpu.gpu, reset=gpu.mig.reset))
            continue
        found += [Stake(gpu.gpu, gone) for gone in gpu.destroy]
        for kept in gpu.keep:
            if kept.destroy:
                going = frozenset(each.id for each in kept.destroy if each.id is not None)
                found.append(Stake(gpu.gpu, kept.instance, going))
    return tuple(found)


def find_holders(
    stakes: Sequence[Stake], usage: Iterable[GpuUsage], files: HostFiles, *, ignored: Collection[str] = ()
) -> tuple[Holder, ...]:
    """Who holds any of these, by pid. We ourselves and the processes that we started never do.

    Args:
        stakes: what changes.
        usage: of all GPUs, read just now.
        files: where to look for processes.
        ignored: programs that keep a whole GPU open without being in the way of its change.
    """
    if not stakes:
        return ()
    by_uuid = {each.gpu.uuid: each for each in usage}
    held: dict[int, dict[Stake, None]] = {}
    names: dict[int, str] = {}
    for stake in stakes:
        used = by_uuid.get(stake.gpu.uuid)
        for process in used.processes if used is not None else ():
            if stake.used_by(process):
                held.setdefault(process.pid, {})[stake] = None
                names[process.pid] = process.name
    nodes = _Nodes(stakes, by_uuid, files)
    for pid in pids(files.proc):
        for node in open_nodes(files.proc, pid, nodes.numbers, nodes.paths):
            held.setdefault(pid, {})[nodes.stake(node)] = None
    for pid in ourselves(files.proc):
        held.pop(pid, None)
    holders = (_holder(files, pid, tuple(held[pid]), names.get(pid)) for pid in sorted(held))
    return tuple(each for each in holders if each is not None and not _in_nobodys_way(each, by_uuid, ignored))


class _Nodes:
    """The device nodes of what is at stake, by number and by path."""

    def __init__(self, stakes: Sequence[Stake], usage: dict[str, GpuUsage], files: HostFiles) -> None:
        self.numbers: dict[int, Stake] = {}
        self.paths: dict[str, Stake] = {}
        self._dev = files.dev
        major = majors(files.proc)
        gpus = major.get("nvidia-frontend", major.get("nvidia", _NVIDIA_MAJOR))
        capabilities = major.get("nvidia-caps")
        minors = _capability_minors(files)
        for stake in stakes:
            used = usage.get(stake.gpu.uuid)
            if used is None or used.minor is None:
                continue
            if stake.instance is None:
                self._add(f"nvidia{used.minor}", gpus, used.minor, stake)
                for name, number in _display_nodes(files, stake.gpu.bus_id):
                    self._add(f"dri/{name}", os.major(number), os.minor(number), stake)
            for name in stake.capabilities():
                minor = minors.get(f"gpu{used.minor}/{name}")
                if minor is not None:
                    self._add(f"nvidia-caps/nvidia-cap{minor}", capabilities, minor, stake)

    def _add(self, name: str, major: int | None, minor: int, stake: Stake) -> None:
        if major is not None:
            self.numbers[os.makedev(major, minor)] = stake
        self.paths[f"/dev/{name}"] = self.paths[f"{self._dev}/{name}"] = stake

    def stake(self, node: int | str) -> Stake:
        """What a node found open belongs to."""
        return self.numbers[node] if isinstance(node, int) else self.paths[node]


def _capability_minors(files: HostFiles) -> dict[str, int]:
    """Minor numbers of all capabilities that instances can ever have, by names such as gpu0/gi1/access."""
    try:
        lines = (files.proc / "driver/nvidia-caps/mig-minors").read_text().splitlines()
    except OSError:
        return {}
    return {fields[0]: int(fields[1]) for line in lines if len(fields := line.split()) == 2}


def _display_nodes(files: HostFiles, bus_id: str) -> Iterator[tuple[str, int]]:
    """The nodes under /dev/dri that nvidia_drm made for a GPU, with their device numbers."""
    for node in files.sys.glob(f"bus/pci/devices/{pci_address(bus_id)}/drm/*/dev"):
        try:
            major, minor = node.read_text().split(":")
            yield node.parent.name, os.makedev(int(major), int(minor))
        except (OSError, ValueError):
            continue


def pci_address(bus_id: str) -> str:
    """A PCI bus id as sysfs writes it: `0000:07:00.0` for NVML's `00000000:07:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _holder(files: HostFiles, pid: int, holds: tuple[Stake, ...], shown: str | None) -> Holder | None:
    """The process in full; None where it has ended meanwhile, unless NVML still shows it."""
    facts = read_process(files.proc, pid)
    if facts is not None:
        return Holder(pid, facts.program, facts.command, facts.started, facts.owner, holds)
    if shown is None:
        return None
    return Holder(pid, os.path.basename(shown.split(" ")[0]), shown, None, Owner(), holds)


def _in_nobodys_way(holder: Holder, usage: dict[str, GpuUsage], ignored: Collection[str]) -> bool:
    if holder.program == PERSISTENCE_DAEMON:
        # It keeps every GPU open: in the way of resets only, and it lets go when the mode is switched off.
        return not any(stake.reset and usage[stake.gpu.uuid].persistence is False for stake in holder.holds)
    return holder.program in ignored and all(stake.instance is None for stake in holder.holds)


def in_words(holders: Sequence[Holder]) -> str:
    """Who holds what, in one sentence for the user, and what to do where that is known; empty for nobody."""
    if not holders:
        return ""
    named = [str(each) for each in holders[:_MOST_NAMED]]
    if len(holders) > _MOST_NAMED:
        named.append(f"{len(holders) - _MOST_NAMED} more")
    words = f"{'; '.join(named)}."
    if any(each.program == PERSISTENCE_DAEMON for each in holders):
        words += (
            f" {PERSISTENCE_DAEMON} does not let go although persistence mode is off: mount its socket"
            f" (/run/{PERSISTENCE_DAEMON}) here, or have its service stopped for the change."
        )
    return words


def untold(holders: Sequence[Holder]) -> None:
    """Nobody wants to know."""


def wait_until_free(
    look: Callable[[], Sequence[Holder]],
    window_s: float,
    *,
    pause: Callable[[float], object] = time.sleep,
    hindered: Callable[[Sequence[Holder]], None] = untold,
) -> None:
    """Look again and again, ever more slowly, until nobody holds anything.

    Handles close a little later than the pod vanishes that held them.

    Args:
        look: finds the holders.
        window_s: how long to wait; 0 looks once.
        pause: waits that many seconds. What it raises ends the wait.
        hindered: told of the holders when they are found, and when they become others.

    Raises:
        MigManagerError: GPU_IN_USE when the window has closed; names the holders.
    """
    give_up = time.monotonic() + window_s
    pause_s = _FIRST_PAUSE_S
    told: Sequence[Holder] = ()
    while holders := look():
        if holders != told:
            hindered(holders)
            told = holders
        left = give_up - time.monotonic()
        if left <= 0:
            waited = f" for {window_s:g} s" if window_s else ""
            raise MigManagerError(
                Reason.GPU_IN_USE, f"What has to change is in use{waited}: {in_words(holders)}"
            )
        pause(min(pause_s, left))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
