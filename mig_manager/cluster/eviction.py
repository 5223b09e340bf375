"""Asking one pod to go, and what the answer means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mig_manager.cluster.client import Api, object_path
from mig_manager.cluster.objects import JsonObject, Pod
from mig_manager.cluster.refusal import ApiError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod does not go yet."""

    obstacle: str
    """In words, for a message that names the pod before it."""
    pause_s: float | None = None
    """Seconds that the server asks to wait before the next attempt."""
    final: bool = False
    """Whether asking again is of no use."""
    failure: bool = False
    """An answer 500. Two PodDisruptionBudgets for one pod cause that, each time."""


def evict(api: Api, pod: Pod, *, grace_s: int | None, rehearsal: bool) -> Refusal | None:
    """Ask for an eviction, or whether it would be accepted; None if it is (or the pod has gone).

    Names the uid: a later pod of the same name is not meant.
    """
    how = _delete_options(pod, grace_s)
    if rehearsal:
        how["dryRun"] = ["All"]
    body: JsonObject = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": how,
    }
    try:
        api.create(f"{_path(pod)}/eviction", body, {"dryRun": "All"} if rehearsal else None)
    except ApiError as error:
        return _judged(error, pod)
    return None


def delete(api: Api, pod: Pod, *, grace_s: int | None) -> Refusal | None:
    """Delete a pod, whatever PodDisruptionBudgets say; None if that is accepted (or the pod has gone)."""
    try:
        api.delete(_path(pod), {"apiVersion": "v1", "kind": "DeleteOptions", **_delete_options(pod, grace_s)})
    except ApiError as error:
        return _judged(error, pod)
    return None


def _path(pod: Pod) -> str:
    return object_path("pods", pod.name, namespace=pod.namespace)


def _delete_options(pod: Pod, grace_s: int | None) -> JsonObject:
    options: JsonObject = {"preconditions": {"uid": pod.uid}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


def _judged(error: ApiError, pod: Pod) -> Refusal | None:
    if error.status == 404 or error.other_object:
        return None
    if error.status == 429:
        budget = next((text for reason, text in error.causes if reason == "DisruptionBudget"), None)
        words = "the API server asks to slow down" if budget is None else _budget_in_words(budget, pod)
        return Refusal(words, error.retry_after)
    answer = (
        f"the API server answers {error.status}: {error.words.rstrip('.')}" if error.words else error.message
    )
    return Refusal(answer, final=not error.passing, failure=error.status == 500)


def _budget_in_words(cause: str, pod: Pod) -> str:
    """The cause of a refusal, such as `The disruption budget web needs 2 healthy pods...`, and what helps."""
    words = re.sub(r"^The disruption budget", "PodDisruptionBudget", cause).rstrip(".")
    if not pod.ready:
        words += " (the pod is not Ready; unhealthyPodEvictionPolicy AlwaysAllow would let it go)"
    return words
