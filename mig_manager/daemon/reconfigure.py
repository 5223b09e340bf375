"""A run: from a layout name to GPUs that look like it, and a Node that says so.

The order of the steps is the point of this file. What a run changes on the node is undone by context managers
on one ExitStack, in the same way after a success and after a failure; what they need to know stands in the
journal on the Node, so that a later process can undo it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.drain import DrainMode, DrainOptions, drain
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.pods import gpu_pods, name_pods, unknown_to_kubelet
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import watch_pods
from mig_manager.daemon.advertised import expected_resources, shapes_wanted, sharing_now
from mig_manager.daemon.clients import GpuClients, plugin_operand
from mig_manager.daemon.fresh import Advertised
from mig_manager.daemon.journal import Journal, gpus_before
from mig_manager.daemon.report import Report, plan_in_words
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Outcome, Phase, State, now, strategy_of
from mig_manager.daemon.wish import Wish
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.repartition import RepartitionError, repartition
from mig_manager.host.driver import reset_gpus
from mig_manager.layouts.layout import GpuIdentity, NodeTarget
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory

_SYNC_PATIENCE = 60.0
"""Seconds that a run waits to see the pods of its node."""
_LAST_PATIENCE = 6.0
"""Seconds for each change of the Node once the daemon has been asked to end."""


class WishChangedError(Exception):
    """The label or the layout changed while a run waited; it starts over."""


class StoppingError(Exception):
    """The daemon has been asked to end."""


@dataclass(slots=True)
class _Told:
    outcome: Outcome | None = None


class Run:
    """One run. `execute` takes it to its end, whatever happens on the way."""

    def __init__(self, site: Site, report: Report, asked: Callable[[], str]) -> None:
        """Prepare a run; nothing is sent yet.

        Args:
            report: the Node as read, and what is said on it.
            asked: the layout that the label names right now; empty when there is no label any more.
        """
        self._site = site
        self._report = report
        self._asked = asked
        self._worker = site.new_worker()
        self._stop = False
        self._may_start_over = False
        self._unfinished = report.journal is not None
        """Whether GPUs have been changed, by us or by an earlier process that could not finish."""
        self._may_uncordon = True
        self.wish: Wish | None = None
        """What the run is about; None until the hardware has been read."""
        self._inventory: Inventory | None = None
        self._target: NodeTarget | None = None
        self._plan: NodePlan | None = None
        self._clients: GpuClients | None = None

    def execute(self) -> Outcome | None:
        """Carry the run out.

        Gives None when the daemon was asked to end after GPUs had been changed: journal and cordon stay, and
        the next start goes on. Raises ApiError when the Node could not be told how it ended.
        """
        signal = self._site.signal
        with ExitStack() as undo:
            undo.enter_context(self._worker)
            self._worker.start()
            signal.interrupt = self._look_up
            undo.callback(setattr, signal, "interrupt", None)
            told = undo.enter_context(self._told())
            if self._unfinished:
                self._follow(undo)
            else:
                self._report.announce()
            while not self._pass(undo):
                logger.info("the wish has changed: starting over")
        return told.outcome

    def stop(self) -> None:
        """Ask the run to end soon. Safe in any thread."""
        self._stop = True
        self._report.patience = _LAST_PATIENCE
        self._worker.stop_after_call()
        self._site.signal.notify()

    def _pass(self, undo: ExitStack) -> bool:
        """One try at the wish as it is now. False: the wish changed meanwhile."""
        try:
            if self._prove().changes:
                self._reserve(undo)
                if self._settled().changes:
                    self._drain()
                    self._pause_clients()
                    self._repartition()
        except WishChangedError:
            return False
        except (MigManagerError, StoppingError):
            raise
        except Exception as error:
            # A mistake of ours must not leave the node half-changed: it is undone like any other failure.
            logger.exception("unexpected error")
            raise MigManagerError(Reason.INTERRUPTED, f"Unexpected error: {error!r}.") from error
        return True

    # Step 0: nothing is touched before the whole change is proven possible.

    def _prove(self) -> NodePlan:
        self._report.phase = Phase.VALIDATING
        self._inventory = self._worker.inventory()
        self._site.wishes.learn(self._inventory)
        self.wish = wish = self._site.wishes.of(self._asked())
        self._report.layout, self._report.hash = wish.layout, wish.hash
        self._target = wish.must()
        self._plan = plan_node(self._target, self._inventory)
        self._report.gpus = tuple(gpu.gpu.index for gpu in self._plan.gpus if gpu.changes)
        if self._site.settings.check_strategy:
            labels = self._report.node.meta.labels
            strategy = strategy_of(labels, self._site.settings.mig_strategy)
            expected_resources(shapes_wanted(self._target, self._inventory), strategy)
        return self._plan

    # Step 2: the journal and the cordon, in one request. From here on the node is ours.

    def _reserve(self, undo: ExitStack) -> None:
        assert self._plan is not None
        assert self._inventory is not None
        logger.info("{}: {}", self._report.layout, plan_in_words(self._plan))
        journal = self._report.journal or self._new_journal(self._inventory)
        self._report.say(Phase.CORDONING, self._report.keep(journal) | NodeChange(unschedulable=True))
        self._report.event("Reconfiguring", f"{self._report.layout}: {plan_in_words(self._plan)}")
        self._follow(undo)

    def _new_journal(self, inventory: Inventory) -> Journal:
        node, settings = self._report.node, self._site.settings
        shown = advertised(node, settings.gpu_resources)
        return Journal(
            started_at=now(),
            cordoned=not node.unschedulable,
            allocatable=shown,
            sharing=sharing_now(inventory, strategy_of(node.meta.labels, settings.mig_strategy), shown),
            gpus=gpus_before(inventory),
        )

    def _follow(self, undo: ExitStack) -> None:
        """Follow pods and resources of the node, and be ready to bring its GPU clients back; once a run."""
        if self._clients is not None:
            return
        site = self._site
        self._pods = undo.enter_context(watch_pods(site.api, site.node.name, site.signal))
        self._pods.wait_synced(Deadline.after(_SYNC_PATIENCE))
        plugin = plugin_operand(site.settings.operand_namespace or None)
        resources = undo.enter_context(Advertised(site, self._pods, plugin, self._report.node))
        self._clients = GpuClients(site, self._report, self._pods, resources)
        undo.enter_context(self._clients_back())

    def _settled(self) -> NodePlan:
        """Let pods that were bound before the cordon arrive, then look again: that plan is carried out."""
        with self._free_to_start_over():
            self._site.signal.wait_for(
                lambda: not unknown_to_kubelet(self._gpu_pods()),
                Deadline.after(self._site.settings.settle_timeout),
                lambda: (
                    "The kubelet has taken no notice of pods bound to this node: "
                    f"{name_pods(unknown_to_kubelet(self._gpu_pods()))}."
                ),
                reason=Reason.DRAIN_TIMEOUT,
            )
        return self._prove()

    # Step 3: whoever stands in the way leaves, and nobody else.

    def _drain(self) -> None:
        self._report.phase = Phase.DRAINING
        settings = self._site.settings
        options = DrainOptions(
            mode=DrainMode(settings.drain_mode),
            bare_pods=settings.evict_bare_pods,
            timeout_s=settings.drain_timeout,
        )
        with self._free_to_start_over():
            report = drain(self._site.api, self._pods, self._gpu_pods, options, self._site.signal)
        if report.gone:
            self._report.event("Drained", f"gone: {name_pods(report.gone)}")

    def _gpu_pods(self) -> tuple[Pod, ...]:
        return gpu_pods(self._pods.objects.values(), self._site.settings.gpu_resources)

    # Step 4, and steps 9 and 10 on the way out.

    def _pause_clients(self) -> None:
        assert self._clients is not None
        self._clients.pause()

    @contextmanager
    def _clients_back(self) -> Iterator[None]:
        """However the block ends, the GPU clients run again as before, and the GPUs are advertised."""
        assert self._clients is not None
        try:
            yield
        except StoppingError:
            if not self._unfinished:
                self._clients.resume()
            raise
        except MigManagerError as error:
            self._clients.resume()
            with suppress(StoppingError):
                if error.reason is Reason.ROLLBACK_FAILED:
                    self._may_uncordon = self._clients.advertised_truly(self._inventory)
                else:
                    self._clients.await_former_resources()
            raise
        self._clients.resume()
        assert self._inventory is not None
        self._clients.await_resources(self._inventory)

    # Step 7.

    def _repartition(self) -> None:
        assert self._target is not None
        assert self._plan is not None
        assert self._inventory is not None
        self._report.phase = Phase.APPLYING
        try:
            self._inventory = repartition(
                self._worker, self._target, self._plan, self._inventory, self._reset
            )
            self._unfinished = True
        except RepartitionError as error:
            self._inventory = error.inventory
            if error.reason is Reason.INTERRUPTED:
                self._unfinished = self._unfinished or not error.restored
                raise StoppingError from None
            raise

    def _reset(self, gpus: Sequence[GpuIdentity]) -> None:
        settings = self._site.settings
        reset_gpus(settings.reset_command, gpus, root=settings.driver_root, timeout_s=settings.reset_timeout)

    # Step 11.

    @contextmanager
    def _told(self) -> Iterator[_Told]:
        """However the block ends, the Node says so, and is uncordoned if the cordon was ours."""
        told = _Told()
        try:
            yield told
        except StoppingError:
            if self._unfinished:
                logger.info("stopping; the journal stays, and the next start goes on")
                return
            message = "The daemon was stopped before it changed a GPU; everything was put back."
            told.outcome = Outcome(State.FAILED, Reason.INTERRUPTED, message, self._report.phase)
        except MigManagerError as error:
            told.outcome = Outcome.of(error, self._report.phase)
        else:
            told.outcome = Outcome(State.SUCCESS)
        self._report.conclude(told.outcome, self._inventory, uncordon=self._may_uncordon)

    # Waiting.

    @contextmanager
    def _free_to_start_over(self) -> Iterator[None]:
        """Within the block, a changed wish ends every wait."""
        self._may_start_over = True
        try:
            yield
        finally:
            self._may_start_over = False

    def _look_up(self) -> None:
        """Called before each look of each wait."""
        if self._stop:
            raise StoppingError
        if self._may_start_over and self._site.wishes.of(self._asked()) != self.wish:
            raise WishChangedError
