"""The GPU clients in Kubernetes around a change: away before it, back after it, and seen to be back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node, Pod
from mig_manager.cluster.operands import (
    PAUSED,
    Operand,
    delete_pods,
    gpu_operator_operands,
    gpu_operator_validator,
    operand_pods,
    pause,
    paused_operands,
    resume,
)
from mig_manager.cluster.pods import name_pods
from mig_manager.cluster.resources import expected_devices
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.advertised import Sharing, expected_resources, shapes_now
from mig_manager.daemon.fresh import Advertised
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase, strategy_of
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory

_PUT_BACK_PATIENCE = 60.0
"""Seconds that a failed run waits for the old resources before it ends; they no longer decide anything."""
_RESTART_PATIENCE = 30.0
"""Seconds that the restart of pods is tried while the API server does not take it."""


class GpuClients:
    """The operands of this node during one run."""

    def __init__(self, site: Site, report: Report, pods: ObjectWatch[Pod], resources: Advertised) -> None:
        """Look at them before anything is paused, or at what a journal says of an unfinished run."""
        namespace = site.settings.operand_namespace or None
        self._site = site
        self._report = report
        self._pods = pods
        self._resources = resources
        self._operands = gpu_operator_operands(namespace)
        self._plugin = plugin_operand(namespace)
        labels = report.node.meta.labels
        self._unpaused = (
            *(operand for operand in self._operands if operand.label not in labels),
            gpu_operator_validator(namespace),
        )
        """Those that no label stops; they are started anew after a change."""
        paused = report.journal.operands if report.journal is not None else {}
        self._has_plugin = bool(self._running(self._plugin)) or self._plugin.label in paused

    @property
    def paused(self) -> bool:
        """Whether any of them is away because of this run."""
        journal = self._report.journal
        labels = self._report.node.meta.labels
        return journal is not None and any(labels.get(label) == PAUSED for label in journal.operands)

    def pause(self) -> None:
        """Stop them by their deploy labels and wait until their pods are gone.

        Raises:
            MigManagerError: OperandTimeout, naming the pods that stay.
        """
        self._report.change(Phase.PAUSING_OPERANDS, self._pause)
        assert self._report.journal is not None
        paused = paused_operands(self._operands, self._report.journal.operands)
        self._site.signal.wait_for(
            lambda: not self._running(*paused),
            Deadline.after(self._site.settings.operand_timeout),
            lambda: f"These pods of paused GPU clients have not gone: {name_pods(self._running(*paused))}.",
            reason=Reason.OPERAND_TIMEOUT,
        )

    def _pause(self, node: Node) -> NodeChange:
        """Journal and labels in one; and the cordon again, in case that somebody has taken it off."""
        journal = Journal.from_annotations(node.meta.annotations) or self._report.journal
        assert journal is not None
        stop = pause(node.meta.labels, self._operands, journal.operands)
        kept = self._report.keep(replace(journal, operands=stop.originals))
        return kept | NodeChange(labels=stop.labels, unschedulable=True)

    def resume(self, *, changed: bool) -> bool:
        """Start them again, each as it was before.

        Args:
            changed: whether GPUs were worked on, so that those that could not be paused start anew as well.

        Gives whether any had to be started. Raises ApiError when the Node could not be changed.
        """
        journal = self._report.journal
        paused = {} if journal is None else journal.operands
        if not paused and not changed:
            return False
        stale = self._running(
            *(self._unpaused if changed else ()),
            *((self._plugin,) if changed or self._plugin.label in paused else ()),
        )
        if paused:
            assert journal is not None
            self._report.change(
                Phase.RESUMING_OPERANDS, lambda node: NodeChange(labels=resume(node.meta.labels, paused))
            )
            self._report.journal = replace(journal, operands={})
        try:
            patience = min(_RESTART_PATIENCE, self._report.patience)
            delete_pods(self._site.api, stale, deadline=Deadline.after(patience))
        except MigManagerError as error:
            logger.warning("pods of GPU clients could not be restarted: {}", error.message)
        return True

    def await_resources(self, inventory: Inventory) -> None:
        """Wait until the kubelet advertises the GPUs as they are now, published by a new plugin pod.

        Raises:
            MigManagerError: ResourcesNotAdvertised.
        """
        if not self._has_plugin:
            logger.info("no device plugin runs on this node: nothing to wait for")
            return
        self._report.say(Phase.WAITING_FOR_RESOURCES)
        counts = self._counts(inventory)
        if counts is None:
            logger.warning(
                "the device plugin's strategy does not suit the layout: resources are not waited for"
            )
            return
        deadline = Deadline.after(self._site.settings.resources_timeout)
        devices = expected_devices(inventory, self._strategy)
        self._resources.wait(lambda: self._expected(counts), deadline, fresh=True, devices=devices)

    def await_what_is_there(self, inventory: Inventory | None) -> None:
        """Wait a while until the kubelet advertises GPUs that are not as anybody wanted them.

        Args:
            inventory: what they are; None: as before the run.
        """
        journal = self._report.journal
        if journal is None or not self._has_plugin:
            return
        if inventory is None:
            self._shown_in_time(journal.allocatable, fresh=False)
        elif (counts := self._counts(inventory)) is not None:
            self._shown_in_time(self._expected(counts), fresh=False)

    def advertised_truly(self, inventory: Inventory | None) -> bool:
        """Whether, within a while, the kubelet advertises GPUs that are not as anybody wanted them."""
        if not self._has_plugin:
            return inventory is not None
        counts = self._counts(inventory) if inventory is not None else None
        return counts is not None and self._shown_in_time(self._expected(counts), fresh=True)

    def _shown_in_time(self, wanted: Mapping[str, int], *, fresh: bool) -> bool:
        patience = min(_PUT_BACK_PATIENCE, self._site.settings.resources_timeout)
        try:
            self._resources.wait(lambda: wanted, Deadline.after(patience), fresh=fresh)
        except MigManagerError as error:
            logger.warning("{}", error.message)
            return False
        return True

    def _counts(self, inventory: Inventory) -> Mapping[str, int] | None:
        """What a plugin finds on such GPUs; None where it would not start."""
        try:
            return expected_resources(shapes_now(inventory), self._strategy)
        except MigManagerError:
            return None

    @property
    def _strategy(self) -> str:
        return strategy_of(self._report.node.meta.labels, self._site.settings.mig_strategy)

    def _expected(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """What it advertises for them: shared as before the run, or by what is seen where no journal tells."""
        journal = self._report.journal
        shown = self._resources.shown
        return (Sharing.seen(counts, shown) if journal is None else journal.sharing).of(counts)

    def _running(self, *operands: Operand) -> tuple[Pod, ...]:
        return operand_pods(self._pods.objects.values(), operands)


def plugin_operand(namespace: str | None) -> Operand:
    """The device plugin among the GPU Operator's operands."""
    return next(one for one in gpu_operator_operands(namespace) if one.name == "device-plugin")
