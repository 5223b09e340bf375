"""The few things that we read from Kubernetes objects, as values.

Each view is made from the object's JSON as the API serves it. A view keeps only what is used, so that a
watched object costs little memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

JsonObject = dict[str, Any]
"""A JSON object as the API server sends or takes it."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def parse_time(text: str | None) -> datetime | None:
    """A Kubernetes time (RFC 3339) as an aware datetime; None for an absent one."""
    return datetime.fromisoformat(text) if text else None


def parse_count(text: str | int) -> int:
    """A whole quantity such as `7` or `1k`. Raises ValueError for anything that is not one."""
    if isinstance(text, int) or text.isdigit():
        return int(text)
    from kubernetes.utils.quantity import parse_quantity

    return int(parse_quantity(text))  # type: ignore[no-untyped-call]


def older(version: str, than: str | None) -> bool:
    """Whether a resourceVersion is that of an earlier state; False where that cannot be told.

    They are numbers that grow (Kubernetes says so since 1.35, and etcd has always made them so).
    """
    return than is not None and version.isdecimal() and than.isdecimal() and int(version) < int(than)


@dataclass(frozen=True, slots=True)
class NodeMeta:
    """A Node's metadata."""

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def from_json(cls, obj: JsonObject) -> NodeMeta:
        """From a Node or from its PartialObjectMetadata."""
        meta = obj["metadata"]
        return cls(
            name=meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            labels=meta.get("labels") or {},
            annotations=meta.get("annotations") or {},
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a Node."""

    key: str
    value: str
    effect: str
    added: str = ""
    """When, RFC 3339; only those that evict have it."""

    @classmethod
    def from_json(cls, obj: JsonObject) -> Taint:
        """From an entry of spec.taints."""
        return cls(obj["key"], obj.get("value") or "", obj.get("effect") or "", obj.get("timeAdded") or "")

    def as_json(self) -> JsonObject:
        """As an entry of spec.taints."""
        found = {"key": self.key, "value": self.value, "effect": self.effect, "timeAdded": self.added}
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Node:
    """A Node."""

    meta: NodeMeta
    unschedulable: bool
    taints: tuple[Taint, ...]
    capacity: Mapping[str, int]
    """Extended resources (names with a slash) only: `{"nvidia.com/gpu": 2}`; likewise allocatable."""
    allocatable: Mapping[str, int]
    heartbeat: datetime | None
    """When the kubelet last wrote this status, by the Ready condition; whole seconds."""
    boot_id: str

    @classmethod
    def from_json(cls, obj: JsonObject) -> Node:
        """From a Node."""
        spec = obj.get("spec") or _NOTHING
        status = obj.get("status") or _NOTHING
        ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), _NOTHING)
        return cls(
            meta=NodeMeta.from_json(obj),
            unschedulable=bool(spec.get("unschedulable")),
            taints=tuple(map(Taint.from_json, spec.get("taints") or ())),
            capacity=_extended(status.get("capacity")),
            allocatable=_extended(status.get("allocatable")),
            heartbeat=parse_time(ready.get("lastHeartbeatTime")),
            boot_id=(status.get("nodeInfo") or _NOTHING).get("bootID", ""),
        )


def _extended(resources: Mapping[str, str] | None) -> Mapping[str, int]:
    return {name: parse_count(amount) for name, amount in (resources or {}).items() if "/" in name}


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of an object: `Owner("DaemonSet", "dcgm-exporter")`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty while it is not bound to a node."""
    labels: Mapping[str, str]
    owner: Owner | None
    """Its controller; None for a bare pod."""
    mirror: bool
    """Whether it stands for a static pod of the kubelet, which the API cannot end."""
    resources: frozenset[str]
    """Extended resources, above zero, in requests or limits of any container or init container; those that a
    ResourceClaim stands for are left out."""
    claims: frozenset[str]
    """Names of its ResourceClaims: named in the spec, made from templates, or made for extended resources."""
    containers: frozenset[str]
    """Names of its containers."""
    node_keys: frozenset[str]
    """Keys of Node labels that its node selector or required node affinity goes by."""
    empty_dir: bool
    """Whether it keeps data in an emptyDir volume, which ends with it."""
    grace_s: int
    """The grace period it is being deleted with, else the one of its spec."""
    phase: str
    ready: bool
    """Whether the Ready condition is True."""
    ready_since: datetime | None
    """When the Ready condition became what it is; whole seconds."""
    started: bool
    """Whether status.startTime is set: the kubelet has taken notice of the pod."""
    deleted: datetime | None
    """metadata.deletionTimestamp: when its grace period ends. None for a pod that is not being deleted."""
    finalizers: tuple[str, ...]

    @classmethod
    def from_json(cls, obj: JsonObject) -> Pod:
        """From a Pod."""
        meta = obj["metadata"]
        spec = obj.get("spec") or _NOTHING
        status = obj.get("status") or _NOTHING
        owner = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), None)
        ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), _NOTHING)
        grace = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
        return cls(
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            uid=meta.get("uid", ""),
            node=spec.get("nodeName") or "",
            labels=meta.get("labels") or {},
            owner=Owner(owner["kind"], owner["name"]) if owner else None,
            mirror="kubernetes.io/config.mirror" in (meta.get("annotations") or {}),
            resources=_requested(spec) - _by_claim(status),
            claims=_claimed(spec, status),
            containers=frozenset(each.get("name", "") for each in spec.get("containers") or ()),
            node_keys=_node_keys(spec),
            empty_dir=any("emptyDir" in volume for volume in spec.get("volumes") or ()),
            grace_s=30 if grace is None else int(grace),
            phase=status.get("phase", ""),
            ready=ready.get("status") == "True",
            ready_since=parse_time(ready.get("lastTransitionTime")),
            started=bool(status.get("startTime")),
            deleted=parse_time(meta.get("deletionTimestamp")),
            finalizers=tuple(meta.get("finalizers") or ()),
        )

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good; it holds no device any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def daemon_set(self) -> bool:
        """Whether a DaemonSet owns it and would bring it back at once."""
        return self.owner is not None and self.owner.kind == "DaemonSet"

    @property
    def bare(self) -> bool:
        """Whether nothing would bring it back after an eviction."""
        return self.owner is None and not self.mirror

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def _requested(spec: Mapping[str, Any]) -> frozenset[str]:
    names: set[str] = set()
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or _NOTHING
        for part in ("requests", "limits"):
            names.update(
                name
                for name, amount in (resources.get(part) or {}).items()
                if "/" in name and str(amount) != "0"
            )
    return frozenset(names)


def _claimed(spec: Mapping[str, Any], status: Mapping[str, Any]) -> frozenset[str]:
    made = status.get("extendedResourceClaimStatus") or _NOTHING
    entries = (*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()), made)
    return frozenset(entry["resourceClaimName"] for entry in entries if entry.get("resourceClaimName"))


def _by_claim(status: Mapping[str, Any]) -> frozenset[str]:
    """Extended resources that a DRA driver serves, and no device plugin."""
    mappings = (status.get("extendedResourceClaimStatus") or _NOTHING).get("requestMappings") or ()
    return frozenset(each.get("resourceName", "") for each in mappings)


def _node_keys(spec: Mapping[str, Any]) -> frozenset[str]:
    affinity = (spec.get("affinity") or _NOTHING).get("nodeAffinity") or _NOTHING
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or _NOTHING
    expressions = (
        each.get("key", "")
        for term in required.get("nodeSelectorTerms") or ()
        for each in term.get("matchExpressions") or ()
    )
    return frozenset((*(spec.get("nodeSelector") or ()), *expressions))


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """A ConfigMap."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    data: Mapping[str, str]

    @classmethod
    def from_json(cls, obj: JsonObject) -> ConfigMap:
        """From a ConfigMap; binaryData is left out."""
        meta = obj["metadata"]
        return cls(
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            data=obj.get("data") or {},
        )
