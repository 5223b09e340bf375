"""The GPU clients in Kubernetes around a change: away before it, back after it, and seen to be back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node, Pod
from mig_manager.cluster.operands import (
    PAUSED,
    Operand,
    Role,
    delete_pods,
    leftovers,
    operand_pods,
    pause,
    paused_operands,
    resume,
    stopped_pods,
    unlabelled,
)
from mig_manager.cluster.pods import name_pods
from mig_manager.cluster.resources import advertised, expected_devices
from mig_manager.cluster.taints import without_taint
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.advertised import expected_resources, shapes_now
from mig_manager.daemon.fresh import Advertised, Offer
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.slices import Slices
from mig_manager.daemon.status import Phase, strategy_of
from mig_manager.daemon.words import counted, span
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory

_PUT_BACK_PATIENCE = 60.0
"""Seconds that a failed run waits for the old resources before it ends; they no longer decide anything."""
_USUAL_WAIT = 20.0
"""Seconds that resources may take before the Node says that they are waited for: until then its last word, that
the GPU clients come back, says as much. A kubelet looks every ten seconds."""
_RESTART_PATIENCE = 30.0
"""Seconds that the restart of pods is tried while the API server does not take it."""


class GpuClients:
    """The operands of this node during one run."""

    def __init__(
        self,
        site: Site,
        report: Report,
        pods: ObjectWatch[Pod],
        resources: Advertised,
        slices: Slices,
    ) -> None:
        """Look at them before anything is paused, or at what a journal says of an unfinished run."""
        self._site = site
        self._report = report
        self._pods = pods
        self._resources = resources
        self._slices = slices
        labels = report.node.meta.labels
        self._unpaused = unlabelled(labels, site.operands)
        """Those that no label stops; they are started anew after a change."""
        self._plugins = with_role(site.operands, Role.DEVICE_PLUGIN)
        # The start-up taint may have kept it away so far.
        tainted = bool(without_taint(report.node, site.settings.startup_taint))
        self._awaited = [
            one
            for one in self._plugins
            if (tainted and labels.get(one.label or "") == "true") or self._is_here([one])
        ]
        """Device plugins that run here, or would if nothing kept them away."""
        self._has_dra_plugin = self._is_here(with_role(site.operands, Role.DRA_PLUGIN))

    def _is_here(self, operands: Sequence[Operand]) -> bool:
        """Whether any of them runs on this node, or would if it were not paused."""
        labels = self._report.node.meta.labels
        paused = {label for label, value in labels.items() if value == PAUSED}
        if self._report.journal is not None:
            paused.update(self._report.journal.operands)
        return any(each.label in paused for each in operands) or bool(self._stopped_by(operands))

    @property
    def _has_plugin(self) -> bool:
        """Whether a device plugin is to come back. Somebody may have switched it off, by its label, since the start."""
        return self._is_awaited(self._resources.node or self._report.node)

    def _is_awaited(self, node: Node) -> bool:
        labels = node.meta.labels
        return any(
            one in self._unpaused or labels.get(one.label or "", "false") != "false" for one in self._awaited
        )

    @property
    def away(self) -> bool:
        """Whether any of them is away because of this run; where none could be paused, whether the cordon holds."""
        journal, node = self._report.journal, self._report.node
        if journal is None:
            return False
        if not journal.operands:
            return node.unschedulable
        return any(node.meta.labels.get(label) == PAUSED for label in journal.operands)

    def pause(self) -> None:
        """Stop them by their deploy labels and wait until their pods are gone; DRA plugins go last.

        Raises:
            MigManagerError: OperandTimeout, naming the pods that stay.
        """
        last = with_role(self._site.operands, Role.DRA_PLUGIN)
        self._stop([one for one in self._site.operands if one not in last])
        if any(one.label in self._report.node.meta.labels for one in last):
            self._stop(last)

    def _stop(self, operands: Sequence[Operand]) -> None:
        self._report.change(Phase.PAUSING_OPERANDS, partial(self._pause, operands))
        assert self._report.journal is not None
        paused = paused_operands(operands, self._report.journal.operands)
        running, began = self._stopped_by(paused), time.monotonic()
        self._site.signal.wait_for(
            lambda: not self._stopped_by(paused),
            Deadline.after(self._site.settings.operand_timeout),
            lambda: f"These pods of paused GPU clients have not gone: {name_pods(self._stopped_by(paused))}.",
            reason=Reason.OPERAND_TIMEOUT,
        )
        if paused:
            names = name_pods(running) or "none ran"
            logger.info(
                "GPU clients are paused, and gone after {}: {}", span(time.monotonic() - began), names
            )

    def _pause(self, operands: Sequence[Operand], node: Node) -> NodeChange:
        """Journal and labels in one; and the cordon again, in case that somebody has taken it off."""
        journal = self._report.journal_on(node)
        assert journal is not None
        stop = pause(node.meta.labels, operands, journal.operands)
        cordon = self._report.cordon(node, replace(journal, operands=stop.originals))
        return cordon | NodeChange(labels=stop.labels)

    def _leftovers(self) -> Mapping[str, str]:
        journal = self._report.journal
        known = {} if journal is None else journal.operands
        return leftovers(self._report.node.meta.labels, self._site.operands, known)

    def resume(self, *, changed: bool) -> bool:
        """Start them again, each as it was before.

        Args:
            changed: whether GPUs were worked on, so that those that could not be paused start anew as well.

        Gives whether any had to be started. Raises ApiError when the Node could not be changed.
        """
        journal = self._report.journal
        paused = {**self._leftovers(), **({} if journal is None else journal.operands)}
        if not paused and not changed:
            return False
        stale = self._running(
            *(self._unpaused if changed else ()),
            *(one for one in self._plugins if changed or one.label in paused),
        )
        if paused:
            self._report.change(
                Phase.RESUMING_OPERANDS,
                lambda node: NodeChange(labels=resume(node.meta.labels, paused)),
            )
            if journal is not None:
                self._report.journal = replace(journal, operands={})
            logger.info("GPU clients are started again: {}", ", ".join(sorted(paused)))
        try:
            patience = min(_RESTART_PATIENCE, self._report.patience)
            delete_pods(self._site.api, stale, deadline=Deadline.after(patience))
        except MigManagerError as error:
            logger.warning("pods of GPU clients could not be restarted: {}", error.message)
        return True

    def await_resources(self, inventory: Inventory) -> None:
        """Wait until the kubelet advertises the GPUs as they are now, published by a new plugin pod.

        Where NVIDIA's DRA driver serves the node, also until its ResourceSlices show them.

        Raises:
            MigManagerError: ResourcesNotAdvertised.
        """
        if not self._has_plugin and not self._has_dra_plugin:
            logger.info("no device plugin runs on this node: nothing to wait for")
            return
        self._report.phase = Phase.WAITING_FOR_RESOURCES
        deadline, began = Deadline.after(self._site.settings.resources_timeout), time.monotonic()
        if self._has_plugin:
            if self._offer(inventory, self._report.node) is None:
                logger.warning(
                    "the device plugin's strategy does not suit the layout: resources are not waited for"
                )
            usual = Deadline(min(deadline.at, Deadline.after(_USUAL_WAIT).at))
            if not self._resources.seen(lambda node: self._offer(inventory, node), usual):
                self._report.say(Phase.WAITING_FOR_RESOURCES)
                self._resources.wait(lambda node: self._offer(inventory, node), deadline, fresh=True)
            if not self._has_plugin:
                logger.info("the device plugin was switched off meanwhile: resources are not waited for")
                return
            shown = self._resources.node or self._report.node
            counts = counted(advertised(shown, self._site.settings.gpu_resources))
            logger.info("advertised after {}: {}", span(time.monotonic() - began), counts)
        if self._has_dra_plugin:
            self._report.say(Phase.WAITING_FOR_RESOURCES)
            self._slices.wait(inventory, deadline)

    def await_what_is_there(self, inventory: Inventory | None) -> None:
        """Wait a while until the kubelet advertises GPUs that are not as anybody wanted them.

        Args:
            inventory: what they are; None: as before the run.
        """
        journal = self._report.journal
        if journal is None or not self._has_plugin:
            return
        if inventory is None:
            self._shown_in_time(Offer(journal.allocatable, exact=True), fresh=False)
        elif (offer := self._offer(inventory, self._report.node)) is not None:
            self._shown_in_time(replace(offer, devices=None), fresh=False)

    def advertised_truly(self, inventory: Inventory | None) -> bool:
        """Whether, within a while, the kubelet advertises GPUs that are not as anybody wanted them."""
        if not self._has_plugin:
            return inventory is not None
        offer = None if inventory is None else self._offer(inventory, self._report.node)
        return offer is not None and self._shown_in_time(replace(offer, devices=None), fresh=True)

    def _shown_in_time(self, offer: Offer, *, fresh: bool) -> bool:
        patience = min(_PUT_BACK_PATIENCE, self._site.settings.resources_timeout)
        try:
            self._resources.wait(
                lambda node: offer if self._is_awaited(node) else None, Deadline.after(patience), fresh=fresh
            )
        except MigManagerError as error:
            logger.warning("{}", error.message)
            return False
        return True

    def _offer(self, inventory: Inventory, node: Node) -> Offer | None:
        """What a plugin finds on such GPUs with the strategy that it has now; None where it does not start."""
        if not self._is_awaited(node):
            return None
        strategy = strategy_of(node.meta.labels, self._site.settings.mig_strategy)
        try:
            counts = expected_resources(shapes_now(inventory), strategy)
        except MigManagerError:
            return None
        journal = self._report.journal
        known = {} if journal is None else journal.replicas
        return Offer(counts, known, expected_devices(inventory, strategy))

    def _running(self, *operands: Operand) -> tuple[Pod, ...]:
        return operand_pods(self._pods.objects.values(), operands)

    def _stopped_by(self, operands: Sequence[Operand]) -> tuple[Pod, ...]:
        return stopped_pods(self._pods.objects.values(), operands)


def with_role(operands: Sequence[Operand], role: Role) -> tuple[Operand, ...]:
    """Those of the operands that have the role."""
    return tuple(one for one in operands if one.role is role)
