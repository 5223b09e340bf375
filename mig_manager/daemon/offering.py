"""What a node can take: its possible layouts, where they are written, and its GPUs where no run tells them."""

from __future__ import annotations

import json

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.gpus import gpus_annotation
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import GPUS_ANNOTATION, LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION


class Offering:
    """The annotations on one Node, written anew when layout files or GPUs are others."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._told: tuple[str, object] = ("", None)
        """The Node, and the sources that what it says was made of."""
        self.again = Deadline.never()
        """When what could not be written is tried again."""

    def due(self, meta: NodeMeta) -> bool:
        """Whether the names of the possible layouts may be other than those last written down."""
        wishes = self._site.wishes
        news = self._told != (meta.uid, wishes.sources())
        return wishes.know_hardware and (news or self.again.passed)

    def news(self, meta: NodeMeta, *, wished: bool) -> NodeChange:
        """What has to be written; empty for nothing. `wished`: it asks for a layout, so that runs tell its GPUs."""
        wishes = self._site.wishes
        self._told = (meta.uid, wishes.sources())
        self.again = Deadline.never()
        texts = {
            LAYOUTS_ANNOTATION: json.dumps(wishes.feasible()),
            LAYOUTS_FROM_ANNOTATION: LayoutsFrom.of(self._site.settings).to_json(),
        }
        # A run has written them itself by now, and `meta` is from before it.
        ran = wished or JOURNAL_ANNOTATION in meta.annotations
        if not ran and GPUS_ANNOTATION not in meta.annotations:
            texts[GPUS_ANNOTATION] = gpus_annotation(wishes.inventory)
        return NodeChange(
            annotations={key: text for key, text in texts.items() if meta.annotations.get(key) != text}
        )

    def failed(self) -> None:
        """It could not be written."""
        self.again = Deadline.after(self._site.settings.retry_longest)
