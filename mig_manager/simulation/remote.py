"""The objects of a cluster whose control plane is another program: a `Store` over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline
from mig_manager.simulation.follower import Follower
from mig_manager.simulation.objects import Change, Object, Resource
from mig_manager.simulation.resources import (
    CONFIGMAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SUBRESOURCES,
)
from mig_manager.simulation.store import ObjectExistsError, Objects
from mig_manager.simulation.values import copy_json

_FOLLOWED = (
    NODES,
    PODS,
    CONFIGMAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
"""The kinds of whose changes subscribers hear."""
_PATIENCE_S = 10.0
_TRIES = 20


class RemoteStore:
    """The `Store` of objects.py on any API server, through an administrator's connection.

    An update reads, changes and replaces, again where somebody else was faster, so that its `change` may be called
    several times. Subscribers hear of changes between `start` and `stop`, of each kind in order, from several
    threads but one at a time.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._receivers: dict[object, Callable[[Change], None]] = {}
        self._lock = threading.Lock()
        self._delivering = threading.Lock()
        self._followers: list[Follower] = []

    def start(self) -> None:
        """Begin to follow the cluster. A kind that the server does not have is left out."""
        for resource in _FOLLOWED:
            follower = Follower(self._api, resource, self._deliver)
            try:
                follower.start()
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                self._followers.append(follower)

    def stop(self) -> None:
        """Follow it no more."""
        for follower in self._followers:
            follower.stop()
        self._followers = []

    def create(self, resource: Resource, obj: Object) -> Object:
        """Add an object; ObjectExistsError if there is one of its name."""
        meta = obj.get("metadata") or {}
        namespace = meta.get("namespace", "default") if resource.namespaced else None
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        path = collection_path(resource.plural, namespace=namespace, group=resource.api_version)
        try:
            return self._send("POST", path, body)
        except ApiError as error:
            if error.status_reason == "AlreadyExists":
                raise ObjectExistsError(error.message) from error
            raise

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object, or None."""
        return self._unless_missing("GET", _path(resource, namespace, name))

    def list(self, resource: Resource, namespace: str | None = None) -> tuple[Objects, str]:
        """All (of one namespace), none where the server has no such kind; and the resourceVersion."""
        path = collection_path(resource.plural, namespace=namespace, group=resource.api_version)
        read = self._unless_missing("GET", path) or {"metadata": {"resourceVersion": "0"}}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**kind, **each} for each in read.get("items") or []], str(
            read["metadata"]["resourceVersion"]
        )

    def snapshot(self, resource: Resource, namespace: str | None = None) -> tuple[Objects, int]:
        """What `list` gives."""
        found, version = self.list(resource, namespace)
        return found, int(version)

    def update(
        self, resource: Resource, namespace: str | None, name: str, change: Callable[[Object], Object | None]
    ) -> Object | None:
        """Replace an object, and its status where the kind has one, by what `change` makes of it."""
        for _ in range(_TRIES):
            old = self.get(resource, namespace, name)
            new = None if old is None else change(copy_json(old))
            if old is None or new is None:
                return old
            try:
                return self._replace(resource, _path(resource, namespace, name), old, new)
            except ApiError as error:
                if error.status == 404:
                    return None
                if error.status != 409:
                    raise
        raise TimeoutError(f"{resource.kind} {name}: somebody else was faster, {_TRIES} times")

    def delete(
        self, resource: Resource, namespace: str | None, name: str, *, grace_seconds: int | None = None
    ) -> Object | None:
        """Begin or finish a deletion; None: no such object."""
        options: JsonObject = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return self._unless_missing("DELETE", _path(resource, namespace, name), options)

    def remove(self, resource: Resource, namespace: str | None, name: str, uid: str) -> None:
        """Take an object out for good, as a kubelet does at the end of a pod."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        try:
            self._unless_missing("DELETE", _path(resource, namespace, name), options)
        except ApiError as error:
            if error.status != 409:
                raise

    def subscribe(self, receiver: Callable[[Change], None]) -> Callable[[], None]:
        """Call `receiver` for every later change; returns the way out."""
        ticket = object()
        with self._lock:
            self._receivers[ticket] = receiver

        def leave() -> None:
            with self._lock:
                self._receivers.pop(ticket, None)

        return leave

    def _deliver(self, change: Change) -> None:
        with self._lock:
            receivers = list(self._receivers.values())
        with self._delivering:
            for receive in receivers:
                receive(change)

    def _replace(self, resource: Resource, path: str, old: Object, new: Object) -> Object:
        """The status is written by itself, as only a kubelet or a controller may."""
        held = old
        apart = "status" in SUBRESOURCES.get(resource, ())
        if _without_status(new, apart) != _without_status(old, apart):
            held = self._send("PUT", path, {**new, "status": old.get("status", {})} if apart else new)
        if apart and new.get("status") != old.get("status"):
            held = self._send("PUT", f"{path}/status", {**held, "status": new.get("status", {})})
        return held

    def _unless_missing(self, method: str, path: str, body: JsonObject | None = None) -> Object | None:
        try:
            return self._send(method, path, body)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _send(self, method: str, path: str, body: JsonObject | None = None) -> Object:
        deadline = Deadline.after(_PATIENCE_S)
        return self._api.request(method, path, body=body, retry_conflict=False, deadline=deadline)


def _path(resource: Resource, namespace: str | None, name: str) -> str:
    return object_path(resource.plural, name, namespace=namespace, group=resource.api_version)


def _without_status(obj: Object, apart: bool) -> Object:
    return {key: value for key, value in obj.items() if key != "status"} if apart else obj
