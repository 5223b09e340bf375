"""The loop: look at what the Node asks for, and run when the GPUs may not be what it asks for.

It is driven by what is so now, not by what has happened: a missed event costs nothing. Between runs it waits,
and sends no request beyond its watches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.reconfigure import Run
from mig_manager.daemon.report import PATIENCE, Report
from mig_manager.daemon.retries import Retries
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    LAYOUTS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Outcome,
    Phase,
    State,
)
from mig_manager.daemon.wish import Wish
from mig_manager.errors import MigManagerError


@dataclass(frozen=True, slots=True)
class _Handled:
    """What the last run was about."""

    node_uid: str
    layout: str
    wish: Wish | None
    """None where the hardware is not known yet, so that no layout has a meaning."""
    failed: bool


class Agent:
    """Watches over one Node until it is stopped."""

    def __init__(self, site: Site, node: Callable[[], NodeMeta | None]) -> None:
        """`node` gives the Node's metadata as last seen; None while there is no such Node."""
        self._site = site
        self._node = node
        self._retries = Retries(site.settings)
        self._handled: _Handled | None = None
        self._run: Run | None = None
        self._missed = ""
        self._let_go_at = ""
        self._published = ("", "")
        self._stopping = False

    def serve(self) -> None:
        """Work until `stop`."""
        while True:
            self._site.signal.wait(lambda: self._stopping or self._due(), self._retries.deadline())
            if self._stopping:
                return
            if self._due():
                self._act()

    def stop(self) -> None:
        """End soon, leaving the node in order. Safe in any thread."""
        self._stopping = True
        if self._run is not None:
            self._run.stop()
        self._site.signal.notify()

    def _asked(self) -> str:
        """The layout that the label names now; empty without Node or label."""
        meta = self._node()
        return meta.labels.get(CONFIG_LABEL, "") if meta is not None else ""

    def _due(self) -> bool:
        """Whether there is something to do right now."""
        meta = self._node()
        if meta is None:
            return False
        layout = self._asked()
        if layout:
            return self._is_new(meta, layout) or self._retries.due
        if meta.resource_version == self._let_go_at:
            return False
        unfinished = JOURNAL_ANNOTATION in meta.annotations and (self._handled is None or self._retries.due)
        return unfinished or STATE_LABEL in meta.labels or STATUS_ANNOTATION in meta.annotations

    def _is_new(self, meta: NodeMeta, layout: str) -> bool:
        handled = self._handled
        if handled is None or (handled.node_uid, handled.layout) != (meta.uid, layout):
            return True
        if handled.wish is None:
            return False
        wish = self._site.wishes.of(layout)
        if wish.target is None and not handled.failed:
            self._keep(wish)
            return False
        return wish != handled.wish

    def _keep(self, wish: Wish) -> None:
        """The definition of the present layout is gone or broken: the GPUs stay, and it is said once."""
        if wish.problem is not None and wish.problem != self._missed:
            self._missed = wish.problem
            message = f"The GPUs keep layout {wish.layout!r}, although: {wish.problem}"
            logger.warning(message)
            self._site.events.record("Warning", "LayoutGone", message)

    def _act(self) -> None:
        meta = self._node()
        if meta is None:
            return
        layout = self._asked()
        if layout:
            if self._is_new(meta, layout):
                self._retries.begin_anew()
            self._reconfigure(meta, layout)
        elif JOURNAL_ANNOTATION in meta.annotations:
            # Nothing is asked for any more, but an unfinished run has things to put back.
            self._reconfigure(meta, layout)
        if not self._stopping and not self._asked():
            self._let_go(meta)

    def _reconfigure(self, meta: NodeMeta, layout: str) -> None:
        """One run, and what is remembered of it."""
        run: Run | None = None
        outcome: Outcome | None = None
        try:
            node = self._site.node.get(deadline=Deadline.after(PATIENCE))
            report = Report(
                self._site.node,
                self._site.events,
                node,
                layout=layout,
                attempt=self._retries.attempt,
                retry_at=self._retries.schedule,
            )
            self._run = run = Run(self._site, report, self._asked)
            outcome = None if self._stopping else run.execute()
        except MigManagerError as error:
            logger.error("the run could not be brought to its end: {}", error.message)
            self._retries.schedule(Outcome.of(error, Phase.DONE))
        finally:
            self._run = None
        wish = run.wish if run is not None else None
        failed = outcome is None or outcome.state is not State.SUCCESS
        self._handled = _Handled(meta.uid, wish.layout if wish is not None else layout, wish, failed)
        if outcome is not None:
            self._publish_layouts()

    def _publish_layouts(self) -> None:
        """Write down which layouts this node can take now, where that is news."""
        names = json.dumps(self._site.wishes.feasible())
        meta = self._node()
        if meta is None or (meta.uid, names) == self._published:
            return
        if meta.annotations.get(LAYOUTS_ANNOTATION) != names:
            self._patch(NodeChange(annotations={LAYOUTS_ANNOTATION: names}))
        self._published = (meta.uid, names)

    def _let_go(self, meta: NodeMeta) -> None:
        """The label is gone: the layout stays, and we say no more about it."""
        logger.info("label {} is gone: the layout stays, the state goes", CONFIG_LABEL)
        self._let_go_at = meta.resource_version
        self._handled = None
        self._patch(NodeChange(labels={STATE_LABEL: None}, annotations={STATUS_ANNOTATION: None}))

    def _patch(self, change: NodeChange) -> None:
        try:
            self._site.node.patch(change, deadline=Deadline.after(PATIENCE))
        except MigManagerError as error:
            logger.warning("the Node could not be changed: {}", error.message)
