"""Making way for a change of the GPUs: nobody holds what changes, and what must be reset can be."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.holders import (
    Holder,
    Stake,
    at_stake,
    find_holders,
    in_words,
    pci_address,
    untold,
    wait_until_free,
)
from mig_manager.gpu.procfs import HostFiles
from mig_manager.gpu.worker import GpuWorker
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import GpuState

IGNORED = ("nv-fabricmanager",)
"""Programs that have GPUs open without being in the way; a reset on NVSwitch machines even needs this one."""


def unnoted(gpus: Sequence[GpuIdentity]) -> None:
    """Nothing to note."""


def unnamed(uid: str) -> str | None:
    """Pods have no names here."""
    return None


class Clearance:
    """What surrounds the apply step of a run. A context manager: its end puts persistence modes back."""

    def __init__(
        self,
        worker: GpuWorker,
        files: HostFiles,
        *,
        ignored: Collection[str] = IGNORED,
        note: Callable[[Sequence[GpuIdentity]], None] = unnoted,
        pod_name: Callable[[str], str | None] = unnamed,
    ) -> None:
        """Prepare it; nothing is looked at yet.

        Args:
            worker: asks NVML.
            files: where the host's processes and devices are to be seen.
            ignored: programs that are never in the way of a GPU.
            note: called before persistence mode is switched off, with the GPUs concerned, so that it can be
                put back by a later process too (`adopt`).
            pod_name: gives a pod's namespace and name by its UID, for messages; None where it is not known.
        """
        self._worker = worker
        self._files = files
        self._ignored = ignored
        self._note = note
        self._pod_name = pod_name
        self._virtual: frozenset[str] | None = None
        self._persistent: list[GpuIdentity] = []
        self.problems: list[str] = []
        """What could not be put back at the end, in words."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            put_persistence_back(self._worker, self._persistent)
        except MigManagerError as failure:
            self.problems.append(f"Persistence mode could not be switched on again: {failure.message}")
        self._persistent = []

    def prove(self, plan: NodePlan) -> None:
        """Refuse a plan whose resets cannot work, before anything is touched.

        Raises:
            MigManagerError: RESET_NOT_SUPPORTED; a virtual machine whose kernel knows no way to reset a GPU.
        """
        if not plan.resets:
            return
        if self._virtual is None:
            self._virtual = frozenset(each.gpu.uuid for each in self._worker.usage() if each.passthrough)
        fixed = [gpu for gpu in plan.resets if gpu.uuid in self._virtual and not self._resettable(gpu)]
        if fixed:
            raise MigManagerError(
                Reason.RESET_NOT_SUPPORTED,
                f"{_names(fixed)} cannot change MIG mode: that takes a reset, and this virtual machine cannot"
                " reset the GPU it was given. Switch the mode by hand (nvidia-smi -mig) and reboot the node, or let"
                " the daemon do it (WITH_REBOOT=true).",
            )

    def holders(self, plan: NodePlan) -> tuple[Holder, ...]:
        """Who holds what the plan changes, at this moment."""
        return self._look(at_stake(plan))

    def adopt(self, gpus: Sequence[GpuIdentity]) -> None:
        """Take over GPUs whose persistence mode an earlier process switched off: the end puts it back."""
        self._persistent += [gpu for gpu in gpus if gpu not in self._persistent]

    def obtain(
        self,
        plan: NodePlan,
        window_s: float,
        *,
        pause: Callable[[float], object] = time.sleep,
        hindered: Callable[[Sequence[Holder]], None] = untold,
    ) -> None:
        """Wait until nobody holds what the plan changes.

        Persistence mode of the GPUs that are reset is switched off first, for it keeps them open.

        Args:
            plan: what will be carried out.
            window_s: how long handles may take to close.
            pause: waits that many seconds; what it raises ends the wait.
            hindered: told of holders when they are found, and when they become others.

        Raises:
            MigManagerError: GPU_IN_USE, naming the holders; NVML_ERROR.
        """
        stakes = at_stake(plan)
        self.let_go([stake.gpu for stake in stakes if stake.reset])
        wait_until_free(lambda: self._look(stakes), window_s, pause=pause, hindered=hindered)

    def who(self, plan: NodePlan) -> str:
        """Who holds what the plan changes, in words for a failure's message; empty where nobody is found."""
        return in_words(self._named(find_holders(at_stake(plan), self._worker.usage(), self._files)))

    def join(self, addresses: Sequence[str]) -> tuple[GpuIdentity, ...]:
        """The GPUs at these PCI addresses, made ready to be reset although the plan changes nothing on them.

        For platforms that reset linked GPUs only together. They have to be free altogether: no instances, no
        process, no pending mode.

        Raises:
            MigManagerError: RESET_NOT_SUPPORTED or GPU_IN_USE, naming the GPU that is not free, and why.
        """
        states = {pci_address(state.gpu.bus_id): state for state in self._worker.inventory().gpus}
        joining: list[GpuState] = []
        for address in addresses:
            state = states.get(pci_address(address))
            if state is None:
                raise MigManagerError(
                    Reason.RESET_NOT_SUPPORTED,
                    f"The reset must include the GPU at {address}, which NVML does not show here.",
                )
            joining.append(state)
        for state in joining:
            if why := _settled(state):
                raise MigManagerError(
                    Reason.RESET_NOT_SUPPORTED,
                    f"GPU {state.gpu.index} is linked with the GPUs to reset and must be reset with them, and"
                    f" that would take from it what the layout does not touch: {why}. Free it, choose a layout"
                    " that changes all linked GPUs, or start Fabric Manager, which allows single resets.",
                )
        gpus = tuple(state.gpu for state in joining)
        self.let_go(gpus)
        holders = self._look([Stake(gpu, reset=True) for gpu in gpus])
        if holders:
            raise MigManagerError(
                Reason.GPU_IN_USE,
                f"{_names(gpus)} must be reset too, for they are linked, and are in use: {in_words(holders)}",
            )
        self._worker.rest()
        return gpus

    def _look(self, stakes: Sequence[Stake]) -> tuple[Holder, ...]:
        if not stakes:
            return ()
        found = find_holders(stakes, self._worker.usage(), self._files, ignored=self._ignored)
        return self._named(found)

    def _named(self, holders: Sequence[Holder]) -> tuple[Holder, ...]:
        """With the names of their pods."""
        return tuple(
            replace(each, owner=replace(each.owner, pod=self._pod_name(each.owner.pod_uid)))
            if each.owner.pod_uid is not None
            else each
            for each in holders
        )

    def let_go(self, gpus: Sequence[GpuIdentity]) -> None:
        """Have these GPUs open no longer: switch persistence mode off, which keeps them so, and end our session.

        Raises:
            MigManagerError: NVML_ERROR.
        """
        if not gpus:
            return
        wanted = {gpu.uuid for gpu in gpus}
        on = [each.gpu for each in self._worker.usage() if each.persistence and each.gpu.uuid in wanted]
        if on:
            self._note(on)
            self.adopt(on)
            self._worker.set_persistence([(gpu, False) for gpu in on])
        self._worker.rest()

    def _resettable(self, gpu: GpuIdentity) -> bool:
        """Whether the kernel knows a way to reset it, or cannot be asked."""
        device = self._files.sys / "bus/pci/devices" / pci_address(gpu.bus_id)
        return not device.is_dir() or (device / "reset").exists()


def put_persistence_back(worker: GpuWorker, gpus: Sequence[GpuIdentity]) -> None:
    """Switch persistence mode on again; where it is on, nothing happens.

    Raises:
        MigManagerError: NVML_ERROR.
    """
    if gpus:
        worker.set_persistence([(gpu, True) for gpu in gpus])


def _settled(state: GpuState) -> str:
    """Why a GPU may not be reset beside others, in words; empty if it may."""
    if state.instances:
        return f"it holds {len(state.instances)} GPU instance{'s' if len(state.instances) > 1 else ''}"
    if state.mig_current != state.mig_pending:
        return "its MIG mode is pending, and would change"
    return ""


def _names(gpus: Sequence[GpuIdentity]) -> str:
    return " and ".join(f"GPU {gpu.index}" for gpu in gpus)
