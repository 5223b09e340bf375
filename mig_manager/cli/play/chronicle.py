"""What happens on the node during one act of the demo, told as the API shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

from mig_manager.cli.play.seen import in_words, is_operand, names, offer
from mig_manager.cli.play.stage import Stage
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.status import STATE_LABEL, STATUS_ANNOTATION, Phase, State, Status

_DEPLOY = "nvidia.com/gpu.deploy."
_COMPONENT = "mig-manager"


class Kind(StrEnum):
    """What a line is about."""

    PHASE = "phase"
    GOOD = "good"
    BAD = "bad"
    EVENT = "event"
    WARNING = "warning"
    SEEN = "seen"


Tell = Callable[[float, Kind, str, str], None]
"""Takes seconds since the act began, what the line is about, one word, and the rest."""


class Chronicle:
    """Follows one run: status annotation, cordon, labels and resources of the Node, pods, Events.

    It begins when it is made; `look` tells what is new.
    """

    def __init__(self, stage: Stage, tell: Tell) -> None:
        self._stage = stage
        self._tell = tell
        self._began = time.monotonic()
        for _ in stage.node_versions():
            pass
        self._node = stage.node
        self._status = self._node["metadata"].get("annotations", {}).get(STATUS_ANNOTATION)
        self._known_events = set(stage.events)
        self._known_pods = dict(stage.pods)
        self._paused: frozenset[str] = frozenset()
        self._phases: list[tuple[str, float]] = []
        self._ended_at: float | None = None
        self.outcome: Status | None = None
        """The status at the end of the run; None until then."""
        self.announced = False
        """Whether an Event has told the end."""
        self.evicted: dict[str, JsonObject] = {}
        """Pods that were made to leave, by uid; none of the operands."""
        self.cordoned = False
        """Whether the node was cordoned at any time."""

    @property
    def seconds(self) -> float:
        """How long the run took, from the beginning to the final state."""
        return (self._ended_at or time.monotonic()) - self._began

    @property
    def phases(self) -> list[tuple[str, float]]:
        """The phases in their order, with the seconds that each took."""
        ends = [began for _, began in self._phases[1:]] + [self.seconds]
        return [(name, end - began) for (name, began), end in zip(self._phases, ends, strict=True)]

    def look(self) -> Status | None:
        """Tell what is new; gives the status of a run that has ended."""
        for at, node in self._stage.node_versions():
            self._look_at_node(at - self._began, node)
        self._look_at_pods(time.monotonic() - self._began)
        self._look_at_events(time.monotonic() - self._began)
        return self.outcome

    def _look_at_node(self, at: float, node: JsonObject) -> None:
        before, self._node = self._node, node
        word, kind, facts = self._progress(at, node)
        if (held := bool(node["spec"].get("unschedulable"))) != bool(before["spec"].get("unschedulable")):
            facts.append("cordoned, no new pods" if held else "takes pods again")
            self.cordoned = self.cordoned or held
        if (kept := _has_journal(node)) != _has_journal(before):
            facts.append("what to put back is in the journal" if kept else "journal removed")
        if (paused := _paused(node)) != _paused(before):
            facts.append(_list("pauses", paused) if paused else _list("starts again", self._paused))
            self._paused = self._paused | paused
        if word or facts:
            self._tell(at, kind, word or "Node", "; ".join(facts))
        if (offered := offer(node)) != offer(before):
            self._tell(at, Kind.SEEN, "kubelet", f"advertises {in_words(offered)}")

    def _progress(self, at: float, node: JsonObject) -> tuple[str, Kind, list[str]]:
        """The new phase or the final state, if there is one, and what is to be said of it."""
        text = node["metadata"].get("annotations", {}).get(STATUS_ANNOTATION)
        status = Status.from_json(text) if text != self._status else None
        self._status = text
        if status is None:
            return "", Kind.SEEN, []
        if status.state is State.PENDING:
            return (status.phase, Kind.PHASE, []) if self._enter(status.phase, at) else ("", Kind.SEEN, [])
        self.outcome, self._ended_at = status, self._began + at
        facts = [f"{STATE_LABEL}={node['metadata']['labels'].get(STATE_LABEL)}"]
        if status.reason is None:
            return status.state, Kind.GOOD, facts
        return status.state, Kind.BAD, [*facts, f"{status.reason} in phase {status.phase}: {status.message}"]

    def _look_at_pods(self, at: float) -> None:
        pods = self._stage.pods
        leaving = [
            pod
            for uid, pod in pods.items()
            if uid not in self.evicted and not is_operand(pod) and "deletionTimestamp" in pod["metadata"]
        ]
        gone = [pod for uid, pod in self._known_pods.items() if uid not in pods]
        self._known_pods = dict(pods)
        if leaving and self.outcome is None:
            self.evicted |= {pod["metadata"]["uid"]: pod for pod in leaving}
            self._tell_of(Phase.DRAINING, at, f"evicts {names(leaving)}")
        if any(map(is_operand, gone)) and _paused(self._node) and not self._operands_left():
            self._tell_of(Phase.APPLYING, at, "the pods of the paused GPU clients are gone")

    def _operands_left(self) -> bool:
        """Whether a pod of a paused operand is still there."""
        selectors = [{_DEPLOY + name: "true"} for name in _paused(self._node)]
        return any(
            is_operand(pod) and pod["spec"].get("nodeSelector") in selectors
            for pod in self._known_pods.values()
        )

    def _look_at_events(self, at: float) -> None:
        for uid, event in self._stage.events.items():
            if uid in self._known_events:
                continue
            self._known_events.add(uid)
            if event.get("reportingComponent") == _COMPONENT:
                kind = Kind.WARNING if event["type"] == "Warning" else Kind.EVENT
                said = self.outcome is not None and self.outcome.message
                what = "says the same" if said and said in event["message"] else event["message"]
                self._tell(at, kind, "Event", f"{event['reason']}: {what}")
                self.announced = self.announced or self.outcome is not None

    def _tell_of(self, phase: Phase, at: float, what: str) -> None:
        """Tell what shows that a phase has begun, whether the status says so or not."""
        new = self._enter(phase, at)
        self._tell(at, Kind.PHASE if new else Kind.SEEN, phase if new else "", what)

    def _enter(self, phase: str, at: float) -> bool:
        """Note that a phase has begun; False for one that is known already."""
        new = all(phase != name for name, _ in self._phases)
        if new:
            self._phases.append((phase, at))
        return new


def _has_journal(node: JsonObject) -> bool:
    return JOURNAL_ANNOTATION in node["metadata"].get("annotations", {})


def _paused(node: JsonObject) -> frozenset[str]:
    labels = node["metadata"].get("labels", {})
    return frozenset(name.removeprefix(_DEPLOY) for name, value in labels.items() if value == PAUSED)


def _list(verb: str, names: frozenset[str]) -> str:
    return f"{verb} {', '.join(sorted(names))}"
