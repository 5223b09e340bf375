"""Making way: the pods that a plan takes something from leave, and processes let go; nobody else is disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.claims import Claims
from mig_manager.cluster.drain import DrainReport
from mig_manager.cluster.drainrules import keep_coming
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node, Pod
from mig_manager.cluster.podresources import PodResources
from mig_manager.cluster.pods import name_pods
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.hardware import Hardware
from mig_manager.daemon.interrupts import Interrupts, UsersChangedError
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.lookfirst import Hindrance
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase
from mig_manager.daemon.tenants import Tenants
from mig_manager.daemon.words import span
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.holders import Holder, in_words
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.plan import NodePlan

EVICTED = "EvictedForRepartition"
"""Reason of the Event on a pod that has to go."""

_MOST_MOVES = 3
"""Times that a run plans anew because devices changed their users; then it waits for them to let go."""
_MOST_ROUNDS = 5
"""Times that pods which came in spite of the cordon are made to leave; something keeps sending them then."""


class Way:
    """Who is in the way of one run."""

    def __init__(
        self,
        site: Site,
        report: Report,
        gpus: Hardware,
        interrupts: Interrupts,
        prove: Callable[[Collection[str]], NodePlan],
        *,
        gently: bool,
    ) -> None:
        """Prepare; nothing is looked at yet.

        Args:
            prove: reads the GPUs and plans anew, taking the devices with these UUIDs for busy.
            gently: fail rather than take something from a pod.
        """
        self._site = site
        self._report = report
        self._gpus = gpus
        self._interrupts = interrupts
        self._prove = prove
        self._gently = gently
        self._moves = 0
        self._seen_free: NodePlan | None = None
        """The plan for which the last look at holders found none."""
        self._tenants: Tenants | None = None

    def follow(self, pods: ObjectWatch[Pod], kubelet: PodResources, claims: Claims) -> None:
        """Begin to look; `pods` are those of the node."""
        self._tenants = Tenants(self._site, pods, kubelet, claims, self._pods_holding)

    @property
    def tenants(self) -> Tenants:
        """The pods on the GPUs, once they are followed."""
        assert self._tenants is not None
        return self._tenants

    def pod_name(self, uid: str) -> str | None:
        """Namespace and name of a pod of this node; None where it is not known (yet)."""
        return None if self._tenants is None else self._tenants.name_of(uid)

    def look_first(self, plan: NodePlan, *, everyone: bool, stopping: Collection[str]) -> None:
        """Raise if those who were in the way of an earlier attempt still would be; nobody is disturbed.

        `everyone`: all pods have to go. `stopping`: host units that a change stops.
        """
        hindrance = Hindrance(self._site, self._report, self.tenants, self._gpus.clearance)
        hindrance.refuse(plan, self._gpus.last, everyone=everyone, stopping=stopping)

    def settle(self) -> frozenset[str]:
        """Let pods that were bound before the cordon arrive; gives UUIDs of the devices that pods hold."""
        with self._interrupts.free_to_start_over():
            self.tenants.settle()
        return self.tenants.held()

    def drain(self, *, everyone: bool) -> None:
        """Make those pods leave that the plan takes something from; `everyone`: all pods, for a reboot.

        Raises:
            MigManagerError: as `Tenants.leave`; Drifted where nobody may lose anything.
        """
        plan, inventory = self._gpus.planned, self._gpus.last
        pods = self.tenants.in_the_way(plan, inventory, everyone=everyone)
        if not pods:
            return
        if self._gently:
            raise MigManagerError(
                Reason.DRIFTED,
                f"The layout is not applied again, for that would take something from {name_pods(pods)}.",
            )
        self._report.leaving = tuple(map(str, pods))
        self._report.say(Phase.DRAINING)
        logger.info("in the way, and made to leave: {}", name_pods(pods))
        began = time.monotonic()
        with self._interrupts.free_to_start_over():
            report = self.tenants.leave(
                plan, inventory, self._hindered, self._evicted(pods, everyone), everyone=everyone
            )
        if report.gone:
            logger.info("gone after {}: {}", span(time.monotonic() - began), name_pods(report.gone))
        if told := _drained_in_words(report):
            self._report.event("Drained", told, warning=bool(report.released))

    def _evicted(self, pods: Sequence[Pod], everyone: bool) -> Callable[[Pod], None]:
        """What tells a pod why it has to go; of those that come later only the plan is known."""
        plan, inventory, layout = self._gpus.planned, self._gpus.last, self._report.wish.layout
        how = "deleted" if self._site.settings.drain_mode == "delete" else "evicted"
        held = {pod.uid: self.tenants.devices_of(pod) for pod in pods}
        changed = [gpu.gpu.index for gpu in plan.gpus if gpu.changes]

        def tell(pod: Pod) -> None:
            devices = held.get(pod.uid, frozenset())
            of_the_pod = [state.gpu.index for state in inventory.gpus if devices & state.uuids]
            gpus = gpu_numbers([index for index in changed if index in of_the_pod] or changed)
            why = (
                f"the node can be rebooted for {layout}"
                if everyone
                else f"{gpus} can be re-partitioned to {layout}"
            )
            self._site.events.record_on_pod(pod, EVICTED, f"{how} so that {why}")

        return tell

    def make(self, *, everyone: bool) -> None:
        """See to it that nobody is left, the node still cordoned: whoever came in spite of the cordon leaves too.

        Raises:
            MigManagerError: GpuInUse, naming the holders; DrainTimeout where pods keep coming; as `drain`.
        """
        for _ in range(_MOST_ROUNDS):
            self._seen_free = None
            self.tenants.look_anew()
            self.drain(everyone=everyone)
            if not everyone:
                self._free()
            self._keep_cordoned()
            with self._interrupts.free_to_start_over():
                self.tenants.settle()
            pods = self.tenants.in_the_way(self._gpus.planned, self._gpus.last)
            if not pods:
                return
        raise keep_coming(pods, f"again after each of {_MOST_ROUNDS} drains")

    def note_persistence(self, gpus: Sequence[GpuIdentity]) -> None:
        """Write into the journal that the persistence mode of these GPUs is about to be switched off."""
        uuids = [gpu.uuid for gpu in gpus]

        def with_uuids(journal: Journal) -> Journal:
            return replace(journal, persistence=tuple(dict.fromkeys((*journal.persistence, *uuids))))

        self._report.change(self._report.phase, lambda node: self._report.amend(node, with_uuids))

    def note_drm(self) -> None:
        """Write into the journal that nvidia_drm is about to be unloaded."""
        self._report.change(
            self._report.phase,
            lambda node: self._report.amend(node, lambda journal: replace(journal, drm=True)),
        )

    @contextmanager
    def persistence_back(self) -> Iterator[None]:
        """However the block ends, nvidia_drm is loaded again, and GPUs have the persistence mode from before."""
        drm = self._gpus.drm
        try:
            with self._gpus.clearance:
                yield
        finally:
            drm.bring_back()
            for problem in self._gpus.clearance.problems:
                logger.error("{}", problem)
                self._report.event("PersistenceModeOff", problem, warning=True)
            if drm.problem:
                logger.error("{}", drm.problem)
                self._report.event("DrmModuleGone", drm.problem, warning=True)

    def _hindered(self, obstacle: str) -> None:
        self._report.say(Phase.DRAINING, obstacle)
        self._report.event(Reason.EVICTION_BLOCKED, f"Waiting: {obstacle}", warning=True)

    def _keep_cordoned(self) -> None:
        """The cordon again, in case that somebody has taken it off; it is ours then."""
        journal = self._report.journal_on(self._report.node)
        if journal is not None and journal.cordoned:
            # That is right whatever else has changed on the Node meanwhile, as it often has by now.
            self._report.say(Phase.APPLYING, cordon=journal)
        else:
            self._report.change(Phase.APPLYING, self._cordoned_still)

    def _cordoned_still(self, node: Node) -> NodeChange:
        journal = self._report.journal_on(node)
        if node.unschedulable or journal is None:
            return NodeChange()
        return self._report.cordon(node, journal)

    def _pods_holding(self, plan: NodePlan) -> Collection[str]:
        """Uids of the pods whose processes hold what the plan changes."""
        holders = self._gpus.clearance.holders(plan)
        self._seen_free = None if holders else plan
        return {holder.owner.pod_uid for holder in holders if holder.owner.pod_uid is not None}

    def _free(self) -> None:
        if self._seen_free == self._gpus.planned and not self._gpus.planned.resets:
            return  # A moment ago nobody held anything, and for a reset more has to be done.
        self._report.phase = Phase.FREEING_GPUS
        with self._interrupts.free_to_start_over():
            self._gpus.free(self._held_by)

    def _held_by(self, holders: Sequence[Holder]) -> None:
        """Somebody holds it. What he uses may be kept instead of something else; if not, it is waited for."""
        if self._moves < _MOST_MOVES:
            self._moves += 1
            planned = self._gpus.planned
            used = {uuid for holder in holders for uuid in holder.uuids}
            if self._prove(self.tenants.held() | used).devices_lost != planned.devices_lost:
                raise UsersChangedError
        self._report.say(Phase.FREEING_GPUS, f"Waiting: {in_words(holders)}")


def _drained_in_words(report: DrainReport) -> str:
    """Who has left the GPUs; empty for nobody."""
    parts = (
        f"gone: {name_pods(report.gone)}" if report.gone else "",
        f"do not end, but hold no GPU any more: {name_pods(report.released)}" if report.released else "",
    )
    return "; ".join(filter(None, parts))
