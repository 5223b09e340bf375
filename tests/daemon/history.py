"""Everything that a Node has said, version by version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.objects import Change, Store
from mig_manager.simulation.resources import NODES


@dataclass(frozen=True, slots=True)
class Version:
    """The Node after one change."""

    uid: str
    cordoned: bool
    paused: bool
    """Whether any deploy label said so."""
    wanted: str | None
    state: str | None
    layout: str | None
    """The layout that the status speaks of."""
    phase: str | None
    journal: str | None
    taints: frozenset[str]
    """Keys."""


class History:
    """The versions of one Node since it was last forgotten."""

    def __init__(self, store: Store) -> None:
        self.versions: list[Version] = []
        self.leave: Callable[[], None] = store.subscribe(self._take)

    def forget(self) -> None:
        self.versions.clear()

    @property
    def touched(self) -> bool:
        """Whether the node was ever cordoned, or a GPU client paused."""
        return any(each.cordoned or each.paused for each in self.versions)

    @property
    def phases(self) -> list[str]:
        """The phases in the order in which they were said, each once in a row."""
        said = [each.phase for each in self.versions if each.phase]
        return [phase for at, phase in enumerate(said) if at == 0 or said[at - 1] != phase]

    def _take(self, change: Change) -> None:
        if change.resource != NODES:
            return
        meta = change.object["metadata"]
        labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
        status = json.loads(annotations.get("mig-manager/status", "{}"))
        self.versions.append(
            Version(
                uid=meta["uid"],
                cordoned=bool(change.object["spec"].get("unschedulable")),
                paused=PAUSED in labels.values(),
                wanted=labels.get("nvidia.com/mig.config"),
                state=labels.get("nvidia.com/mig.config.state"),
                layout=status.get("layout"),
                phase=status.get("phase"),
                journal=annotations.get("mig-manager/journal"),
                taints=frozenset(each["key"] for each in change.object["spec"].get("taints", [])),
            )
        )
