"""How pods are made to go, who may be, and the words for those who may not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mig_manager.cluster.client import Api
from mig_manager.cluster.eviction import evict
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.pods import name_pods, stays
from mig_manager.errors import MigManagerError, Reason


class DrainMode(StrEnum):
    """How pods are made to go."""

    EVICT = "evict"
    """By the eviction API, which respects PodDisruptionBudgets."""
    WAIT = "wait"
    """Not at all: they are given time to end by themselves."""
    DELETE = "delete"
    """Deleted, whatever PodDisruptionBudgets say."""
    OFF = "off"
    """Not at all, and nothing is waited for: the run needs a node where they are gone."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How to drain."""

    mode: DrainMode = DrainMode.EVICT
    bare_pods: bool = False
    """Whether pods without a controller, which nothing brings back, may go too."""
    empty_dirs: bool = True
    """Whether pods with emptyDir volumes, whose data ends with them, may go too."""
    grace_s: int | None = None
    """Grace period instead of each pod's own."""
    timeout_s: float = 300.0
    """How long evictions may be refused, or jobs take to end (mode wait)."""
    margin_s: float = 30.0
    """How much longer than its grace period a pod may take to be gone; the timeout is at least the longest
    grace period plus this."""
    cap_s: float = 3600.0
    """The timeout is never longer than this, whatever the grace periods are."""
    retry_s: float = 5.0
    """Pause between attempts to evict a pod that a PodDisruptionBudget protects."""
    failures: int = 5
    """After this many answers 500 an eviction counts as refused for good: two budgets for one pod do that."""
    off_because: str = "draining is off"
    """Why, in mode off."""
    parallel: int = 16
    """Evictions under way at the same time."""

    def held_back(self, pod: Pod) -> str:
        """Why these options do not let a pod go, in words; empty if they do."""
        if self._bare(pod):
            return "it has no controller that would bring it back"
        if self._loses_data(pod):
            return "it keeps data in an emptyDir volume, which would be lost"
        return ""

    def remedy(self, pods: Iterable[Pod]) -> str:
        """What lets those go that these options hold back, as a sentence; empty if there are none."""
        pods = tuple(pods)
        allowing = [
            setting
            for setting, held in (
                ("MIG_MANAGER_EVICT_BARE_PODS=true", self._bare),
                ("MIG_MANAGER_EVICT_EMPTY_DIR_PODS=true", self._loses_data),
            )
            if any(held(pod) for pod in pods)
        ]
        return f"Delete such pods yourself, or set {' and '.join(allowing)}." if allowing else ""

    def _bare(self, pod: Pod) -> bool:
        return pod.bare and not self.bare_pods

    def _loses_data(self, pod: Pod) -> bool:
        return pod.empty_dir and not self.empty_dirs


def refuse_if_off(pods: Sequence[Pod], options: DrainOptions) -> None:
    """Raise DrainRequired where pods would have to go, and none may be made to."""
    required = [pod for pod in pods if not stays(pod)]
    if required and options.mode is DrainMode.OFF:
        raise MigManagerError(
            Reason.DRAIN_REQUIRED,
            f"These pods use what has to change, and {options.off_because}: {name_pods(required)}. "
            "Make them go, or let them be drained.",
        )


def keep_coming(pods: Sequence[Pod], how_many: str) -> MigManagerError:
    """The error that names pods which come although the node is cordoned, the last of so many."""
    senders = sorted({f"{pod.owner.kind} {pod.owner.name}" for pod in pods if pod.owner is not None})
    by = f" (by {', '.join(senders)})" if senders else ""
    return MigManagerError(
        Reason.DRAIN_TIMEOUT,
        f"Pods keep coming although the node is cordoned, {how_many}; the last: {name_pods(pods)}{by}. They tolerate"
        " node.kubernetes.io/unschedulable, or name this node in their spec: take that out of their template, or scale"
        " their controller down until the change is done.",
    )


def obstacles(api: Api, pods: Sequence[Pod], options: DrainOptions) -> tuple[str, ...]:
    """Why pods would not go now, one sentence a pod that would not; each is asked once, in a dry run."""
    found = []
    for pod in pods:
        if stays(pod) or options.mode in (DrainMode.WAIT, DrainMode.OFF):
            continue
        words = options.held_back(pod)
        if not words and options.mode is DrainMode.EVICT:
            refusal = evict(api, pod, grace_s=options.grace_s, rehearsal=True)
            words = "" if refusal is None else refusal.obstacle
        if words:
            found.append(f"pod {pod}: {words}")
    return tuple(found)
