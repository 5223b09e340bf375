"""The GPU clients in Kubernetes around a change: away before it, back after it, and seen to be back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operands import (
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
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.advertised import expected_resources, shapes_now
from mig_manager.daemon.fresh import Advertised
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase, strategy_of
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory

_PUT_BACK_PATIENCE = 60.0
"""Seconds that a failed run waits for the old resources before it ends; they no longer decide anything."""


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
        self._validator = gpu_operator_validator(namespace)
        self._plugin = plugin_operand(namespace)
        running = operand_pods(pods.objects.values(), self._operands)
        self._unlabelled = tuple(
            operand
            for operand in self._operands
            if operand.label not in report.node.meta.labels and any(map(operand.owns, running))
        )
        plugin = plugin_operand(namespace)
        paused = report.journal.operands if report.journal is not None else {}
        self._has_plugin = any(map(plugin.owns, running)) or plugin.label in paused

    def pause(self) -> None:
        """Stop them by their deploy labels and wait until their pods are gone.

        Raises:
            MigManagerError: OperandTimeout, naming the pods that stay.
        """
        journal = self._report.journal
        assert journal is not None
        stop = pause(self._report.node.meta.labels, self._operands, journal.operands)
        self._report.say(
            Phase.PAUSING_OPERANDS,
            self._report.keep(replace(journal, operands=stop.originals)) | NodeChange(labels=stop.labels),
        )
        paused = paused_operands(self._operands, stop.originals)
        self._site.signal.wait_for(
            lambda: not operand_pods(self._pods.objects.values(), paused),
            Deadline.after(self._site.settings.operand_timeout),
            lambda: (
                "These pods of paused GPU clients have not gone: "
                f"{name_pods(operand_pods(self._pods.objects.values(), paused))}."
            ),
            reason=Reason.OPERAND_TIMEOUT,
        )

    def resume(self) -> None:
        """Start them again, each as it was before."""
        journal = self._report.journal
        assert journal is not None
        self._report.update(
            Phase.RESUMING_OPERANDS,
            lambda node: NodeChange(labels=resume(node.meta.labels, journal.operands)),
        )
        self._report.journal = replace(journal, operands={})
        pods = self._pods.objects.values()
        restart = [*self._unlabelled, self._validator]
        try:
            delete_pods(self._site.api, operand_pods(pods, restart), deadline=Deadline.after(30.0))
        except MigManagerError as error:
            logger.warning("pods of GPU clients could not be restarted: {}", error.message)

    def await_resources(self, inventory: Inventory) -> None:
        """Wait until the kubelet advertises the GPUs as they are now, published by a new plugin pod.

        Raises:
            MigManagerError: ResourcesNotAdvertised.
        """
        if not self._has_plugin:
            logger.info("no device plugin runs on this node: nothing to wait for")
            return
        self._report.phase = Phase.WAITING_FOR_RESOURCES
        deadline = Deadline.after(self._site.settings.resources_timeout)
        self._resources.wait(self._expected(inventory), deadline, fresh=True)

    def await_former_resources(self) -> None:
        """Wait a while until the kubelet advertises what it did before the run."""
        journal = self._report.journal
        if journal is not None and self._has_plugin:
            self._shown_in_time(journal.allocatable, fresh=False)

    def advertised_truly(self, inventory: Inventory | None) -> bool:
        """Whether, within a while, the kubelet advertises GPUs that are not as anybody wanted them."""
        if inventory is None:
            return False
        try:
            return not self._has_plugin or self._shown_in_time(self._expected(inventory), fresh=True)
        except MigManagerError:
            return False

    def _shown_in_time(self, wanted: Mapping[str, int], *, fresh: bool) -> bool:
        patience = min(_PUT_BACK_PATIENCE, self._site.settings.resources_timeout)
        try:
            self._resources.wait(wanted, Deadline.after(patience), fresh=fresh)
        except MigManagerError as error:
            logger.warning("{}", error.message)
            return False
        return True

    def _expected(self, inventory: Inventory) -> Mapping[str, int]:
        strategy = strategy_of(self._report.node.meta.labels, self._site.settings.mig_strategy)
        counts = expected_resources(shapes_now(inventory), strategy)
        journal = self._report.journal
        return journal.sharing.of(counts) if journal is not None else counts


def plugin_operand(namespace: str | None) -> Operand:
    """The device plugin among the GPU Operator's operands."""
    return next(one for one in gpu_operator_operands(namespace) if one.name == "device-plugin")
