"""A Node without the label: a default layout where its GPUs can take one, and else no start-up taint any more.

Its GPUs, and which layouts they can take, are told there too, so that whoever is about to set the label can see it.
"""

from __future__ import annotations

import math
import time

from loguru import logger

from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.taints import without_taint
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.report import PATIENCE
from mig_manager.daemon.site import Site
from mig_manager.errors import MigManagerError

_FIRST_LOOK_S = 5.0
"""Seconds after the start in which a label may come, which would have the GPUs looked at anyway."""
_LONGEST_RETRY_S = 600.0


class Unlabelled:
    """What the daemon does for a Node that asks for nothing. No state is said on such a Node."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._let_in = ""
        """The uid of the Node whose taint was seen to."""
        self._next = 0.0
        self._look_at = time.monotonic() + _FIRST_LOOK_S
        self._retry_s = site.settings.driver_retry
        self._problem = ""

    @property
    def layout(self) -> str:
        """The default layout; empty where there is none, or none of the GPUs has MIG, as far as is known."""
        return self._site.settings.default_layout if self._site.wishes.mig_capable else ""

    @property
    def undecided(self) -> bool:
        """Whether the GPUs must be looked at, to know if the default layout is for them."""
        return bool(self._site.settings.default_layout) and not self._site.wishes.know_hardware

    def due(self, meta: NodeMeta) -> bool:
        """Whether there is something to do now, if the Node has no label."""
        return time.monotonic() >= self.deadline(meta).at

    def deadline(self, meta: NodeMeta | None) -> Deadline:
        """When that will be the case; never, if nothing is left to do."""
        if meta is None:
            return Deadline.never()
        if self._open(meta):
            return Deadline(self._next)
        return Deadline(math.inf if self._site.wishes.know_hardware else max(self._next, self._look_at))

    def attend(self, meta: NodeMeta) -> None:
        """Do what is due. What fails is said once and tried again."""
        self._next = time.monotonic() + self._site.settings.driver_retry
        try:
            if self.undecided:
                self._look()
            elif self._open(meta):
                self._let_pods_in(meta)
            else:
                self._next = time.monotonic() + self._retry_s
                self._retry_s = min(2 * self._retry_s, max(_LONGEST_RETRY_S, self._retry_s))
                self._look()
        except MigManagerError as error:
            if error.message != self._problem:
                logger.warning("this node has no label, and cannot be seen to yet: {}", error.message)
            self._problem = error.message
        else:
            self._next = 0.0

    def _open(self, meta: NodeMeta) -> bool:
        return self.undecided or (not self.layout and self._let_in != meta.uid)

    def _look(self) -> None:
        with self._site.new_worker() as worker:
            self._site.wishes.learn(worker.inventory())
        if self.layout:
            logger.info("this node has no label: the default layout is {}", self.layout)
        elif not self._site.wishes.mig_capable:
            logger.info("no GPU of this node has MIG: nothing to do without a label")

    def _let_pods_in(self, meta: NodeMeta) -> None:
        key, client, deadline = self._site.settings.startup_taint, self._site.node, Deadline.after(PATIENCE)
        node = client.get(deadline=deadline)
        if without_taint(node, key):
            client.update(lambda now: without_taint(now, key), deadline=deadline, node=node, uid=meta.uid)
            logger.info("taint {} taken off: nothing is asked of the GPUs", key)
        self._let_in = meta.uid
