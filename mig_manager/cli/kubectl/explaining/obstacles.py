"""What keeps a pod from one Node, whatever that Node has free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mig_manager.cli.kubectl.explaining.scene import Cause, Place
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.scheduling import tolerates_cordon, unmatched, untolerated_taints
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.status import State

_STARTUP_TAINT = "mig-manager/not-ready"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing, in words that go on after the Node's name."""

    cause: Cause
    text: str
    todo: str = ""


def obstacles(spec: JsonObject, place: Place) -> tuple[Obstacle, ...]:
    """Everything that keeps a pod with that spec away."""
    return tuple(_obstacles(spec, place))


def _obstacles(spec: JsonObject, place: Place) -> Iterator[Obstacle]:
    node = place.node.node
    if node.unschedulable and not tolerates_cordon(spec):
        yield _cordon(place)
    for taint in untolerated_taints(spec, node):
        if taint.key == _STARTUP_TAINT:
            text = f"has the start-up taint {taint.key}, which goes once its GPUs are as their layout says"
            yield Obstacle(Cause.TAINTED, text, f"kubectl mig status {place.name}")
        else:
            value = f"={taint.value}" if taint.value else ""
            yield Obstacle(
                Cause.TAINTED,
                f"has the taint {taint.key}{value}:{taint.effect}, which the pod does not tolerate",
            )
    for demand in unmatched(spec, node):
        yield Obstacle(Cause.EXCLUDED, f"does not meet the pod's {demand}")


def _cordon(place: Place) -> Obstacle:
    journal = Journal.from_annotations(place.node.node.meta.annotations)
    if journal is not None and journal.cordoned:
        return Obstacle(
            Cause.IN_A_RUN,
            f"is cordoned by the run that {_run_words(place)}; the cordon goes with its end",
            f"kubectl mig status {place.name} -w",
        )
    return Obstacle(Cause.CORDONED, "is cordoned, and not by mig-manager", f"kubectl uncordon {place.name}")


def _run_words(place: Place) -> str:
    status = place.node.status
    if status is None or status.state not in (State.PENDING, State.REBOOTING):
        return f"changes its GPUs to {place.node.wanted or 'another layout'}"
    return f"changes its GPUs to {status.layout} (phase {status.phase})"
