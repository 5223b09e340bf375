"""The log subresource of pods."""

from __future__ import annotations

from collections.abc import Callable

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.status import bad_request, not_found
from mig_manager.simulation.objects import Object
from mig_manager.simulation.store import MemoryStore

PodLog = Callable[[Object, str], str]
"""The text that a container (by name) of a pod has written."""


def default_log(pod: Object, container: str) -> str:
    """One line that says what runs."""
    started = pod.get("status", {}).get("startTime", pod["metadata"]["creationTimestamp"])
    return f"{started} {pod['metadata']['name']}/{container}: simulated container started\n"


def read_log(store: MemoryStore, call: Call, pod_log: PodLog) -> str:
    """Raises StatusError for a pod or container that is not there, or has not started."""
    pod = store.get(call.stored, call.namespace, call.name)
    if pod is None:
        raise not_found(call.resource, call.name)
    spec = pod["spec"]
    names = [each["name"] for each in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]]
    container = call.query.get("container") or spec["containers"][0]["name"]
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {call.name}")
    if pod.get("status", {}).get("phase", "Pending") == "Pending":
        raise bad_request(
            f'container "{container}" in pod "{call.name}" is waiting to start: ContainerCreating'
        )
    lines = pod_log(pod, container).splitlines(keepends=True)
    tail = call.number("tailLines")
    return "".join(lines if tail is None else lines[len(lines) - min(tail, len(lines)) :])
