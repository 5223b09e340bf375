"""A Node without the label: a default layout where its GPUs can take one, and else no start-up taint any more."""

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


class Unlabelled:
    """What the daemon does for a Node that asks for nothing. Nothing is said on such a Node."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._let_in = ""
        """The uid of the Node whose taint was seen to."""
        self._next = 0.0
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
        return self._open(meta) and time.monotonic() >= self._next

    def deadline(self, meta: NodeMeta | None) -> Deadline:
        """When that will be the case; never, if nothing is left to do."""
        return Deadline(self._next if meta is not None and self._open(meta) else math.inf)

    def attend(self, meta: NodeMeta) -> None:
        """Do what is due. What fails is said once and tried again."""
        self._next = time.monotonic() + self._site.settings.driver_retry
        try:
            if self.undecided:
                self._look()
            else:
                self._let_pods_in(meta)
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
        else:
            logger.info("no GPU of this node has MIG: nothing to do without a label")

    def _let_pods_in(self, meta: NodeMeta) -> None:
        key, client, deadline = self._site.settings.startup_taint, self._site.node, Deadline.after(PATIENCE)
        node = client.get(deadline=deadline)
        if without_taint(node, key):
            client.update(lambda now: without_taint(now, key), deadline=deadline, node=node, uid=meta.uid)
            logger.info("taint {} taken off: nothing is asked of the GPUs", key)
        self._let_in = meta.uid
