"""A node and its pods on an API server, real or simulated, changed only through its API."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from mig_manager.cluster.client import MERGE_PATCH, Api, collection_path, object_path
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch, watch_pods

JsonObject = dict[str, Any]
PATIENCE_S = 60.0


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """One namespace and one Node of our own; a small kubelet ends the Node's pods when they are deleted."""

    def __init__(self, api: Api, signal: Signal) -> None:
        self.api = api
        self.signal = signal
        mark = uuid.uuid4().hex[:8]
        self.namespace = f"mig-test-{mark}"
        self.node = f"mig-test-{mark}"
        self.takes_s = 0.05
        """How long a pod takes to end."""
        self.together = 1
        """Pods begin to end when so many have been told to."""
        self.stuck: set[str] = set()
        """Names of pods that never end."""
        self._news = Signal()
        self._done = threading.Event()
        self._pods = watch_pods(api, self.node, self._news)
        self._ending: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        self.create("namespaces", {"metadata": {"name": self.namespace}}, namespaced=False)
        self.create("nodes", {"metadata": {"name": self.node}}, namespaced=False)
        self.create("configmaps", {"metadata": {"name": "owner"}})
        with suppress(
            ApiError
        ):  # a real API server wants it before any pod; a controller may have made it already
            self.create("serviceaccounts", {"metadata": {"name": "default"}})
        kubelet = threading.Thread(target=self._end_pods, daemon=True)
        with self._pods:
            kubelet.start()
            try:
                yield self
            finally:
                self._done.set()
                self._news.notify()
                kubelet.join()
                self._clean_up()

    @contextmanager
    def watching(self) -> Iterator[ObjectWatch[Pod]]:
        """The pods of the node as the product follows them."""
        with watch_pods(self.api, self.node, self.signal) as pods:
            pods.wait_synced(Deadline.after(PATIENCE_S))
            yield pods

    def create(
        self, plural: str, body: JsonObject, *, group: str = "v1", namespaced: bool = True
    ) -> JsonObject:
        path = collection_path(plural, namespace=self.namespace if namespaced else None, group=group)
        return self.api.create(path, body)

    def path(self, plural: str, name: str, group: str = "v1") -> str:
        return object_path(plural, name, namespace=self.namespace, group=group)

    def run_pod(
        self,
        name: str,
        *,
        resource: str | None = "nvidia.com/gpu",
        owner: str | None = "ConfigMap",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        grace_s: int = 1,
        ready: bool = True,
        phase: str = "Running",
        finalizers: tuple[str, ...] = (),
        volumes: tuple[JsonObject, ...] = (),
    ) -> Pod:
        """A pod that the kubelet has started. `owner` None: bare; else the kind of its controller."""
        meta: JsonObject = {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        }
        if finalizers:
            meta["finalizers"] = list(finalizers)
        if owner == "ConfigMap":
            held = self.api.get(self.path("configmaps", "owner"))
            meta["ownerReferences"] = [_reference(held, "v1", owner)]
        elif owner == "DaemonSet":
            meta["ownerReferences"] = [_reference(self._daemon_set(), "apps/v1", owner)]
        resources = {"limits": {resource: "1"}, "requests": {resource: "1"}} if resource else {}
        spec = {
            "nodeName": self.node,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "tolerations": [{"operator": "Exists"}],
            "volumes": list(volumes),
        }
        self.create("pods", {"metadata": meta, "spec": spec})
        return self.set_status(name, phase, ready)

    def set_status(self, name: str, phase: str, ready: bool = False) -> Pod:
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now()}
        status = {"phase": phase, "startTime": now(), "conditions": [condition]}
        return Pod.from_json(
            self.api.request(
                "PATCH",
                self.path("pods", name) + "/status",
                body={"status": status},
                content_type=MERGE_PATCH,
            )
        )

    def protect(self, name: str, labels: Mapping[str, str], min_available: int) -> None:
        """A PodDisruptionBudget; comes back when the disruption controller has taken it in."""
        spec = {"minAvailable": min_available, "selector": {"matchLabels": dict(labels)}}
        self.create("poddisruptionbudgets", {"metadata": {"name": name}, "spec": spec}, group="policy/v1")

    def allow(self, name: str) -> None:
        """Let a PodDisruptionBudget protect nothing any more."""
        path = self.path("poddisruptionbudgets", name, "policy/v1")
        self.api.patch(path, {"spec": {"minAvailable": 0}})

    def pods(self) -> dict[str, Pod]:
        """The pods of the namespace now, by name."""
        items = self.api.get(collection_path("pods", namespace=self.namespace))["items"]
        return {item["metadata"]["name"]: Pod.from_json(item) for item in items}

    def _daemon_set(self) -> JsonObject:
        template = {
            "metadata": {"labels": {"app": "set"}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        spec = {"selector": {"matchLabels": {"app": "set"}}, "template": template}
        return self.create("daemonsets", {"metadata": {"name": "set"}, "spec": spec}, group="apps/v1")

    def _end_pods(self) -> None:
        """What the kubelet does with pods that are deleted: end them, then take them out for good."""
        while not self._done.is_set():
            for pod in self._told_to_end():
                self._ending.add(pod.uid)
                threading.Timer(self.takes_s, self._remove, (pod,)).start()
            self._news.wait(lambda: self._done.is_set() or bool(self._told_to_end()), Deadline.after(1))

    def free(self, name: str) -> None:
        """Let a pod end that was stuck."""
        self.stuck.discard(name)
        self._news.notify()

    def _told_to_end(self) -> list[Pod]:
        told = [
            pod
            for pod in self._pods.objects.values()
            if pod.deleted is not None and pod.uid not in self._ending and pod.name not in self.stuck
        ]
        return told if len(told) >= self.together else []

    def _remove(self, pod: Pod) -> None:
        with suppress(ApiError):
            self.api.delete(
                object_path("pods", pod.name, namespace=pod.namespace),
                {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}},
            )

    def _clean_up(self) -> None:
        for pod in self.pods().values():
            with suppress(ApiError):
                self.api.patch(self.path("pods", pod.name), {"metadata": {"finalizers": None}})
            self._remove(pod)
        for path in (object_path("nodes", self.node), object_path("namespaces", self.namespace)):
            with suppress(ApiError):
                self.api.delete(path)


def _reference(owner: JsonObject, api_version: str, kind: str) -> JsonObject:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
