"""Carries out the plan of one GPU, inside a session.

Every call looks at the device first and afterwards: an instance is found by its profile and placement, and
it is gone when the device lists it no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu import nvml as codes
from mig_manager.gpu.device import Device, Instance
from mig_manager.gpu.nvml import NvmlCallError, call_error, code_text
from mig_manager.gpu.profiles import choose_compute
from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, ModeChange, NewComputeInstance
from mig_manager.planning.state import GpuInstance

_T = TypeVar("_T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class PlacementRefusedError(NvmlCallError):
    """The GPU has no room for an instance where the model says there is some (INSUFFICIENT_RESOURCES)."""

    def __init__(self, function: str, gpu: int, message: str, profile_id: int, placement: Placement) -> None:
        super().__init__(function, codes.INSUFFICIENT_RESOURCES, gpu, message)
        self.profile_id = profile_id
        self.placement = placement

    def __reduce__(self) -> tuple[object, ...]:
        assert self.gpu is not None
        return (type(self), (self.function, self.gpu, self.message, self.profile_id, self.placement))


class GpuWork:
    """The work on one GPU during one request."""

    def __init__(self, device: Device, in_use_window_s: float) -> None:
        self._device = device.refresh()
        self._window_s = in_use_window_s
        self._give_up: float | None = None
        self._profiles: dict[int, GpuProfileInfo] | None = None
        self._compute_profiles: dict[int, tuple[ComputeProfileInfo, ...]] = {}

    @property
    def _name(self) -> str:
        return f"GPU {self._device.index}"

    def release(self, plan: GpuPlan) -> bool:
        """Destroy what goes, then set the MIG mode. Gives whether the mode is pending until a reset."""
        for gone in plan.destroy:
            self._destroy(gone)
        for kept in plan.keep:
            if kept.destroy:
                self._destroy_computes(kept.instance, {each.id for each in kept.destroy})
        mode = plan.mig
        return (mode.current, mode.pending) != (mode.target, mode.target) and self._set_mode(mode)

    def build(self, plan: GpuPlan) -> None:
        """Create what is new."""
        current, pending = self._device.mig_mode()
        if (current, pending) != (plan.mig.target, plan.mig.target):
            raise MigManagerError(
                Reason.REBOOT_REQUIRED,
                f"{self._name}: MIG mode is {_on(current)}, and {_on(pending)} after the next reset, where"
                f" {_on(plan.mig.target)} is wanted. The change did not take effect; reboot the node.",
            )
        for kept in plan.keep:
            if kept.create:
                self._create_computes(self._must_find(kept.instance), kept.instance.profile, kept.create)
        for new in plan.create:
            what = f"creating {new.profile} at {new.placement.start}:{new.placement.size}"
            try:
                instance = self._insist(what, partial(self._device.create, new.profile_id, new.placement))
            except NvmlCallError as error:
                if error.code != codes.INSUFFICIENT_RESOURCES:
                    raise
                raise PlacementRefusedError(
                    error.function, self._device.index, error.message, new.profile_id, new.placement
                ) from None
            self._create_computes(instance, new.profile, new.compute)

    def _find(self, wanted: GpuInstance) -> Instance | None:
        for instance in self._device.instances(wanted.profile_id):
            if instance.info().placement == wanted.placement:
                return instance
        return None

    def _must_find(self, wanted: GpuInstance) -> Instance:
        instance = self._find(wanted)
        if instance is None:
            raise MigManagerError(
                Reason.VERIFY_FAILED,
                f"{self._name}: {_at(wanted)} was to stay, and is not there any more. Somebody else changes"
                " the instances of this GPU.",
            )
        return instance

    def _destroy(self, gone: GpuInstance) -> None:
        instance = self._find(gone)
        if instance is None:
            return
        self._destroy_computes(gone, None)
        what = f"destroying {_at(gone)}"
        self._until_gone(what, gone.id, instance.destroy, lambda: self._find(gone) is not None)

    def _destroy_computes(self, owner: GpuInstance, ids: set[int | None] | None) -> None:
        """Destroy the compute instances with these ids, or all of them."""
        instance = self._find(owner)
        if instance is None:
            return
        profiles = self._compute_profiles.get(owner.profile_id)
        if profiles is None:
            profiles = self._compute_profiles[owner.profile_id] = instance.compute_profiles()
        for profile in profiles:
            for compute in instance.compute_instances(profile.id):
                info = compute.info()
                if ids is None or info.id in ids:
                    what = f"destroying the compute instance at {info.placement.start} of {_at(owner)}"
                    self._until_gone(
                        what,
                        owner.id,
                        compute.destroy,
                        partial(_lists, instance, profile.id, info.id),
                    )

    def _until_gone(
        self, what: str, instance_id: int | None, destroy: Callable[[], None], listed: Callable[[], bool]
    ) -> None:
        def attempt() -> None:
            try:
                destroy()
            except NvmlCallError as error:
                if error.code not in (codes.NOT_FOUND, codes.INVALID_ARGUMENT) or listed():
                    raise
                return
            if listed():
                raise NvmlCallError(
                    "",
                    codes.IN_USE,
                    self._device.index,
                    f"{self._name}: {what} succeeds by NVML's word, but the device still lists it.",
                )

        self._insist(what, attempt, instance_id)

    def _set_mode(self, mode: ModeChange) -> bool:
        what = f"switching MIG {_on(mode.target)}"
        pause = _FIRST_PAUSE_S
        while True:
            status = self._insist(what, lambda: self._device.set_mig_mode(mode.target))
            current, pending = self._device.mig_mode()
            if current == pending == mode.target:
                return False
            waiting = pending == mode.target
            if waiting and (mode.reset or status != codes.IN_USE):
                return True
            if status != codes.IN_USE or not self._may_wait():
                break
            self._device.nvml.control.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        found = (
            f"it is {_on(current)}, and {_on(pending)} after the next reset"
            f" (activation status: {code_text(status)})"
        )
        if status == codes.IN_USE:
            raise NvmlCallError(
                "nvmlDeviceSetMigMode",
                codes.IN_USE,
                self._device.index,
                f"{self._name}: {what} has no effect; {found}. {self._holders(None)}",
            )
        raise MigManagerError(Reason.NVML_ERROR, f"{self._name}: {what} has no effect; {found}.")

    def _create_computes(
        self, instance: Instance, name: MigProfile, wanted: Sequence[NewComputeInstance]
    ) -> None:
        info = instance.info()
        offered = instance.compute_profiles()
        profiles = []
        for new in wanted:
            profile = choose_compute(offered, new.slices, self._profile(info.profile_id))
            if profile is None:
                raise MigManagerError(
                    Reason.UNSUPPORTED_PROFILE,
                    f"{self._name}: its {name} at {info.placement.start} offers no compute instance of"
                    f" {new.slices} slices; it offers {sorted({each.slices for each in offered})}.",
                )
            profiles.append(profile)
        there = [c.info().placement for p in offered for c in instance.compute_instances(p.id)]
        where = _arrange(self._choices(instance, profiles, wanted, alone=not there), there)
        if where is None:
            raise MigManagerError(
                Reason.IMPOSSIBLE_LAYOUT,
                f"{self._name}: its {name} at {info.placement.start} has no room for compute instances of"
                f" {[new.slices for new in wanted]} slices beside {len(there)} others.",
            )
        for profile, placement in zip(profiles, where, strict=True):
            what = (
                f"creating a compute instance of {profile.slices} slices in {name} at {info.placement.start}"
            )
            self._insist(what, partial(instance.create_compute, profile.id, placement), info.id)

    def _choices(
        self,
        instance: Instance,
        profiles: Sequence[ComputeProfileInfo],
        wanted: Sequence[NewComputeInstance],
        *,
        alone: bool,
    ) -> list[list[Placement | None]]:
        """Where each new compute instance may lie: where the plan says if the device allows it, or anywhere.

        None leaves it to the device: right for one that has the GPU instance to itself.
        """
        if alone and len(wanted) == 1 and wanted[0].placement is None:
            return [[None]]
        choices: list[list[Placement | None]] = []
        for profile, new in zip(profiles, wanted, strict=True):
            allowed = instance.compute_placements(profile.id)
            planned = new.placement
            choices.append([planned] if planned is not None and planned in allowed else list(allowed))
        return choices

    def _profile(self, profile_id: int) -> GpuProfileInfo | None:
        if self._profiles is None:
            self._profiles = {info.id: info for info in self._device.profiles()}
        return self._profiles.get(profile_id)

    def _insist(self, what: str, attempt: Callable[[], _T], instance_id: int | None = None) -> _T:
        """Try until it is no longer refused because of use, within the window."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return attempt()
            except NvmlCallError as error:
                if error.code != codes.IN_USE:
                    raise call_error(error.function, error.code, error.gpu, what) from None
                if not self._may_wait():
                    message = error.message
                    if error.function:
                        message = f"{self._name}: {what} is refused for {self._window_s:g} s: in use."
                    message = f"{message} {self._holders(instance_id)}"
                    raise NvmlCallError(error.function, error.code, error.gpu, message) from None
            self._device.nvml.control.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _may_wait(self) -> bool:
        """Whether the window is still open; it opens when this is first asked."""
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self._window_s
        return now < self._give_up

    def _holders(self, instance_id: int | None) -> str:
        """Who uses the GPU, or one instance of it, by NVML; a sentence."""
        try:
            processes = self._device.processes()
        except NvmlCallError:
            processes = ()
        pids = sorted({p.pid for p in processes if instance_id is None or p.gpu_instance == instance_id})
        if pids:
            return f"Processes that run on it: {', '.join(f'pid {pid}' for pid in pids)}."
        return (
            "NVML shows no process on it: some client (monitoring, DCGM, a persistence daemon) holds it open."
        )


def _arrange(
    choices: Sequence[Sequence[Placement | None]], taken: Iterable[Placement]
) -> list[Placement | None] | None:
    """One choice for each, none overlapping another or what is taken; None where that cannot be."""
    used = 0
    for placement in taken:
        used |= placement.mask

    def search(index: int, used: int) -> list[Placement | None] | None:
        if index == len(choices):
            return []
        for choice in choices[index]:
            mask = choice.mask if choice is not None else 0
            if not used & mask and (rest := search(index + 1, used | mask)) is not None:
                return [choice, *rest]
        return None

    return search(0, used)


def _lists(instance: Instance, profile_id: int, compute_id: int) -> bool:
    return any(each.info().id == compute_id for each in instance.compute_instances(profile_id))


def _at(instance: GpuInstance) -> str:
    name = f"{instance.profile} at {instance.placement.start}:{instance.placement.size}"
    return name if instance.id is None else f"{name} (GPU instance {instance.id})"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
