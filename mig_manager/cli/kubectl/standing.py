"""How a Node stands: what it was asked for, what it says, how far a run is, and what its GPUs are used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.objects import JsonObject, Pod, parse_time
from mig_manager.cluster.pods import is_gpu_resource
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.scheduling import extended_requests
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.status import CONFIG_LABEL, Phase, State, Status

_PRODUCT_LABEL = "nvidia.com/gpu.product"
_COUNT_LABEL = "nvidia.com/gpu.count"
_UNDER_WAY = (State.PENDING, State.REBOOTING)
_UNTOUCHED = tuple(Phase)[: tuple(Phase).index(Phase.APPLYING) + 1]
"""The phases in which no GPU has its new layout yet."""


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod, and what it holds."""

    name: str
    """`namespace/name`."""
    node: str
    """Empty while it is not bound to one."""
    finished: bool
    resources: Mapping[str, int]
    """GPU resources with their amounts."""

    @classmethod
    def from_json(cls, obj: JsonObject) -> PodUse:
        """From a Pod."""
        pod = Pod.from_json(obj)
        gpus = {name: count for name, count in extended_requests(obj).items() if is_gpu_resource(name)}
        return cls(str(pod), pod.node, pod.finished, gpus)


@dataclass(frozen=True, slots=True)
class Use:
    """A GPU resource of a node."""

    allocatable: int
    used: int | None
    """None where the pods cannot be read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A Node, and the pods on it."""

    node: GpuNode
    pods: tuple[PodUse, ...] | None
    """Those that have not finished; None where they cannot be read."""

    @property
    def name(self) -> str:
        """The Node's."""
        return self.node.name

    @property
    def said(self) -> Status | None:
        """The status annotation."""
        return self.node.status

    @property
    def models(self) -> Mapping[str, int]:
        """GPUs by model; without mig-manager's word as feature discovery labels them; empty where nobody tells."""
        found = Counter(str(gpu.get("model", "")) for gpu in self.node.gpus if isinstance(gpu, dict))
        if found:
            return found
        labels = self.node.node.meta.labels
        product, count = labels.get(_PRODUCT_LABEL, ""), labels.get(_COUNT_LABEL, "")
        return {product.partition("-MIG-")[0]: int(count)} if product and count.isdecimal() else {}

    @property
    def state(self) -> str:
        """`pending`, `success`, `failed`, `rebooting`; empty where nothing is said."""
        return self.node.state or (str(self.said.state) if self.said is not None else "")

    @property
    def as_asked(self) -> bool:
        """Whether the node has the layout that its label asks for; so has one whose label asks for nothing."""
        said = self.said
        if not self.node.wanted and said is None:
            return True
        held = said is not None and said.state is State.SUCCESS and said.layout in ("", self.node.wanted)
        # Without a label a default layout of the daemon's serves.
        return self.state == State.SUCCESS and (held or not self.node.wanted)

    @property
    def under_way(self) -> bool:
        """Whether a run goes on."""
        return self.said is not None and self.said.state in _UNDER_WAY

    @property
    def since(self) -> datetime | None:
        """When the state became what it is; None where nothing is said."""
        said = self.said
        if said is None:
            return None
        try:
            return parse_time(said.startedAt if self.under_way else said.finishedAt or said.startedAt)
        except ValueError:
            return None

    @property
    def message(self) -> str:
        """What there is to know, on one line; empty where all is well."""
        said, wanted = self.said, self.node.wanted
        if said is None:
            return (
                f"mig-manager has said nothing about {wanted} yet" if wanted else f"no label {CONFIG_LABEL}"
            )
        words = " ".join((said.message or "").split())
        if said.reason is not None:
            words = f"{said.reason}: {words}" if words else str(said.reason)
        if said.nextRetryAt is not None and said.state is State.FAILED:
            words += f" Next attempt at {said.nextRetryAt}."
        return words

    @property
    def pods_left(self) -> tuple[int, int] | None:
        """Of the pods that have to leave for the run: how many are still there, and how many there were.

        None while none has to, and where they cannot be read.
        """
        if self.pods is None or self.said is None or not self.said.leaving:
            return None
        there = {pod.name for pod in self.pods}
        return len(there.intersection(self.said.leaving)), len(self.said.leaving)

    @property
    def gpus_done(self) -> tuple[int, int] | None:
        """Of the GPUs that the run changes: how many are done, and how many they are; None while no run goes on.

        They are changed side by side, so that it is none or all.
        """
        if self.said is None or not self.under_way or not self.said.gpus:
            return None
        count = len(self.said.gpus)
        return (0 if self.said.phase in _UNTOUCHED else count), count

    @property
    def progress(self) -> str:
        """How far the run is, in words; empty where none goes on."""
        words = []
        if self.pods_left is not None:
            left, count = self.pods_left
            words.append(f"{left} of {count} pod{'s' if count > 1 else ''} left")
        if self.gpus_done is not None:
            done, count = self.gpus_done
            words.append(f"{done} of {count} GPU{'s' if count > 1 else ''} done")
        return ", ".join(words)

    @property
    def resources(self) -> Mapping[str, Use]:
        """GPU resources by name, also those that pods hold and the node offers no more."""
        offered = advertised(self.node.node)
        used: Counter[str] = Counter()
        for pod in self.pods or ():
            used.update(pod.resources)
        return {
            name: Use(offered.get(name, 0), None if self.pods is None else used[name])
            for name in sorted({*offered, *used})
        }

    @property
    def cordon(self) -> str:
        """`no`, `yes`, or `run` where a run has set it and will take it off."""
        if not self.node.node.unschedulable:
            return "no"
        journal = Journal.from_annotations(self.node.node.meta.annotations)
        return "run" if journal is not None and journal.cordoned else "yes"

    def document(self) -> dict[str, Any]:
        """As JSON for scripts."""
        said = self.said
        left, done = self.pods_left, self.gpus_done
        return {
            "name": self.name,
            "gpus": [{"model": model, "count": count} for model, count in self.models.items()],
            "layout": self.node.wanted or None,
            "state": self.state or None,
            "asAsked": self.as_asked,
            "phase": said and str(said.phase),
            "progress": {
                "podsLeft": left and {"left": left[0], "of": left[1]},
                "gpusDone": done and {"done": done[0], "of": done[1]},
            },
            "reason": said and said.reason and str(said.reason),
            "message": said and said.message,
            "saysLayout": said and said.layout,
            "hash": said and said.hash,
            "startedAt": said and said.startedAt,
            "finishedAt": said and said.finishedAt,
            "attempt": said and said.attempt,
            "nextRetryAt": said and said.nextRetryAt,
            "changes": list(said.gpus) if said else [],
            "resources": {
                name: {"allocatable": use.allocatable, "used": use.used}
                for name, use in self.resources.items()
            },
            "cordoned": self.node.node.unschedulable,
            "cordonOfRun": self.cordon == "run",
            "inARun": self.node.in_a_run,
        }


def standings(nodes: Iterable[GpuNode], pods: Sequence[PodUse] | None) -> tuple[Standing, ...]:
    """Each node with its own pods, by name."""
    found = []
    for node in sorted(nodes, key=lambda each: each.name):
        mine = None if pods is None else tuple(p for p in pods if p.node == node.name and not p.finished)
        found.append(Standing(node, mine))
    return tuple(found)
