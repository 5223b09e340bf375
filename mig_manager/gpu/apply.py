"""Carries out the plan of one GPU, inside a session.

Every step looks at the device first and afterwards: an instance is found by its profile and placement, it is
gone when the device lists it no more, and a mode is what the device reads back.
"""

from __future__ import annotations

from functools import partial

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu import nvml as codes
from mig_manager.gpu.compute import ComputeWork
from mig_manager.gpu.device import Device, Instance
from mig_manager.gpu.nvml import NvmlCallError, code_text
from mig_manager.gpu.patience import Patience
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, ModeChange, NewInstance
from mig_manager.planning.state import GpuInstance


class PlacementRefusedError(NvmlCallError):
    """The GPU has no room for an instance where the model says there is some (INSUFFICIENT_RESOURCES)."""

    def __init__(self, function: str, gpu: int, message: str, profile_id: int, placement: Placement) -> None:
        super().__init__(function, codes.INSUFFICIENT_RESOURCES, gpu, message)
        self.profile_id = profile_id
        self.placement = placement

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.function, self.gpu, self.message, self.profile_id, self.placement))


class GpuWork:
    """The work on one GPU during one request."""

    def __init__(self, device: Device, in_use_window_s: float) -> None:
        self._device = device.refresh()
        self._patience = Patience(device, in_use_window_s)
        self._compute = ComputeWork(self._patience)

    def release(self, plan: GpuPlan) -> bool:
        """Destroy what goes, then set the MIG mode. Gives whether the mode is pending until a reset."""
        for gone in plan.destroy:
            self._destroy(gone)
        for kept in plan.keep:
            if kept.destroy:
                ids = {compute.id for compute in kept.destroy}
                self._compute.destroy(self._must_find(kept.instance), _at(kept.instance), ids)
        mode = plan.mig
        return mode.changes and self._set_mode(mode)

    def build(self, plan: GpuPlan) -> None:
        """Create what is new."""
        current, pending = self._device.mig_mode()
        if (current, pending) != (plan.mig.target, plan.mig.target):
            raise MigManagerError(
                Reason.REBOOT_REQUIRED,
                f"{self._patience.place}: MIG mode is {_on(current)}, and {_on(pending)} after the next"
                f" reset; {_on(plan.mig.target)} is wanted. The change did not take effect; reboot the node.",
            )
        for kept in plan.keep:
            if kept.create:
                instance = self._must_find(kept.instance)
                self._compute.create(instance, kept.instance.profile, kept.create, fresh=False)
        for new in plan.create:
            self._compute.create(self._create(new), new.profile, new.compute, fresh=True)

    def _create(self, new: NewInstance) -> Instance:
        what = f"creating {new.profile} at {new.placement.start}:{new.placement.size}"
        try:
            return self._patience.insist(what, partial(self._device.create, new.profile_id, new.placement))
        except NvmlCallError as error:
            if error.code != codes.INSUFFICIENT_RESOURCES:
                raise
            raise PlacementRefusedError(
                error.function, self._device.index, error.message, new.profile_id, new.placement
            ) from None

    def _destroy(self, gone: GpuInstance) -> None:
        instance = self._find(gone)
        if instance is None:
            return
        where = _at(gone)
        self._compute.destroy(instance, where, None)
        listed = partial(self._lists, gone)
        self._patience.until_gone(f"destroying {where}", instance.destroy, listed, gone.id)

    def _find(self, wanted: GpuInstance) -> Instance | None:
        for instance in self._device.instances(wanted.profile_id):
            if instance.info().placement == wanted.placement:
                return instance
        return None

    def _lists(self, instance: GpuInstance) -> bool:
        return self._find(instance) is not None

    def _must_find(self, wanted: GpuInstance) -> Instance:
        instance = self._find(wanted)
        if instance is None:
            raise MigManagerError(
                Reason.VERIFY_FAILED,
                f"{self._patience.place}: {_at(wanted)} was to stay, and is not there any more. Somebody else"
                " changes the instances of this GPU.",
            )
        return instance

    def _set_mode(self, mode: ModeChange) -> bool:
        """Set the MIG mode; gives whether it is pending until a reset.

        What counts is the mode that reads back. The activation status only tells whether waiting may help, and an
        error only why the mode is not the wanted one.
        """
        what = f"switching MIG {_on(mode.target)}"
        while True:
            refusal: NvmlCallError | None = None
            try:
                status = self._patience.insist(what, partial(self._device.set_mig_mode, mode.target))
            except NvmlCallError as error:
                refusal, status = error, error.code
                self._device.refresh()
            current, pending = self._device.mig_mode()
            if current == pending == mode.target:
                return False
            in_use = status == codes.IN_USE
            if pending == mode.target and (mode.reset or not in_use):
                return True
            if refusal is not None:
                raise refusal
            if not in_use or not self._patience.wait():
                break
        found = (
            f"{what} has no effect: MIG is {_on(current)}, and {_on(pending)} after the next reset"
            f" (activation status: {code_text(status)})"
        )
        if in_use:
            raise self._patience.in_use("nvmlDeviceSetMigMode", found, None)
        raise MigManagerError(Reason.NVML_ERROR, f"{self._patience.place}: {found}.")


def _at(instance: GpuInstance) -> str:
    name = f"{instance.profile} at {instance.placement.start}:{instance.placement.size}"
    return name if instance.id is None else f"{name} (GPU instance {instance.id})"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
