"""The daemon's pages: whether it lives, whether it is ready, what it does, and its metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from mig_manager import __version__
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.http import Answer
from mig_manager.daemon.metrics import Metrics, exposition
from mig_manager.daemon.permissions import Permissions
from mig_manager.daemon.progress import Progress
from mig_manager.daemon.pulse import Pulse
from mig_manager.daemon.status import CONFIG_LABEL, STATE_LABEL, STATUS_ANNOTATION
from mig_manager.planning.plan import GpuPlan, NodePlan

Obstacle = Callable[[], str | None]
"""What is not there yet, in words; None: nothing is missing."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What the pages are made of."""

    node: Callable[[], NodeMeta | None]
    """The Node's metadata as last seen."""
    progress: Progress
    metrics: Metrics
    pulse: Pulse
    wake: Callable[[], None]
    """Makes the loop turn."""
    longest_silence_s: float
    """The loop is stuck when it has not turned for so long after it was asked to."""
    obstacles: Sequence[Obstacle]
    """Of readiness; may grow while the daemon starts."""

    def by_path(self) -> Mapping[str, Callable[[], Answer]]:
        """Each page."""
        return {
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/metrics": lambda: exposition(self.metrics),
            "/status": self.status,
        }

    def livez(self) -> Answer:
        """Whether the loop turns. A run that waits turns; a loop with nothing to do turns when it is asked to."""
        silence = self.pulse.silence(self.wake)
        words = f"the loop turned {self.pulse.age():.1f} s ago"
        if silence <= self.longest_silence_s:
            return _words(f"ok: {words}")
        return _words(f"stuck: {words}", HTTPStatus.SERVICE_UNAVAILABLE)

    def readyz(self) -> Answer:
        """Whether everything is followed that has to be, and the daemon knows what it may do."""
        missing = [words for obstacle in self.obstacles if (words := obstacle()) is not None]
        if not missing:
            return _words("ok")
        return _words("\n".join(missing), HTTPStatus.SERVICE_UNAVAILABLE)

    def status(self) -> Answer:
        """What the Node says, and what the run under way is at."""
        meta, plan = self.node(), self.progress.plan
        document = {
            "version": __version__,
            "node": meta.name if meta is not None else None,
            "layout": meta.labels.get(CONFIG_LABEL) if meta is not None else None,
            "state": meta.labels.get(STATE_LABEL) if meta is not None else None,
            "status": _said(meta),
            "phase": self.progress.phase,
            "plan": plan_document(plan) if plan is not None else None,
        }
        return Answer((json.dumps(document, indent=2) + "\n").encode(), content_type="application/json")


def established(watch: ObjectWatch[Any]) -> Obstacle:
    """The obstacle that a watch is while it has not read its objects yet, or cannot follow them."""

    def obstacle() -> str | None:
        if watch.problem is not None:
            return watch.problem
        return None if watch.synced else f"{watch.title} has not been read yet"

    return obstacle


def asked(permissions: Permissions) -> Obstacle:
    """The obstacle that permissions are until the API server has said what they are."""
    return lambda: None if permissions.answered else "the permissions have not been checked yet"


def plan_document(plan: NodePlan) -> dict[str, Any]:
    """A plan as JSON; instances as in the annotation `mig-manager/gpus`."""
    return {
        "layout": plan.layout,
        "gpus": [_gpu(gpu) for gpu in plan.gpus],
        "untouched": list(plan.untouched),
    }


def _gpu(plan: GpuPlan) -> dict[str, Any]:
    return {
        "index": plan.gpu.index,
        "uuid": plan.gpu.uuid,
        "mig": {"current": plan.mig.current, "target": plan.mig.target, "reset": plan.mig.reset},
        "keep": [_instance(kept.instance.profile, kept.instance.placement.start) for kept in plan.keep],
        "destroy": [_instance(one.profile, one.placement.start) for one in plan.destroy],
        "create": [_instance(one.profile, one.placement.start) for one in plan.create],
    }


def _instance(profile: object, start: int) -> dict[str, Any]:
    return {"profile": str(profile), "start": start}


def _said(meta: NodeMeta | None) -> Any:
    """The status annotation, as it stands there; None where there is none, or no JSON."""
    try:
        return json.loads(meta.annotations.get(STATUS_ANNOTATION, "null")) if meta is not None else None
    except ValueError:
        return None


def _words(words: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(f"{words}\n".encode(), status)
