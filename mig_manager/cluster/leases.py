"""Leases that nodes of a fleet see of each other: the slots of a pool, and who waits for one.

A Lease belongs to the node that made it from its creation to its deletion, so whoever takes one away deletes it,
and only at the very version that was looked at; its holder then finds another uid, or nothing. Times inside a
Lease are for people: nobody compares clocks.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.objects import JsonObject, NodeMeta
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch, WatchOptions

GROUP = "coordination.k8s.io/v1"
ROLE_LABEL = "mig-manager/lease"
POOL_LABEL = "mig-manager/pool"

_GONE = (404, 409, 422)
"""How the API server answers a change of a Lease that is not there any more, or is another one by that name."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_PART = 200


class Role(StrEnum):
    """What a Lease of ours stands for."""

    SLOT = "slot"
    """Its node changes its GPUs, or is about to."""
    PLACE = "place"
    """Its node waits for a slot; a place in the queue."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as last seen."""

    name: str
    uid: str
    version: str
    role: str
    node: str
    created: str
    """By the API server's clock, RFC 3339, whole seconds; these texts sort by time."""
    duration_s: float
    """Seconds without a renewal after which its holder wants to be taken for dead; 0 where it does not say."""
    since: float
    """`time.monotonic()` when this version was first seen here."""


class LeaseGoneError(Exception):
    """The Lease was taken away."""


@dataclass(slots=True)
class Sightings:
    """Makes Leases of JSON, and remembers how long each has been seen unchanged."""

    _known: dict[str, tuple[str, float]] = field(default_factory=dict)

    def read(self, obj: JsonObject) -> Lease:
        """From a Lease. Raises KeyError, TypeError or ValueError where it makes no sense."""
        meta, spec = obj["metadata"], obj.get("spec") or {}
        uid, version = str(meta["uid"]), str(meta["resourceVersion"])
        known, since = self._known.get(uid, ("", 0.0))
        if known != version:
            since = time.monotonic()
            self._known[uid] = (version, since)
        return Lease(
            name=str(meta["name"]),
            uid=uid,
            version=version,
            role=str((meta.get("labels") or {}).get(ROLE_LABEL, "")),
            node=str(spec.get("holderIdentity") or ""),
            created=str(meta.get("creationTimestamp") or ""),
            duration_s=float(spec.get("leaseDurationSeconds") or 0),
            since=since,
        )


class LeaseClient:
    """Changes the Leases of one node. Every method raises ApiError; without a deadline it tries once."""

    def __init__(self, api: Api, namespace: str, pool: str, node: NodeMeta, duration_s: float) -> None:
        self.api = api
        self.node = node
        self._namespace = namespace
        self._pool = pool
        self._duration_s = duration_s

    def watch(self, signal: Signal, options: WatchOptions) -> ObjectWatch[Lease]:
        """All Leases of the pool."""
        selection = Selection(
            self.api,
            collection_path("leases", namespace=self._namespace, group=GROUP),
            title=f"Leases in namespace {self._namespace}",
            label_selector=f"{ROLE_LABEL},{POOL_LABEL}={self._pool}",
        )
        return ObjectWatch(selection, Sightings().read, signal, options=options)

    def create(self, name: str, role: Role) -> Lease | None:
        """Make a Lease; None where one by that name is there already."""
        meta: JsonObject = {"name": name, "labels": {ROLE_LABEL: role, POOL_LABEL: self._pool}}
        if role is Role.PLACE:
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.node.name, "uid": self.node.uid}
            meta["ownerReferences"] = [owner]
        times = {"acquireTime": _now(), "renewTime": _now()}
        spec = {
            "holderIdentity": self.node.name,
            "leaseDurationSeconds": math.ceil(self._duration_s),
            **times,
        }
        body: JsonObject = {"apiVersion": GROUP, "kind": "Lease", "metadata": meta, "spec": spec}
        path = collection_path("leases", namespace=self._namespace, group=GROUP)
        try:
            return Sightings().read(self.api.create(path, body))
        except ApiError as error:
            if error.status != 409:
                raise
            return None

    def renew(self, lease: Lease, *, deadline: Deadline | None = None) -> None:
        """Show that its holder lives. Raises LeaseGoneError where it is not that Lease any more."""
        patch = {"metadata": {"uid": lease.uid}, "spec": {"renewTime": _now()}}
        try:
            self.api.patch(self._path(lease.name), patch, retry_conflict=False, deadline=deadline)
        except ApiError as error:
            if error.status in _GONE:
                raise LeaseGoneError from None
            raise

    def claim_place(self, name: str) -> None:
        """Make a place that an earlier process of this node has left ours: of this pool, and alive."""
        patch = {"metadata": {"labels": {POOL_LABEL: self._pool}}, "spec": {"renewTime": _now()}}
        try:
            self.api.patch(self._path(name), patch)
        except ApiError as error:
            if error.status not in _GONE:
                raise

    def delete(self, lease: Lease, *, unchanged: bool = False, deadline: Deadline | None = None) -> None:
        """Delete it unless it is gone already; `unchanged`: only if it is still the version that was seen."""
        conditions = {"uid": lease.uid}
        if unchanged:
            conditions["resourceVersion"] = lease.version
        try:
            self.api.delete(
                self._path(lease.name), {"preconditions": conditions}, retry_conflict=False, deadline=deadline
            )
        except ApiError as error:
            if error.status not in _GONE:
                raise

    def _path(self, name: str) -> str:
        return object_path("leases", name, namespace=self._namespace, group=GROUP)


def slot_name(pool: str, number: int) -> str:
    """The Lease that is a slot: `mig-manager-slot-0`, `mig-manager-slot-a100-3`."""
    return "-".join(["mig-manager-slot", *([_as_name(pool)] if pool else []), str(number)])


def place_name(node: str) -> str:
    """The Lease that is a node's place in the queue: `mig-manager-place-gpu-1`."""
    return f"mig-manager-place-{_as_name(node)}"


def _as_name(text: str) -> str:
    """Fit for the name of an object: as it is, or told from all others by a hash."""
    if _SUBDOMAIN.fullmatch(text) and len(text) <= _LONGEST_PART:
        return text
    plain = re.sub("[^a-z0-9]+", "-", text.lower())[:_LONGEST_PART].strip("-")
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _now() -> str:
    """A MicroTime; the API server insists on six digits."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
