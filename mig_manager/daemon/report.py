"""What a run says on the Node while it goes on and at its end, and the journal it keeps there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.objects import Node
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import (
    GPUS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Outcome,
    Phase,
    State,
    Status,
    gpus_annotation,
    now,
)
from mig_manager.planning.plan import GpuPlan, NodePlan
from mig_manager.planning.state import Inventory

PATIENCE = 60.0
"""Seconds that a change of the Node is tried again while the API server does not take it."""


class Report:
    """One run on the Node: status, state label, journal, Events. Every step costs one request at most."""

    def __init__(
        self,
        client: NodeClient,
        events: EventRecorder,
        node: Node,
        *,
        layout: str,
        attempt: int = 1,
        retry_at: Callable[[Outcome], str | None] = lambda outcome: None,
    ) -> None:
        """Begin a report on the Node as read; nothing is sent yet.

        Args:
            layout: what the label asks for.
            attempt: 1 for the first attempt at this wish.
            retry_at: when a run with that outcome will be tried again, RFC 3339; None for never.
        """
        self.node = node
        self.layout = layout
        self.hash: str | None = None
        self.phase = Phase.VALIDATING
        self.gpus: tuple[int, ...] = ()
        self.journal = Journal.from_annotations(node.meta.annotations)
        self.patience = PATIENCE
        self._client = client
        self._events = events
        self._attempt = attempt
        self._retry_at = retry_at
        self._started = self.journal.started_at if self.journal else now()
        self._before = Status.from_json(node.meta.annotations.get(STATUS_ANNOTATION))

    def announce(self) -> None:
        """Say `pending`, unless the Node already speaks of this very layout.

        So the `success` of an earlier layout never stands beside the label of a new one, and a look that
        changes nothing leaves no trace.
        """
        known = self._before is not None and self._before.layout == self.layout
        if not known or STATE_LABEL not in self.node.meta.labels:
            self.say(Phase.VALIDATING)

    def say(self, phase: Phase, change: NodeChange | None = None) -> None:
        """Say where the run stands, together with a change of the Node, in one PATCH."""
        self.phase = phase
        self._patch(self._status(State.PENDING, phase) | (change or NodeChange()))

    def update(self, phase: Phase, compute: Callable[[Node], NodeChange]) -> None:
        """As `say`, where the change depends on what the Node is at that moment."""
        self.phase = phase
        self.node = self._client.update(
            lambda node: self._status(State.PENDING, phase) | compute(node),
            deadline=Deadline.after(self.patience),
        )

    def keep(self, journal: Journal) -> NodeChange:
        """Take a journal as the present one; gives the change that writes it."""
        self.journal = journal
        return NodeChange(annotations={JOURNAL_ANNOTATION: journal.to_json()})

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event on the Node."""
        self._events.record("Warning" if warning else "Normal", reason, message)

    def conclude(self, outcome: Outcome, inventory: Inventory | None, *, uncordon: bool = True) -> None:
        """Say how the run ended, in one PATCH: state, status, uncordon, journal gone. And one Event, one log line.

        The journal stays where it still holds something to put back. Nothing is sent when nothing is new.
        """
        if not uncordon and self.journal is not None and self.journal.cordoned:
            outcome = replace(outcome, message=f"{outcome.message} The node stays cordoned.")
        retry = self._retry_at(outcome)
        change = self._status(outcome.state, outcome.phase, outcome, retry)
        facts = {} if inventory is None else {GPUS_ANNOTATION: gpus_annotation(inventory)}
        change |= NodeChange(annotations=facts)
        if self.journal is not None and not self.journal.operands and (uncordon or not self.journal.cordoned):
            change |= NodeChange(
                annotations={JOURNAL_ANNOTATION: None},
                unschedulable=False if self.journal.cordoned else None,
            )
            self.journal = None
        if self._says_so_already(outcome, facts):
            return
        self._patch(change)
        self._tell(outcome, retry)

    def _tell(self, outcome: Outcome, retry: str | None) -> None:
        if outcome.reason is None:
            logger.success("{}: applied", self.layout)
            self.event("Applied", f"{self.layout}: the GPUs are as the layout says")
            return
        words = f"{self.layout}: {outcome.message}"
        if retry is not None:
            words += f" Next attempt at {retry}."
        logger.error("{} in phase {}: {}", outcome.reason, outcome.phase, words)
        self.event(outcome.reason, words, warning=True)

    def _says_so_already(self, outcome: Outcome, facts: dict[str, str]) -> bool:
        before = Status.from_json(self.node.meta.annotations.get(STATUS_ANNOTATION))
        return (
            before is not None
            and (before.layout, before.hash, before.state, before.reason, before.message)
            == (self.layout, self.hash, outcome.state, outcome.reason, outcome.message)
            and outcome.state is State.SUCCESS
            and self.node.meta.labels.get(STATE_LABEL) == outcome.state
            and JOURNAL_ANNOTATION not in self.node.meta.annotations
            and all(self.node.meta.annotations.get(key) == value for key, value in facts.items())
        )

    def _status(
        self, state: State, phase: Phase, outcome: Outcome | None = None, retry: str | None = None
    ) -> NodeChange:
        status = Status(
            layout=self.layout,
            hash=self.hash,
            state=state,
            phase=phase,
            reason=outcome.reason if outcome else None,
            message=outcome.message if outcome else None,
            startedAt=self._started,
            finishedAt=now() if outcome else None,
            attempt=self._attempt,
            nextRetryAt=retry,
            gpus=self.gpus,
        )
        return NodeChange(labels={STATE_LABEL: state}, annotations={STATUS_ANNOTATION: status.to_json()})

    def _patch(self, change: NodeChange) -> None:
        self.node = self._client.patch(change, deadline=Deadline.after(self.patience))


def plan_in_words(plan: NodePlan) -> str:
    """A plan in a line: `GPU 0 keeps 2, destroys 1x 3g.40gb, creates 3x 1g.10gb; GPU 1: nothing to do`."""
    return "; ".join(_gpu_in_words(gpu) for gpu in plan.gpus)


def _gpu_in_words(plan: GpuPlan) -> str:
    if not plan.changes:
        return f"GPU {plan.gpu.index}: nothing to do"
    parts = []
    if plan.mig.current != plan.mig.target:
        parts.append(f"turns MIG {'on' if plan.mig.target else 'off'}{' (reset)' if plan.mig.reset else ''}")
    if plan.keep:
        parts.append(f"keeps {len(plan.keep)}")
    if plan.destroy:
        parts.append("destroys " + _counted([str(one.profile) for one in plan.destroy]))
    if plan.create:
        parts.append("creates " + _counted([str(one.profile) for one in plan.create]))
    if any(kept.create or kept.destroy for kept in plan.keep):
        parts.append("changes compute instances")
    return f"GPU {plan.gpu.index} {', '.join(parts) or 'sets its pending mode'}"


def _counted(names: list[str]) -> str:
    return " + ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
