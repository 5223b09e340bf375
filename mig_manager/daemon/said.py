"""What the daemon has said on the Node, to say it again where somebody has taken it away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta
from mig_manager.daemon.status import (
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    LAYOUTS_FROM_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
)

_ANNOTATIONS = (STATUS_ANNOTATION, GPUS_ANNOTATION, LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION)


class Said:
    """State label and annotations as last written on one Node."""

    def __init__(self) -> None:
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
        """What has gone from the Node and has to be written again; empty as a rule.

        A `meta` from before the last change of ours, as a watch may still show it, lacks nothing.
        """
        if meta.uid != self._uid or _older(meta.resource_version, self._version):
            return NodeChange()
        return NodeChange(
            labels={key: value for key, value in self._labels.items() if key not in meta.labels},
            annotations={
                key: value for key, value in self._annotations.items() if key not in meta.annotations
            },
        )


def _ours(values: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: values[key] for key in keys if key in values}


def _older(version: str, than: str) -> bool:
    """Whether a resourceVersion is that of an earlier state; API servers count them up."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
