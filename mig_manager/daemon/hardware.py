"""The GPUs during one run: read, planned for, re-partitioned, and put back; and how far that has gone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Self

from loguru import logger

from mig_manager.daemon.driver import new_clearance, new_drm, reset
from mig_manager.daemon.journal import Journal, gpus_before
from mig_manager.daemon.measures import GPU_CHANGES, INSTANCES
from mig_manager.daemon.site import Site
from mig_manager.daemon.words import span
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.control import CallRecord
from mig_manager.gpu.holders import Holder
from mig_manager.gpu.lock import sole_changer
from mig_manager.gpu.nvml import IN_USE
from mig_manager.gpu.repartition import RepartitionError, carry_out, put_back, repartition
from mig_manager.layouts.layout import GpuIdentity, NodeTarget
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.restore import plan_restore
from mig_manager.planning.state import GpuState, Inventory

_GPUS_STAY = frozenset({Reason.ROLLBACK_FAILED, Reason.DEVICE_NODE_ERROR, Reason.CDI_ERROR})
"""Failures that do not bring the previous layout back: it was tried, or the new one is good."""


class Hardware:
    """The GPUs of this node, and the worker process that is theirs during the run."""

    def __init__(
        self,
        site: Site,
        *,
        recovering: Journal | None,
        note: Callable[[Sequence[GpuIdentity]], None],
        note_drm: Callable[[], None],
        pod_name: Callable[[str], str | None],
    ) -> None:
        """Prepare for a run; nothing is started yet.

        Args:
            site: the node.
            recovering: the journal of a run that an earlier process could not finish.
            note: called before the persistence mode of GPUs is switched off, so that the journal knows.
            note_drm: called in the same way before nvidia_drm is unloaded.
            pod_name: gives a pod's namespace and name by its UID; None where it is not known.
        """
        self._site = site
        self._worker = site.new_worker()
        self.clearance = new_clearance(site.settings, self._worker, note, pod_name)
        """Makes way for the change. A context manager: its end puts persistence modes back."""
        self.drm = new_drm(site.settings, note_drm)
        """The kernel module nvidia_drm, as far as it is taken away for a reset."""
        self._reset = partial(reset, site.settings, self.clearance, self.drm)
        self._recovering = recovering
        self._target: NodeTarget | None = None
        self._plan: NodePlan | None = None
        self._claim = ExitStack()
        self.inventory: Inventory | None = None
        """The GPUs as last read; None before that, and where they could not be read any more."""
        self.seen = False
        """Whether they have been read at all."""
        self.changed = recovering is not None
        """Whether the GPUs may be other than before the run, so that somebody has to go on with it."""
        self.worked = False
        """Whether anything was done on the GPUs, even if all is as before: clients must look at them anew."""

    def __enter__(self) -> Self:
        self._worker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._worker.close()
        self._claim.close()

    def claim(self) -> None:
        """Keep other mig-managers on this machine from changing the GPUs until the end of the run.

        Raises:
            MigManagerError: GpuInUse; one is doing so already.
        """
        self._claim.close()
        self._claim.enter_context(sole_changer(self._worker.source))

    def rest(self) -> None:
        """End the worker process, before a long wait; the next request starts another."""
        self._worker.close()

    def stop(self) -> None:
        """Begin no further change of the GPUs. Safe in any thread."""
        self._worker.stop_after_call()

    @property
    def last(self) -> Inventory:
        """The GPUs as last read."""
        assert self.inventory is not None
        return self.inventory

    @property
    def planned(self) -> NodePlan:
        """The plan as last made."""
        assert self._plan is not None
        return self._plan

    def read(self, held: Collection[str] = ()) -> Inventory:
        """Read them; `held`: UUIDs of devices that pods hold, which count as busy.

        Raises:
            MigManagerError: NvmlError, also where the driver is not there (yet).
        """
        try:
            self.inventory = self._worker.inventory().held(held)
        except MigManagerError as error:
            again = f"It is looked for again every {self._site.settings.driver_retry:g} s."
            raise MigManagerError(error.reason, f"{error.message} {again}") from error
        self.seen = True
        self._site.wishes.learn(self.inventory)
        if self._recovering is not None:
            self.changed = self.worked = gpus_before(self.inventory) != self._recovering.gpus
            switched = self._recovering.persistence
            if self._recovering.drm:
                self.drm.adopt()
            self.clearance.adopt([each.gpu for each in self.inventory.gpus if each.gpu.uuid in switched])
        return self.inventory

    def plan(self, target: NodeTarget) -> NodePlan:
        """Plan for that target from what was read. Raises MigManagerError where there is no way."""
        self._target = target
        self._plan = plan_node(target, self.last)
        self._site.progress.planned(self._plan)
        return self._plan

    def free(self, hindered: Callable[[Sequence[Holder]], None]) -> None:
        """Wait until nobody holds what the plan changes; `hindered` is told who does.

        Raises:
            MigManagerError: GpuInUse, naming the holders.
        """
        settings, pause = self._site.settings, self._site.signal.pause
        self.clearance.obtain(self.planned, settings.holder_window, pause=pause, hindered=hindered)

    def repartition(self) -> None:
        """Carry the plan out.

        Raises:
            RepartitionError: the GPUs are as before, unless the reason is RollbackFailed, or Interrupted with
                `changed` set.
        """
        assert self._target is not None
        self.worked = True
        calls, began = len(self._worker.calls), time.monotonic()
        indices = [each.gpu.index for each in self.planned.gpus if each.changes]
        gpus = gpu_numbers(indices)
        logger.info("{}: the change begins", gpus)
        for index in indices:
            self._site.counts.add(GPU_CHANGES, str(index))
        try:
            who = partial(self.clearance.who, self.planned)
            self.inventory = repartition(
                self._worker, self._target, self.planned, self.last, self._reset, who=who
            )
        except RepartitionError as error:
            self.inventory = error.inventory
            self.changed = self.changed or not error.restored
            raise
        finally:
            self._tell_refusals(self._worker.calls[calls:])
        logger.info("{}: read back as planned, after {}", gpus, span(time.monotonic() - began))
        self.changed = True
        # A GPU that shows only now that it has MIG makes the wish another one, and the next run is about both.
        self._site.wishes.learn(self.inventory)
        self._site.counts.add(INSTANCES, "kept", amount=sum(len(gpu.keep) for gpu in self.planned.gpus))

    def leave_pending(self, journal: Journal) -> None:
        """Set the MIG modes that the plan changes, for a reboot to make them so; `restored` takes them back.

        Raises:
            MigManagerError: GpuInUse, NvmlError; VerifyFailed: a GPU does not show its new mode as pending.
        """
        self._recovering = journal
        self.changed = self.worked = True
        modes = tuple(gpu for gpu in self.planned.gpus if gpu.mig.changes)
        if not any(gpu.mig.switches for gpu in modes):
            raise MigManagerError(
                Reason.VERIFY_FAILED,
                "The MIG modes have changed meanwhile; somebody else works on these GPUs.",
            )
        self._worker.release(replace(self.planned, gpus=modes))
        self.inventory = self._worker.inventory()
        pending = {state.gpu.uuid: state.mig_pending for state in self.inventory.gpus}
        unset = [gpu.gpu.index for gpu in modes if pending.get(gpu.gpu.uuid) is not gpu.mig.target]
        if unset:
            raise MigManagerError(
                Reason.VERIFY_FAILED,
                f"{gpu_numbers(unset)}: the new MIG mode does not read back as pending, so that no reboot would bring"
                " it.",
            )

    def bring_back_others(self, journal: Journal) -> None:
        """Rebuild, on the GPUs that the plan does not touch, what a reboot has taken from them.

        Raises:
            RepartitionError: as `repartition`.
        """
        others = set(self.planned.untouched)
        before = journal.before(self.last)
        kept = tuple(_over_a_reboot(state) for state in before.gpus if state.gpu.index in others)
        plan = plan_restore(replace(before, gpus=kept), self.last)
        plan = replace(plan, gpus=tuple(gpu for gpu in plan.gpus if not (gpu.mig.switches and gpu.mig.reset)))
        if not plan.changes:
            return
        self.claim()
        self.changed = self.worked = True
        try:
            self.inventory = carry_out(self._worker, plan, self.last, self._reset)
        except RepartitionError as error:
            self.inventory = error.inventory
            raise

    def _tell_refusals(self, calls: Iterable[CallRecord]) -> None:
        """Log what a GPU refused because of use, so that the time it took has its reason there."""
        refused = Counter((call.gpu, call.function) for call in calls if call.code == IN_USE)
        for (gpu, function), times in refused.items():
            logger.info("GPU {}: {} was refused because of use, {} times", gpu, function, times)

    def restored(self, failure: MigManagerError, idle: bool) -> MigManagerError:
        """Bring back the layout from before a run that an earlier process has begun and that now failed.

        Does nothing where the GPUs are in use again (not `idle`): they were finished then, and stay so. Gives
        the error to end with.
        """
        journal = self._recovering
        if journal is None or self.inventory is None or not (self.changed and idle):
            return failure
        if failure.reason in _GPUS_STAY:
            return failure
        try:
            before = journal.before(self.inventory)
        except (ValueError, KeyError, TypeError):
            return failure
        self.worked = True
        with self.clearance:
            error = put_back(self._worker, before, self._reset, failure)
        self.inventory = error.inventory
        self.changed = not error.restored
        return error


def _over_a_reboot(state: GpuState) -> GpuState:
    """A GPU with the mode that a reboot leaves it, by what was pending before."""
    instances = state.instances if state.mig_pending else ()
    return replace(state, mig_current=state.mig_pending, instances=instances)
