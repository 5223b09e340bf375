"""A run: from a layout name to GPUs that look like it, and a Node that says so.

The order of the steps is the point of this file. What a run changes on the node is undone by context managers
on one ExitStack, in the same way after a success and after a failure; what they need to know stands in the
journal on the Node, so that a later process can undo it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.claims import Claims
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node, NodeMeta
from mig_manager.cluster.operands import Role, leftovers
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import watch_pods
from mig_manager.daemon.advertised import expected_resources, replicas_now, shapes_wanted
from mig_manager.daemon.clients import GpuClients, with_role
from mig_manager.daemon.driver import publish_devices, refuse_while_drm_holds
from mig_manager.daemon.fleet import Fleet, HeldBackError
from mig_manager.daemon.fresh import Advertised
from mig_manager.daemon.hardware import Hardware
from mig_manager.daemon.interrupts import (
    Interrupts,
    LabelGoneError,
    StoppingError,
    UsersChangedError,
    WishChangedError,
)
from mig_manager.daemon.journal import Journal, gpus_before
from mig_manager.daemon.lasting import refuse_lasting_clients
from mig_manager.daemon.rebooting import Rebooting
from mig_manager.daemon.report import Report
from mig_manager.daemon.services import HostServices, start_left_behind
from mig_manager.daemon.site import Site
from mig_manager.daemon.slices import Slices
from mig_manager.daemon.status import CONFIG_LABEL, Outcome, Phase, State, now, strategy_of
from mig_manager.daemon.tenants import pod_resources
from mig_manager.daemon.way import Way
from mig_manager.daemon.wish import Wish
from mig_manager.daemon.words import plan_in_words
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.plan import NodePlan

_SYNC_PATIENCE = 60.0
"""Seconds that a run waits to see the pods of its node."""
_LAST_PATIENCE = 5.0
"""Seconds for each change of the Node once the daemon has been asked to end."""


@dataclass(slots=True)
class _Told:
    outcome: Outcome | None = None


class Run:
    """One run. `execute` takes it to its end, whatever happens on the way."""

    def __init__(
        self,
        site: Site,
        report: Report,
        asked: Callable[[], str],
        node: Callable[[], NodeMeta | None],
        *,
        gently: bool = False,
    ) -> None:
        """Prepare a run; nothing is sent yet.

        Args:
            report: the Node as read, and what is said on it.
            asked: the layout that the label names right now; empty when there is no label any more.
            node: the Node's metadata right now.
            gently: fail rather than take something from a pod.
        """
        self._site = site
        self._report = report
        self._asked = asked
        self._gpus = Hardware(
            site,
            recovering=report.journal,
            note=lambda gpus: self._way.note_persistence(gpus),
            note_drm=lambda: self._way.note_drm(),
            pod_name=lambda uid: self._way.pod_name(uid),
        )
        self._services = HostServices(site.settings, report)
        self._kubelet = pod_resources(site)
        self._interrupts = Interrupts(
            lambda: site.wishes.of(asked()) != self.wish,
            lambda: (meta := node()) is None or meta.uid != report.node.meta.uid,
        )
        self._way = Way(site, report, self._gpus, self._interrupts, self._prove, gently=gently)
        self._fleet = Fleet(
            site, report, self._interrupts, node=node, gpus=lambda: self._gpus.last, rest=self._gpus.rest
        )
        self._rebooting = Rebooting(site, report, self._gpus, self._interrupts, gently=gently)
        self._reboot_for: MigManagerError | None = None
        """Why only a reboot makes the modes so; None where a reset will do."""
        self._may_uncordon = True
        self._clients: GpuClients | None = None

    @property
    def wish(self) -> Wish | None:
        """What the run is about; None until the hardware has been read."""
        return self._report.wish if self._gpus.seen else None

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self._report.phase

    def execute(self) -> Outcome | None:
        """Carry the run out.

        Gives None when the daemon was asked to end and there is nothing to say: no change has begun, or GPUs
        have been changed, so that journal and cordon stay and the next start goes on. Raises ApiError when the
        Node could not be told how it ended.
        """
        signal = self._site.signal
        with ExitStack() as undo:
            undo.enter_context(self._gpus)
            undo.enter_context(self._kubelet)
            signal.interrupt = self._interrupts.check
            undo.callback(setattr, signal, "interrupt", None)
            undo.enter_context(self._fleet)
            told = undo.enter_context(self._told())
            start_left_behind(self._site.settings, lambda: self._report.node.meta)
            if self._report.journal is not None:
                logger.info("an earlier run was not finished: going on from its journal")
                self._follow(undo)
            elif leftovers(self._report.node.meta.labels, self._site.operands, {}):
                logger.info("GPU clients are paused, and no journal says why: they are started again")
                self._follow(undo)
            while not self._pass(undo):
                pass
        return told.outcome

    def stop(self) -> None:
        """Ask the run to end soon. Safe in any thread."""
        self._interrupts.stopping = True
        self._report.patience = _LAST_PATIENCE
        self._gpus.stop()
        self._services.hurry()
        self._site.signal.notify()

    def _pass(self, undo: ExitStack) -> bool:
        """One try at the wish as it is now. False: the wish, or who uses the GPUs, changed meanwhile."""
        try:
            self._rebooting.await_boot()
            plan = self._prove()
            self._rebooting.bring_back_others()
            if plan.changes:
                self._report.tell_plan(plan)
                if self._reboot_for is None:
                    refuse_while_drm_holds(self._site.settings, plan)
                    refuse_lasting_clients(self._site, self._report.node.meta.labels, plan)
                self._services.prove()
                self._look_first(undo, plan)
                if self._fleet.admit():
                    return False
                self._reserve(undo)
                if self._settled().changes:
                    self._way.drain(everyone=self._reboots)
                    self._pause_clients()
                    self._services.pause()
                    self._way.make(everyone=self._reboots)
                    self._repartition()
                    self._reboot()
            elif self._report.before.not_usable:
                self._restart_clients(undo)
            if self._gpus.worked:
                self._publish_devices()
        except WishChangedError:
            logger.info("the wish has changed: starting over")
            return False
        except UsersChangedError:
            logger.info("the devices have other users now: planning anew")
            return False
        except HeldBackError as held:
            self._report.held_back = str(held)
        except StoppingError:
            raise
        except Exception as error:
            self._report.failed_in = self._report.phase
            if self._report.journal is not None and not isinstance(error, LabelGoneError):
                logger.bind(fold=False).warning("failed, and everything is put back: {}", error)
            if isinstance(error, MigManagerError):
                raise
            # A mistake of ours must not leave the node half-changed: it is undone like any other failure.
            logger.exception("unexpected error")
            raise MigManagerError(Reason.INTERRUPTED, f"Unexpected error: {error!r}.") from error
        return True

    # Step 0: nothing is touched before the whole change is proven possible.

    def _prove(self, held: Collection[str] = ()) -> NodePlan:
        self._report.phase = Phase.VALIDATING
        inventory = self._gpus.read(held)
        wish = self._site.wishes.of(self._asked())
        former = self._report.before.success(inventory) if self._report.journal is None else None
        if former is not None and former.lost(wish):
            # Its definition is gone; what it made stays.
            self._report.wish = former
            return NodePlan(former.layout, (), ())
        self._report.wish = wish
        if not wish.layout:
            raise LabelGoneError(CONFIG_LABEL)
        plan = self._gpus.plan(wish.must())
        self._report.gpus = tuple(gpu.gpu.index for gpu in plan.gpus if gpu.changes)
        if self._site.settings.check_strategy:
            expected_resources(shapes_wanted(wish.must(), inventory), self._strategy)
        if plan.changes and (failed := self._report.before.rollback_failed(wish)) is not None:
            raise MigManagerError(Reason.ROLLBACK_FAILED, failed)
        self._reboot_for = self._rebooting.needed_for(plan)
        return plan

    @property
    def _reboots(self) -> bool:
        """Whether the node is rebooted for the plan, so that every pod has to leave."""
        return self._reboot_for is not None

    @property
    def _strategy(self) -> str:
        return strategy_of(self._report.node.meta.labels, self._site.settings.mig_strategy)

    def _look_first(self, undo: ExitStack, plan: NodePlan) -> None:
        """After a failure for the sake of users, disturb nobody before there is a chance to succeed."""
        begun = self._report.journal is not None
        if begun or not self._report.before.users_were_in_the_way(self._report.wish):
            return
        self._follow(undo)
        self._way.look_first(plan, everyone=self._reboots, stopping=self._services.stopping)

    # Step 2: the journal and the cordon, in one request. From here on the node is ours.

    def _reserve(self, undo: ExitStack) -> None:
        self._interrupts.check()
        self._site.permissions.require_change()
        self._gpus.claim()
        self._fleet.confirm()
        self._report.change(Phase.CORDONING, self._cordon, within=self._fleet.grace_s)
        self._report.require_reserved()
        self._fleet.seal()
        logger.info("the node is cordoned, and the journal written")
        self._follow(undo)

    def _cordon(self, node: Node) -> NodeChange:
        """The journal on the Node wins: it may be ours, from a request whose answer was lost."""
        journal = Journal.from_annotations(node.meta.annotations) or self._new_journal(node)
        # One that only waited for host services says nothing of the cordon that comes now.
        return self._report.cordon(node, journal)

    def _new_journal(self, node: Node) -> Journal:
        inventory = self._gpus.last
        shown = advertised(node, self._site.settings.gpu_resources)
        return Journal(
            started_at=now(),
            cordoned=not node.unschedulable,
            allocatable=shown,
            replicas=replicas_now(inventory, self._strategy, shown),
            gpus=gpus_before(inventory),
        )

    def _follow(self, undo: ExitStack) -> None:
        """Follow pods and resources of the node, and be ready to bring its GPU clients back; once a run."""
        if self._clients is not None:
            return
        site = self._site
        namespace = site.permissions.pods_namespace
        pods = undo.enter_context(
            watch_pods(site.api, site.node.name, site.signal, site.watching, namespace=namespace)
        )
        pods.wait_synced(Deadline.after(_SYNC_PATIENCE))
        claims = Claims(site.api, site.node.name)
        plugins = with_role(site.operands, Role.DEVICE_PLUGIN)
        resources = undo.enter_context(Advertised(site, pods, self._kubelet, plugins, self._report.node))
        self._report.latest = lambda: resources.node
        self._way.follow(pods, self._kubelet, claims)
        self._clients = GpuClients(site, self._report, pods, resources, Slices(site, claims))
        # Undone from the last to the first: the layout, persistence mode and nvidia_drm, the host's services, the
        # cluster's clients.
        undo.enter_context(self._clients_back(self._clients))
        undo.enter_context(self._services.back(self._gpus))
        undo.enter_context(self._way.persistence_back())
        undo.enter_context(self._layout_back(self._clients))

    def _settled(self) -> NodePlan:
        """Let pods that were bound before the cordon arrive, then look again: that plan is carried out."""
        plan = self._prove(self._way.settle())
        self._report.tell_plan(plan)
        self._report.event("Reconfiguring", f"{self._report.wish.layout}: {plan_in_words(plan)}")
        return plan

    # Steps 4 and 5, and steps 9 and 10 on the way out.

    def _pause_clients(self) -> None:
        assert self._clients is not None
        self._kubelet.start()  # It is asked once the clients are back, and gets ready while they end.
        self._clients.pause()

    def _restart_clients(self, undo: ExitStack) -> None:
        """The GPUs are right, but an earlier run did not see them advertised: only the clients start anew."""
        self._report.say(Phase.RESUMING_OPERANDS)
        self._gpus.worked = True
        self._follow(undo)

    @contextmanager
    def _layout_back(self, clients: GpuClients) -> Iterator[None]:
        """A run that goes on from an earlier one and fails gives the GPUs the layout from before that one."""
        try:
            yield
        except MigManagerError as failure:
            if not self._gpus.seen:
                # What an earlier process has done to them is not known yet; it is put back once they can be read.
                raise
            error = self._gpus.restored(failure, clients.away or self._rebooting.begun)
            if error.reason is Reason.INTERRUPTED and self._interrupts.stopping:
                raise StoppingError from error
            raise self._within_reach(error) from failure

    def _within_reach(self, error: MigManagerError) -> MigManagerError:
        """After a failure too, containers have to find what is on the GPUs: it may have been built anew."""
        if self._gpus.worked and error.reason not in (Reason.DEVICE_NODE_ERROR, Reason.CDI_ERROR):
            try:
                publish_devices(self._site.settings)
            except MigManagerError as second:
                return MigManagerError(error.reason, f"{error.message} {second.message}")
        return error

    @contextmanager
    def _clients_back(self, clients: GpuClients) -> Iterator[None]:
        """However the block ends, the GPU clients run again as before, and the GPUs are advertised."""
        try:
            yield
        except StoppingError:
            if not self._gpus.changed:
                clients.resume(changed=False)
            raise
        except MigManagerError as error:
            if not self._gpus.seen:
                raise
            try:
                started = clients.resume(changed=self._gpus.worked)
                with suppress(StoppingError):
                    if error.reason is Reason.ROLLBACK_FAILED:
                        self._may_uncordon = clients.advertised_truly(self._gpus.inventory)
                    elif started:
                        clients.await_what_is_there(self._gpus.inventory if self._gpus.changed else None)
            except MigManagerError as second:
                logger.error("not everything could be put back: {}", second.message)
            raise
        self._report.let_pods_in(self._site.settings.startup_taint)
        if clients.resume(changed=self._gpus.worked):
            clients.await_resources(self._gpus.last)

    # Steps 7 and 8.

    def _repartition(self) -> None:
        if self._reboots:
            return
        self._interrupts.check()
        try:
            self._gpus.repartition()
        except MigManagerError as error:
            if error.reason is Reason.INTERRUPTED and self._interrupts.stopping:
                raise StoppingError from None
            self._rebooting.must_help(error, self._gpus.planned)
            self._reboot_for = error

    def _reboot(self) -> None:
        """Where nothing else makes the modes so: the node goes down, and the next start goes on."""
        if self._reboot_for is not None:
            self._way.drain(everyone=True)
            self._report.say(Phase.APPLYING, self._reboot_for.message)
            self._rebooting.carry_out()

    def _publish_devices(self) -> None:
        self._report.phase = Phase.PUBLISHING_DEVICES
        publish_devices(self._site.settings)

    # Step 11.

    @contextmanager
    def _told(self) -> Iterator[_Told]:
        """However the block ends, the Node says so, and is uncordoned if the cordon was ours."""
        told = _Told()
        let_go = False
        try:
            yield told
        except StoppingError:
            if self._gpus.changed:
                logger.info("stopping; the journal stays, and the next start goes on")
                return
            if not self._report.said and self._report.journal is None:
                return
            message = "The daemon was stopped before it changed a GPU; everything was put back."
            told.outcome = Outcome(State.FAILED, Reason.INTERRUPTED, message, self._report.phase)
        except MigManagerError as error:
            told.outcome = Outcome.of(error, self._report.failed_in or self._report.phase)
            let_go = isinstance(error, LabelGoneError)
        else:
            self._report.let_pods_in(self._site.settings.startup_taint)
            told.outcome = Outcome(State.SUCCESS, message=self._report.held_back)
        superseded = self._asked() != self._report.wish.layout
        self._report.conclude(
            told.outcome,
            self._gpus.inventory,
            uncordon=self._may_uncordon,
            superseded=superseded,
            let_go=let_go,
        )
