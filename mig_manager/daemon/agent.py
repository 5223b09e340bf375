"""The loop: look at what the Node asks for, and run when the GPUs may not be what it asks for.

It is driven by what is so now, not by what has happened: a missed event costs nothing. Between runs it waits,
and sends no request beyond its watches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.drift import Drift, telling
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.log import lines_of_run, run_id
from mig_manager.daemon.offering import Offering
from mig_manager.daemon.reconfigure import Run
from mig_manager.daemon.report import PATIENCE, Report
from mig_manager.daemon.retries import Retries
from mig_manager.daemon.said import Said
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import (
    AGAIN_ANNOTATION,
    CONFIG_LABEL,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Outcome,
    Phase,
    State,
    Status,
    now,
)
from mig_manager.daemon.unlabelled import Unlabelled
from mig_manager.daemon.wish import Wish
from mig_manager.errors import MigManagerError, Reason


@dataclass(frozen=True, slots=True)
class _Handled:
    """What the last run was about."""

    node_uid: str
    layout: str
    """Empty: there was no label."""
    wish: Wish | None
    """None where the hardware is not known yet, so that no layout has a meaning."""
    failed: bool
    again: str | None
    """The annotation by which the same layout is asked for again, as it was when the run began."""


class Agent:
    """Watches over one Node until it is stopped."""

    def __init__(self, site: Site, node: Callable[[], NodeMeta | None]) -> None:
        """`node` gives the Node's metadata as last seen; None while there is no such Node."""
        self._site = site
        self._node = node
        self._retries = Retries(site.settings)
        self._drift = Drift(site)
        self._said = Said()
        self._unlabelled = Unlabelled(site)
        self._gently = False
        """Whether the run (and its retries) only repairs, so that it takes nothing from anybody."""
        self._handled: _Handled | None = None
        self._run: Run | None = None
        self._missed = ""
        self._offering = Offering(site)
        self._stopping = False

    def serve(self) -> None:
        """Work until `stop`. Raises ApiError if the Node cannot be followed any more."""
        while not self._stopping:
            self._site.signal.wait(
                lambda: self._stopping or self._due(),
                self._deadline(),
                every=self._drift.glance_s,
            )
            meta = self._node()
            if self._stopping:
                return
            if meta is None:
                # Whatever was planned, nobody asks for it any more.
                self._retries.begin_anew()
                self._drift.rest()
                self._offering.again = Deadline.never()
            elif self._due():
                self._act(meta)

    def stop(self) -> None:
        """End soon, leaving the node in order. Safe in any thread."""
        self._stopping = True
        if self._run is not None:
            self._run.stop()
        self._site.signal.notify()

    def _asked(self) -> str:
        """The layout that is asked for now; empty without Node, or without label and default."""
        meta = self._node()
        return self._wanted(meta) if meta is not None else ""

    def _wanted(self, meta: NodeMeta) -> str:
        return meta.labels.get(CONFIG_LABEL) or self._unlabelled.layout

    def _deadline(self) -> Deadline:
        """When something is due although nobody has changed anything."""
        meta = self._node()
        unlabelled = Deadline.never()
        if meta is not None and not self._wanted(meta):
            unlabelled = self._unlabelled.deadline(meta)
        said = Deadline.never() if meta is None else self._said.deadline(meta)
        all_of_them = (
            self._retries.deadline(),
            self._drift.deadline(),
            unlabelled,
            self._offering.again,
            said,
        )
        return Deadline(min(each.at for each in all_of_them))

    def _uid(self) -> str:
        """Of the Node as last seen; empty while there is none."""
        meta = self._node()
        return meta.uid if meta is not None else ""

    def _due(self) -> bool:
        """Whether there is something to do right now."""
        meta = self._node()
        if meta is None:
            return False
        return (
            self._is_new(meta)
            or self._retries.due
            or self._drift.due()
            or bool(self._said.missing(meta))
            or self._offering.due(meta)
            or (not self._wanted(meta) and self._unlabelled.due(meta))
        )

    def _is_new(self, meta: NodeMeta) -> bool:
        """Whether the Node asks for something else than the last run was about."""
        layout = self._wanted(meta)
        if not layout and self._unlabelled.undecided:
            return False
        handled, again = self._handled, meta.annotations.get(AGAIN_ANNOTATION)
        if handled is None or (handled.node_uid, handled.layout, handled.again) != (meta.uid, layout, again):
            ours = (STATE_LABEL in meta.labels, *(key in meta.annotations for key in _OURS))
            return bool(layout) or any(ours)
        if handled.wish is None:
            return False
        wish = self._site.wishes.of(layout)
        if handled.wish.lost(wish) and not handled.failed:
            self._keep(wish)
            return False
        self._missed = ""
        return wish != handled.wish

    def _keep(self, now: Wish) -> None:
        """The definition of the present layout is gone or broken: the GPUs stay, and it is said once."""
        why = now.problem or f"it is not in the layout file any more, and the {now.origin}'s differs"
        if why != self._missed:
            self._missed = why
            message = f"The GPUs keep layout {now.layout!r}, although: {why}"
            logger.warning("{}", message)
            self._site.events.record("Warning", "LayoutGone", message)

    def _act(self, meta: NodeMeta) -> None:
        layout = self._wanted(meta)
        new = self._is_new(meta)
        if new:
            self._retries.begin_anew()
            if self._handled is None:
                self._retries.go_on_from(Status.from_json(meta.annotations.get(STATUS_ANNOTATION)), layout)
            self._gently = False
        if new or self._retries.due:
            # Without a label there is no wish, but an unfinished run may have things to put back.
            if layout or JOURNAL_ANNOTATION in meta.annotations:
                self._reconfigure(meta, layout)
            if not self._stopping and self._node() is not None and not self._asked():
                self._let_go(meta)
        elif change := self._said.missing(meta):
            self._restore(change)
        elif self._drift.due():
            self._look(meta, layout)
        elif not layout and self._unlabelled.due(meta):
            self._unlabelled.attend(meta)
        if not self._stopping and self._offering.due(meta):
            self._offer(meta)

    def _reconfigure(self, meta: NodeMeta, layout: str) -> None:
        """One run, with its id on every log line."""
        journal = Journal.from_annotations(meta.annotations)
        started = now() if journal is None else journal.started_at
        run = run_id(meta.uid, started)
        self._site.events.run = run
        with lines_of_run(run, self._phase):
            self._carry_out(meta, layout, started, run)
        self._site.events.run = ""

    def _phase(self) -> str:
        """Where the run under way stands; empty for none. Safe in any thread."""
        run = self._run
        return run.phase if run is not None else ""

    def _carry_out(self, meta: NodeMeta, layout: str, started: str, name: str) -> None:
        """A run, and what is remembered of it; `name`: its id."""
        run: Run | None = None
        outcome: Outcome | None = None
        broken: Outcome | None = None
        self._drift.begin()
        self._retries.begin()
        self._site.progress.begin()
        try:
            self._site.permissions.refresh()
            report = Report(
                self._site.node,
                self._site.events,
                meta,
                layout=layout,
                started=started,
                run=name,
                attempt=self._retries.attempt_at,
                retry_at=self._retries.schedule,
                entered=self._site.progress.enter,
            )
            self._run = run = Run(self._site, report, self._asked, self._node, gently=self._gently)
            if self._stopping:
                run.stop()
            outcome = run.execute() if report.said or not self._stopping else None
            self._said.note(report.node.meta)
        except MigManagerError as error:
            logger.error("the run could not be brought to its end: {}", error.message)
            broken = Outcome.of(error, Phase.DONE)
        except Exception as error:  # noqa: BLE001 - a mistake of ours; what the journal holds is put back later
            logger.exception("unexpected error")
            mistake = MigManagerError(Reason.INTERRUPTED, f"Unexpected error: {error!r}.")
            broken = Outcome.of(mistake, Phase.DONE)
        finally:
            self._run = None
        if broken is not None:
            self._retries.schedule(broken, True)
        wish = run.wish if run is not None else None
        about = wish.layout if wish is not None else layout
        self._site.progress.end(outcome or broken, about)
        failed = outcome is None or (
            outcome.state is not State.SUCCESS and outcome.reason is not Reason.DRIFTED
        )
        if outcome is None:
            self._said.forget()
        # A success that has something to tell is one whose edit was held back: the GPUs are not what it says.
        if wish is not None and outcome is not None and outcome.reason in (None, Reason.DRIFTED):
            self._drift.watch(
                None if outcome.reason is None and outcome.message else wish.target, outcome.message
            )
        again = meta.annotations.get(AGAIN_ANNOTATION)
        self._handled = _Handled(meta.uid, about, wish, failed, again)

    def _look(self, meta: NodeMeta, layout: str) -> None:
        """Compare the GPUs with what was applied, and say or mend what differs."""
        finding = self._drift.look()
        if finding is None or self._stopping:
            return
        left = "They are left so (MIG_MANAGER_DRIFT=report)."
        if finding.inventory is None:
            left = "They are looked at again."
        elif finding.words and (finding.reloaded or self._site.settings.drift == "repair"):
            users = "" if finding.reloaded else self._drift.users(finding)
            if not users:
                why = "the driver was loaded anew" if finding.reloaded else "nobody loses anything by it"
                message = f"{layout} is applied again, since {why}: {finding.words}"
                logger.warning("{}", message)
                self._site.events.record("Warning", Reason.DRIFTED, message)
                self._gently = not finding.reloaded
                self._reconfigure(meta, layout)
                return
            left = f"They are left so, for a repair would take something from {users}."
        change, news = telling(meta, finding, left, self._drift.told)
        if change and not self._write(change):
            return  # The next look says it.
        if news is not None:
            self._drift.told = finding.words
        if news is not None and news.message is not None:
            logger.warning("{}", news.message)
            self._site.events.record("Warning", Reason.DRIFTED, news.message)
        elif news is not None:
            logger.info("{}: the GPUs are as the layout says again", layout)
            self._site.events.record(
                "Normal", "DriftGone", f"{layout}: the GPUs are as the layout says again"
            )

    def _offer(self, meta: NodeMeta) -> None:
        """Write down what this node can take now."""
        news = self._offering.news(meta, wished=bool(self._wanted(meta)))
        if news and not self._write(news):
            self._offering.failed()

    def _let_go(self, meta: NodeMeta) -> None:
        """The label is gone: the layout stays, and we say no more about it."""
        logger.info("label {} is gone: the layout stays, the state goes", CONFIG_LABEL)
        self._handled = _Handled(meta.uid, "", None, False, meta.annotations.get(AGAIN_ANNOTATION))
        self._drift.rest()
        self._said.forget()
        change = NodeChange(labels={STATE_LABEL: None}, annotations={STATUS_ANNOTATION: None})
        try:
            node = self._site.node.patch(change, deadline=Deadline.after(PATIENCE))
        except MigManagerError as error:
            logger.warning("the Node could not be changed: {}", error.message)
            self._retries.schedule(Outcome.of(error, Phase.DONE), True)
        else:
            if JOURNAL_ANNOTATION not in node.meta.annotations:
                self._retries.begin_anew()

    def _restore(self, change: NodeChange) -> None:
        """Somebody has removed what we say on the Node: say it again, and touch nothing else."""
        logger.info(
            "removed from the Node, and written again: {}", ", ".join((*change.labels, *change.annotations))
        )
        self._said.written_again()
        if not self._write(change):
            self._said.forget()

    def _write(self, change: NodeChange) -> bool:
        """Change what we say on the Node, and remember it; False where that fails."""
        try:
            node = self._site.node.patch(change, deadline=Deadline.after(PATIENCE), uid=self._uid())
        except MigManagerError as error:
            logger.warning("the Node could not be changed: {}", error.message)
            return False
        self._said.note(node.meta)
        return True


_OURS = (STATUS_ANNOTATION, JOURNAL_ANNOTATION)
