"""The apply step of a run: release, reset, build, read back; and the previous layout if any of it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.apply import PlacementRefusedError
from mig_manager.gpu.nvml import MUTATING
from mig_manager.gpu.worker import GpuWorker, LostWorkerError
from mig_manager.layouts.layout import GpuIdentity, GpuTarget, NodeTarget
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, NewInstance, NodePlan
from mig_manager.planning.planner import alternatives, plan_gpu
from mig_manager.planning.restore import plan_restore
from mig_manager.planning.state import GpuState, Inventory
from mig_manager.planning.verify import differences

Reset = Callable[[Sequence[GpuIdentity]], None]
"""Resets exactly these GPUs, or raises."""

_MOST_ALTERNATIVES = 16
"""Arrangements tried on a GPU that refuses what its model allows, before the previous layout comes back."""
_RESTORES = 2
"""Attempts to put the previous layout back; each plans from what the device shows then."""


class RepartitionError(MigManagerError):
    """The GPUs could not be brought into the layout."""

    def __init__(self, reason: Reason, message: str, *, restored: bool, inventory: Inventory | None) -> None:
        super().__init__(reason, message)
        self.restored = restored
        """Whether the GPUs were read back as they were before."""
        self.inventory = inventory
        """What the GPUs look like now; None where that could not be read, or was not for lack of time."""

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(type(self), restored=self.restored, inventory=self.inventory)
        return (rebuild, (self.reason, self.message))


def repartition(
    worker: GpuWorker,
    target: NodeTarget,
    plan: NodePlan,
    before: Inventory,
    reset: Reset,
    *,
    who: Callable[[], str] = str,
) -> Inventory:
    """Carry out a plan; gives what the GPUs look like then, as read back.

    Args:
        worker: does the NVML work. No NVML session of its is open during a reset.
        target: what `plan` was made for; where the GPU refuses the plan, other plans are made for it.
        plan: what to do. Nothing that it keeps is destroyed, by the rollback neither.
        before: what `plan` was made from, and what a failure puts back.
        reset: called with exactly the GPUs whose MIG mode is pending.
        who: names the holders of what the plan changes; asked when something turns out to be in use, before
            the previous layout comes back.

    Raises:
        RepartitionError: with its own reason once the previous layout is back; ROLLBACK_FAILED when it
            is not; INTERRUPTED after `worker.stop_after_call`, with everything as it is at that moment.
    """
    change = _Change(worker, target, before, reset)
    return _safely(worker, before, reset, partial(change.carry_out, plan), who)


def carry_out(worker: GpuWorker, plan: NodePlan, before: Inventory, reset: Reset) -> Inventory:
    """Carry out exactly this plan; gives what the GPUs look like then, as read back.

    Where a GPU refuses any of it, nothing else is tried: each instance has its place or none.

    Raises:
        RepartitionError: as `repartition`.
    """

    def exactly() -> Inventory:
        _release(worker, plan, reset)
        worker.build(plan)
        now = worker.inventory()
        _verify(plan, now)
        return now

    return _safely(worker, before, reset, exactly)


def _safely(
    worker: GpuWorker,
    before: Inventory,
    reset: Reset,
    change: Callable[[], Inventory],
    who: Callable[[], str] = str,
) -> Inventory:
    """Make a change, and bring the previous layout back if it fails."""
    calls = len(worker.calls)
    try:
        return change()
    except Exception as error:  # noqa: BLE001 -- whatever went wrong, the previous layout comes back
        failure = _readable(error)
        if failure.reason is Reason.GPU_IN_USE:
            failure = _with_holders(failure, who)
    changed = any(call.function in MUTATING for call in worker.calls[calls:])
    if not changed and not isinstance(failure, LostWorkerError):
        message = f"{failure.message} Nothing was changed."
        raise RepartitionError(failure.reason, message, restored=True, inventory=before)
    if failure.reason is Reason.INTERRUPTED:
        raise RepartitionError(failure.reason, failure.message, restored=False, inventory=None)
    raise put_back(worker, before, reset, failure)


class _Change:
    def __init__(self, worker: GpuWorker, target: NodeTarget, before: Inventory, reset: Reset) -> None:
        self._worker = worker
        self._targets = {gpu.gpu.uuid: gpu for gpu in target.gpus}
        self._before = _by_uuid(before)
        self._reset = reset

    def carry_out(self, plan: NodePlan) -> Inventory:
        if any(gpu.mig.changes for gpu in plan.gpus):
            _release(self._worker, plan, self._reset)
            plan = self._insist(self._plan_from_device(plan), self._worker.build)
        else:
            plan = self._insist(plan, self._worker.rebuild)
        now = self._worker.inventory()
        _verify(_replace(plan, {each.gpu.uuid: _as_offered(each, now) for each in plan.gpus}), now)
        return now

    def _plan_from_device(self, plan: NodePlan) -> NodePlan:
        """Plan again where the driver listed no profiles until MIG was on: what the device says counts."""
        guessed = {
            gpu.gpu.uuid
            for gpu in plan.gpus
            if (geometry := self._before[gpu.gpu.uuid].geometry) is not None
            and geometry.source == "catalogue"
            and gpu.create
        }
        if not guessed:
            return plan
        states = _by_uuid(self._worker.inventory())
        return _replace(
            plan, {uuid: plan_gpu(self._targets[uuid], states[uuid]) for uuid in guessed if uuid in states}
        )

    def _insist(self, plan: NodePlan, carry_out: Callable[[NodePlan], None]) -> NodePlan:
        """Carry a plan out; where a GPU has no room at a place that its model allows, elsewhere on it.

        Gives the plan that was carried out in the end.
        """
        drained = {gpu.gpu.uuid: gpu for gpu in plan.gpus}
        refused: dict[str, set[tuple[int, Placement]]] = {}
        for _ in range(_MOST_ALTERNATIVES):
            try:
                carry_out(plan)
                return plan
            except PlacementRefusedError as error:
                uuid = next(gpu.gpu.uuid for gpu in plan.gpus if gpu.gpu.index == error.gpu)
                refused.setdefault(uuid, set()).add((error.profile_id, error.placement))
                states = _by_uuid(self._worker.inventory())
                # The other GPUs have stopped where they were; what they hold by now is kept.
                plans = {
                    other: plan_gpu(self._targets[other], states[other]) for other in drained if other != uuid
                }
                plans[uuid] = self._alternative(uuid, states[uuid], refused[uuid], drained[uuid], error)
                plan, carry_out = _replace(plan, plans), self._worker.rebuild
        carry_out(plan)
        return plan

    def _alternative(
        self,
        uuid: str,
        state: GpuState,
        refused: set[tuple[int, Placement]],
        drained: GpuPlan,
        error: PlacementRefusedError,
    ) -> GpuPlan:
        target: GpuTarget = self._targets[uuid]
        found = next(alternatives(target, state, refused, drained), None)
        if found is None:
            raise MigManagerError(
                error.reason, f"{error.message} No other arrangement of the layout is left on this GPU."
            )
        return found


def _release(worker: GpuWorker, plan: NodePlan, reset: Reset) -> None:
    pending = worker.release(plan)
    if pending:
        reset(pending)


def _verify(plan: NodePlan, now: Inventory) -> None:
    found = differences(plan, now)
    if found:
        raise MigManagerError(
            Reason.VERIFY_FAILED, f"The GPUs do not read back as planned: {'; '.join(found)}."
        )


def _as_offered(plan: GpuPlan, now: Inventory) -> GpuPlan:
    """The plan without the places of compute instances that the device turned out not to offer.

    NVML lists those only for a GPU instance that exists, so a plan for a new one takes the usual ones. Where
    the device has others, the worker has chosen among them, for all compute instances of that GPU instance.
    """
    state = _by_uuid(now).get(plan.gpu.uuid)
    if state is None or state.geometry is None:
        return plan
    offers = {
        (profile.profile_id, compute.slices): compute.placements
        for profile in state.geometry.profiles
        for compute in profile.compute
    }

    def offered(new: NewInstance) -> NewInstance:
        if all(each.placement in offers.get((new.profile_id, each.slices), ()) for each in new.compute):
            return new
        return replace(new, compute=tuple(replace(each, placement=None) for each in new.compute))

    return replace(plan, create=tuple(offered(new) for new in plan.create))


def put_back(
    worker: GpuWorker, before: Inventory, reset: Reset, failure: MigManagerError
) -> RepartitionError:
    """Restore the previous layout; gives the error that tells how that went."""
    read = False
    for _ in range(_RESTORES):
        try:
            now = worker.inventory()
            read = True
            plan = plan_restore(before, now)
            changed = plan.changes
            if changed:
                _release(worker, plan, reset)
                worker.build(plan)
                now = worker.inventory()
            _verify(plan, now)
        except Exception as error:  # noqa: BLE001 -- it is told of in the error
            second = _readable(error)
            if second.reason is Reason.INTERRUPTED:
                return RepartitionError(second.reason, failure.message, restored=False, inventory=None)
            if _hung(error):
                read = True  # Nobody knows how far that has gone.
                break
        else:
            outcome = "The previous layout is back." if changed else "The GPUs are as they were."
            message = f"{failure.message} {outcome}"
            return RepartitionError(failure.reason, message, restored=True, inventory=now)
    if not read:
        # As while the driver is loaded anew. Nothing was tried, so that it can be, once they can be read.
        words = (
            f"{failure.message} The previous layout is not back: the GPUs cannot be read. {second.message}"
        )
        return RepartitionError(Reason.NVML_ERROR, words, restored=False, inventory=None)
    return RepartitionError(
        Reason.ROLLBACK_FAILED,
        f"{failure.message} Putting the previous layout back failed too: {second.message}",
        restored=False,
        inventory=None if _hung(second) else _try_inventory(worker),
    )


def _try_inventory(worker: GpuWorker) -> Inventory | None:
    try:
        return worker.inventory()
    except MigManagerError:
        return None


def _with_holders(failure: MigManagerError, who: Callable[[], str]) -> MigManagerError:
    try:
        return MigManagerError(failure.reason, f"{failure.message} {who()}".rstrip())
    except Exception:  # noqa: BLE001 -- it only explains, and must not replace the failure
        return failure


def _hung(error: Exception) -> bool:
    return isinstance(error, LostWorkerError) and error.hung


def _readable(error: Exception) -> MigManagerError:
    if isinstance(error, MigManagerError):
        return error
    return MigManagerError(Reason.NVML_ERROR, f"Unexpected {type(error).__name__}: {error}.")


def _by_uuid(inventory: Inventory) -> dict[str, GpuState]:
    return {state.gpu.uuid: state for state in inventory.gpus}


def _replace(plan: NodePlan, plans: dict[str, GpuPlan]) -> NodePlan:
    return replace(plan, gpus=tuple(plans.get(gpu.gpu.uuid, gpu) for gpu in plan.gpus))
