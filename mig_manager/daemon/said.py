"""What the daemon has said on the Node, to say it again where somebody has taken it away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta, older
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.status import (
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    LAYOUTS_FROM_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
)

_ANNOTATIONS = (STATUS_ANNOTATION, GPUS_ANNOTATION, LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 600.0
_CALM_S = 3600.0
"""So long after the last time that something was written again, it is done at once as if it were the first."""


class Said:
    """State label and annotations as last written on one Node.

    What goes again and again is written again ever less often: an admission webhook, or another controller, may take
    it away at every change, and would have us change the Node without end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again = -math.inf
        """When something was written again last."""
        self._pause_s = 0.0
        self._uid = ""
        self._version = ""
        self._labels: dict[str, str] = {}
        self._annotations: dict[str, str] = {}

    def note(self, meta: NodeMeta) -> None:
        """Take note of what stands on the Node, as read or as the answer to a change."""
        if meta.uid != self._uid:
            self.forget()
        self._uid, self._version = meta.uid, meta.resource_version
        self._labels |= _ours(meta.labels, (STATE_LABEL,))
        self._annotations |= _ours(meta.annotations, _ANNOTATIONS)

    def forget(self) -> None:
        """Say nothing again."""
        self._labels, self._annotations = {}, {}

    def missing(self, meta: NodeMeta) -> NodeChange:
        """What has gone from the Node and has to be written again now; empty as a rule.

        A `meta` from before the last change of ours, as a watch may still show it, lacks nothing.
        """
        return self._gone(meta) if self._clock() >= self._again + self._pause_s else NodeChange()

    def deadline(self, meta: NodeMeta) -> Deadline:
        """When what has gone has to be written again; never, where nothing has."""
        return Deadline(self._again + self._pause_s) if self._gone(meta) else Deadline.never()

    def written_again(self) -> None:
        """Take note that what was missing is written again now."""
        now = self._clock()
        calm = now - self._again >= _CALM_S
        self._pause_s = _FIRST_PAUSE_S if calm else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._again = now

    def _gone(self, meta: NodeMeta) -> NodeChange:
        if meta.uid != self._uid or older(meta.resource_version, self._version):
            return NodeChange()
        return NodeChange(
            labels={key: value for key, value in self._labels.items() if key not in meta.labels},
            annotations={
                key: value for key, value in self._annotations.items() if key not in meta.annotations
            },
        )


def _ours(values: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: values[key] for key in keys if key in values}
