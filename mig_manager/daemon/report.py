"""What a run says on the Node while it goes on and at its end, and the journal it keeps there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeChange, NodeClient, newer
from mig_manager.cluster.objects import Node, NodeMeta
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.taints import without_taint
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.before import Before
from mig_manager.daemon.endings import tell_end
from mig_manager.daemon.gpus import facts_in, gpu_facts, gpus_annotation
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import (
    GPUS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Granted,
    Outcome,
    Phase,
    Reboot,
    State,
    Status,
    fitting,
    now,
)
from mig_manager.daemon.wish import Wish
from mig_manager.daemon.words import plan_in_words
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

PATIENCE = 60.0
"""Seconds that a change of the Node is tried again while the API server does not take it."""

_NAMED_PODS = 100
_NO_ROOM = 422
"""How the API server answers what it cannot store, such as more than 256 KiB of annotations, whoever wrote them."""
_CORDONED = "The node stays cordoned."
_PAUSED = "Not everything could be put back yet; that is tried again."


class Report:
    """One run on the Node: status, state label, journal, Events. Every step costs few requests."""

    def __init__(
        self,
        client: NodeClient,
        events: EventRecorder,
        meta: NodeMeta,
        *,
        layout: str,
        started: str | None = None,
        run: str | None = None,
        attempt: Callable[[Wish], int] = lambda wish: 1,
        retry_at: Callable[[Outcome, bool], str | None] = lambda outcome, unfinished: None,
        entered: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        """Begin a report in one request: the Node is told `pending`, or only read.

        It is only read where it speaks of this very layout already, or where the journal of an earlier run is
        on it. So the `success` of an earlier layout never stands beside the label of a new one, and a look that
        changes nothing leaves no trace. Raises ApiError.

        Args:
            meta: of the Node, as last seen.
            layout: what the label asks for.
            started: when the run began, RFC 3339; None: now.
            run: its id, as on its log lines.
            attempt: the number of this attempt at a wish; 1 for the first.
            retry_at: when a run with that outcome (and something left to put back) will be tried again, RFC
                3339; None for never.
            entered: is told each phase as the run comes to it.
        """
        self.wish = Wish(layout, None)
        """What the run is about; without a hash until that is known."""
        self._entered = entered
        self.phase = Phase.VALIDATING
        self.failed_in: Phase | None = None
        """Where the run failed, while it puts things back."""
        self.gpus: tuple[int, ...] = ()
        self.leaving: tuple[str, ...] = ()
        """The pods that have to go, `namespace/name`; said while they are drained."""
        self.before = Before()
        """What the Node said when the run began."""
        self.latest: Callable[[], Node | None] = lambda: None
        """The Node as a watch has it, where there is one."""
        self.patience = PATIENCE
        self.said = False
        """Whether this run has said anything yet, so that it has to say how it ends."""
        self.held_back: str | None = None
        """Why the GPUs stay as the Node says that they are, although their layout means something else now."""
        self._grant: Granted | None = None
        """What this run has applied."""
        self._client = client
        self._events = events
        self._attempt = attempt
        self._retry_at = retry_at
        self._started = started or now()
        self._run = run
        self._began = time.monotonic()
        self._told = ""
        self.journal: Journal | None = None
        self._journalled = False
        """Whether the API server has taken a journal since the run began, or the Node had one."""
        self.node = self._opened(meta)
        self.journal = Journal.from_annotations(self.node.meta.annotations)
        if self.journal is not None:
            self._started = self.journal.started_at
        elif JOURNAL_ANNOTATION in self.node.meta.annotations:
            words = "The journal on the Node cannot be read; what it recorded is not put back"
            cordon = (
                ". The cordon may be from that run: take it off by hand" if self.node.unschedulable else ""
            )
            logger.warning("{}{}", words, cordon)
            self.event("JournalUnreadable", f"{words}{cordon}.", warning=True)

    @property
    def node(self) -> Node:
        """The Node as last read, by us or by the answer to a change."""
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node
        held = self.journal is not None or JOURNAL_ANNOTATION in node.meta.annotations
        self._journalled = self._journalled or held

    @property
    def phase(self) -> Phase:
        """Where the run stands; what the Node says may lag behind."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        self._entered(phase)

    def _opened(self, meta: NodeMeta) -> Node:
        """The Node, with our first word on it; where there is no room for the whole, with the state alone."""
        try:
            return self._client.open(self._first_word, meta, deadline=self._deadline())
        except ApiError as error:
            if error.status != _NO_ROOM:
                raise
            change = _state_alone(State.PENDING)
            return self._client.patch(change, deadline=self._deadline(), uid=meta.uid)

    def _first_word(self, node: NodeMeta) -> NodeChange:
        """What to say on the Node as it is; nothing where it speaks of this layout already."""
        said = Status.from_json(node.annotations.get(STATUS_ANNOTATION))
        if said is not None and said.startedAt == self._started:
            return NodeChange()  # It was us: that answer was lost.
        unfinished = Journal.from_annotations(node.annotations) is not None
        self.before = Before(said, facts_in(node.annotations.get(GPUS_ANNOTATION, "")), unfinished)
        known = said is not None and said.layout == self.wish.layout and STATE_LABEL in node.labels
        if known or unfinished:
            return NodeChange()
        self.said = True
        return self._status(State.PENDING, Phase.VALIDATING)

    def say(self, phase: Phase, message: str | None = None, *, cordon: Journal | None = None) -> None:
        """Say where the run stands, and what it waits for.

        `cordon`: and cordon the node, if it is not any more, with that journal, which says that the cordon is ours.
        """
        self.phase = phase
        self.said = True
        change = self._status(State.PENDING, phase, message=None if message is None else fitting(message))
        if cordon is not None:
            change |= self.keep(cordon) | NodeChange(unschedulable=True)
        self._patch(change)

    def change(
        self,
        phase: Phase,
        compute: Callable[[Node], NodeChange],
        *,
        within: float | None = None,
        state: State = State.PENDING,
    ) -> None:
        """Say where the run stands, together with a change that depends on what the Node is at that moment.

        It is not read for that, unless somebody has changed it since it was last seen. `within`: seconds after
        which the change must not be made any more.
        """
        self.phase = phase
        self.said = True
        self.node = self._client.update(
            lambda node: compute(node) | self._status(state, phase),
            deadline=Deadline.after(self.patience if within is None else min(self.patience, within)),
            node=newer(self.node, self.latest()),
            uid=self.node.meta.uid,
        )

    def require_reserved(self) -> None:
        """Come back only if the Node, as the last answer shows it, is cordoned and has the journal.

        Raises:
            MigManagerError: ApiError; somebody has taken them off in the very request that brought them.
        """
        missing = [] if self.node.unschedulable else ["the cordon"]
        if JOURNAL_ANNOTATION not in self.node.meta.annotations:
            missing.append(f"the annotation {JOURNAL_ANNOTATION}")
        if missing:
            raise MigManagerError(
                Reason.API_ERROR,
                f"The Node was changed, but {' and '.join(missing)} did not stay on it, as where an admission webhook"
                " takes them off. No GPU is changed without them.",
            )

    def let_pods_in(self, taint: str) -> None:
        """Take the start-up taint with that key off; nothing is sent where the Node has none."""
        if without_taint(self.node, taint):
            self.node = self._client.update(
                lambda node: without_taint(node, taint),
                deadline=self._deadline(),
                node=newer(self.node, self.latest()),
                uid=self.node.meta.uid,
            )
            logger.info("taint {} taken off", taint)

    def tell_plan(self, plan: NodePlan) -> None:
        """Log what the run is going to do, unless it has said so already."""
        words = plan_in_words(plan)
        if words == self._told:
            return
        if self._told:
            logger.info("planned anew: {}", words)
        else:
            logger.info("{} is wanted (attempt {}): {}", self.wish.layout, self._attempt(self.wish), words)
        self._told = words

    def journal_on(self, node: Node) -> Journal | None:
        """The journal of this run. The one on the Node wins: a request whose answer was lost may have written it."""
        return Journal.from_annotations(node.meta.annotations) or self.journal

    def amend(self, node: Node, change: Callable[[Journal], Journal]) -> NodeChange:
        """The journal with a change in it, as a change of the Node; there is a journal."""
        journal = self.journal_on(node)
        assert journal is not None
        return self.keep(change(journal))

    def cordon(self, node: Node, journal: Journal) -> NodeChange:
        """The cordon, with that journal. Somebody may have taken off one that was not ours; this one is."""
        ours = journal.cordoned or not node.unschedulable
        return self.keep(replace(journal, cordoned=ours)) | NodeChange(unschedulable=True)

    def keep(self, journal: Journal) -> NodeChange:
        """Take a journal as the present one; gives the change that writes it."""
        self.journal = journal
        return NodeChange(annotations={JOURNAL_ANNOTATION: journal.to_json()})

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event on the Node."""
        self._events.record("Warning" if warning else "Normal", reason, message)

    def conclude(
        self,
        outcome: Outcome,
        inventory: Inventory | None,
        *,
        uncordon: bool = True,
        superseded: bool = False,
        let_go: bool = False,
    ) -> None:
        """Say how the run ended, in one PATCH: state, status, uncordon, journal gone. And one Event, one log line.

        The journal stays where it still holds something to put back. Nothing is sent when nothing is new.
        A success is not said where the label asks for another layout already (`superseded`). Where nobody asks for any
        (`let_go`), it is no failure that the run has ended, and no attempt follows unless something is left.
        """
        if outcome.message is not None:
            outcome = replace(outcome, message=fitting(outcome.message))
        self._forget_what_never_was()
        journal = self.journal
        rest = None if journal is None else journal.rest(inventory, uncordon=uncordon)
        unfinished = rest is not None
        if unfinished and outcome.message is not None:
            note = _PAUSED if uncordon else _CORDONED
            outcome = replace(outcome, message=f"{outcome.message.removesuffix(note).rstrip()} {note}")
        # After a failed rollback only what does not touch the GPUs is tried again; the cordon may stay for good.
        owed = rest is not None and bool(rest.services or rest.operands)
        again = owed if outcome.reason is Reason.ROLLBACK_FAILED else unfinished
        let_go = let_go and not unfinished
        retry = None if let_go else self._retry_at(outcome, again)
        state = State.PENDING if superseded and outcome.state is State.SUCCESS else outcome.state
        facts = {} if inventory is None else {GPUS_ANNOTATION: gpus_annotation(inventory)}
        if state is State.SUCCESS and inventory is not None:
            self._grant = Granted.of(self._means.hash, gpu_facts(inventory))
        undone = NodeChange()
        unreadable = journal is None and JOURNAL_ANNOTATION in self.node.meta.annotations
        if rest is not journal or unreadable:
            undone = NodeChange(
                annotations={JOURNAL_ANNOTATION: rest.to_json() if rest is not None else None},
                unschedulable=False if journal is not None and journal.cordoned else None,
            )
        if retry is None and self._says_so_already(outcome, facts):
            return
        self._patch_what_fits(
            self._status(state, outcome.phase, outcome, retry) | NodeChange(annotations=facts) | undone,
            self._status(state, outcome.phase, replace(outcome, message=None), retry) | undone,
            _state_alone(state) | undone,
        )
        self.phase = outcome.phase
        tell_end(
            self.event,
            self.wish.layout or "no layout",
            outcome,
            held_back=self.held_back is not None,
            let_go=let_go,
            changed=bool(self._told),
            uncordoned=undone.unschedulable is False,
            after_s=time.monotonic() - self._began,
            retry=retry,
        )

    def _forget_what_never_was(self) -> None:
        """A journal that the API server has never taken was refused, and with it the cordon that it speaks of."""
        if self.journal is not None and not self._journalled:
            node = self._client.get(deadline=self._deadline())
            self.journal = Journal.from_annotations(node.meta.annotations)
            self.node = node

    def _patch(self, change: NodeChange) -> None:
        self.node = self._client.patch(change, deadline=self._deadline(), uid=self.node.meta.uid)

    def _patch_what_fits(self, *changes: NodeChange) -> None:
        """Carry out the first of these changes that the Node has room for."""
        *larger, smallest = changes
        for change in larger:
            try:
                self._patch(change)
            except ApiError as error:
                if error.status != _NO_ROOM:
                    raise
                logger.warning("{}", error.message)
            else:
                return
        self._patch(smallest)

    def _says_so_already(self, outcome: Outcome, facts: dict[str, str]) -> bool:
        annotations = self.node.meta.annotations
        said = Status.from_json(annotations.get(STATUS_ANNOTATION))
        return (
            said is not None
            and (said.layout, said.hash, said.state, said.reason, said.message)
            == (self.wish.layout, self._means.hash, outcome.state, outcome.reason, outcome.message)
            and self.node.meta.labels.get(STATE_LABEL) == outcome.state
            and JOURNAL_ANNOTATION not in annotations
            and all(annotations.get(key) == value for key, value in facts.items())
        )

    @property
    def _means(self) -> Wish:
        """What the Node speaks of: the wish, or what it was before an edit that is held back."""
        said, granted = self.before.status, self.before.granted(self.wish)
        if self.held_back and said is not None and granted is not None:
            return Wish(said.layout, granted.hash, origin=said.origin)
        return self.wish

    @property
    def reboot(self) -> Reboot | None:
        """The reboot that was asked for this very wish, now or in an earlier run; None for none."""
        held = self.journal.reboot if self.journal is not None else None
        for asked in (held, self.before.reboot):
            # Without a hash the wish is not known yet, and may be the same.
            if asked and asked.layout == self.wish.layout and self.wish.hash in (None, asked.hash):
                return asked
        return None

    def _status(
        self,
        state: State,
        phase: Phase,
        outcome: Outcome | None = None,
        retry: str | None = None,
        message: str | None = None,
    ) -> NodeChange:
        status = Status(
            layout=self.wish.layout,
            hash=self._means.hash,
            origin=self._means.origin,
            state=state,
            phase=phase,
            reason=outcome.reason if outcome else None,
            message=outcome.message if outcome else message,
            startedAt=self._started,
            finishedAt=now() if outcome else None,
            attempt=self._attempt(self.wish),
            nextRetryAt=retry,
            gpus=self.gpus,
            leaving=self.leaving[:_NAMED_PODS] if phase is Phase.DRAINING and outcome is None else (),
            edited=(self.before.edited(self.wish) and state is not State.SUCCESS) or None,
            reboot=self.reboot,
            granted=self._grant or self.before.granted(self.wish),
            run=self._run,
        )
        return NodeChange(labels={STATE_LABEL: state}, annotations={STATUS_ANNOTATION: status.to_json()})

    def _deadline(self) -> Deadline:
        return Deadline.after(self.patience)


def _state_alone(state: State) -> NodeChange:
    """What the Node has room for in any case."""
    return NodeChange(labels={STATE_LABEL: state})
