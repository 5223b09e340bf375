"""The columns that kubectl prints: meta.k8s.io/v1 Tables of the kinds served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mig_manager.simulation.api.durations import age
from mig_manager.simulation.api.podcells import pod_cells
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
)

Cells = Callable[[Object], list[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a kind: a leading `+` means in wide output only, a trailing `#` a number."""

    columns: tuple[str, ...]
    cells: Cells


def definitions(resource: Resource) -> list[Object]:
    """`columnDefinitions`."""
    return [
        {
            "name": column.strip("+#"),
            "type": "integer" if column.endswith("#") else "string",
            "format": "name" if column == "Name" else "",
            "description": "",
            "priority": int(column.startswith("+")),
        }
        for column in _layout(resource).columns
    ]


def table(
    resource: Resource, objects: Sequence[Object], meta: Object, *, include: str, headers: bool = True
) -> Object:
    """A Table of the objects. `include`: None, Metadata or Object, as `includeObject` of the query says."""
    cells = _layout(resource).cells
    rows = []
    for each in objects:
        whole = {"kind": resource.kind, "apiVersion": resource.api_version, **each}
        row: Object = {"cells": cells(each)}
        if include != "None":
            row["object"] = whole if include == "Object" else partial(whole)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions(resource) if headers else None,
        "rows": rows,
    }


def partial(obj: Object) -> Object:
    """The PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj.get("metadata", {}),
    }


def _layout(resource: Resource) -> Layout:
    return _LAYOUTS.get(resource, Layout(("Name", "Age"), lambda obj: [_name(obj), _age(obj)]))


def _name(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _age(obj: Object) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _at(obj: Object, *path: str) -> Any:
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _node(obj: Object) -> list[Any]:
    ready = next((each for each in _at(obj, "status", "conditions") or [] if each["type"] == "Ready"), None)
    state = "Unknown" if ready is None else ("Ready" if ready["status"] == "True" else "NotReady")
    if _at(obj, "spec", "unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    labels = _at(obj, "metadata", "labels") or {}
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix)
    info = _at(obj, "status", "nodeInfo") or {}
    addresses = {each["type"]: each["address"] for each in _at(obj, "status", "addresses") or []}
    return [
        _name(obj),
        state,
        ",".join(roles) or "<none>",
        _age(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(obj: Object) -> list[Any]:
    involved = obj.get("involvedObject") or {}
    source = obj.get("source") or {}
    text = source.get("component") or obj.get("reportingComponent") or ""
    if source.get("host"):
        text = f"{text}, {source['host']}"
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    series = obj.get("series") or {}
    last = series.get("lastObservedTime") or obj.get("lastTimestamp") or first
    return [
        age(last),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        text,
        (obj.get("message") or "").strip(),
        age(first),
        series.get("count") or obj.get("count") or 1,
        _name(obj),
    ]


def _pods_of(obj: Object) -> list[Any]:
    """Containers, images and selector: the wide columns of workloads."""
    containers = _at(obj, "spec", "template", "spec", "containers") or []
    return [
        ",".join(each.get("name", "") for each in containers),
        ",".join(each.get("image", "") for each in containers),
        selector_text(_at(obj, "spec", "selector")),
    ]


def selector_text(selector: Object | None) -> str:
    """A LabelSelector as text: `a=b,c in (d,e)`."""
    held = selector or {}
    parts = [f"{key}={value}" for key, value in sorted((held.get("matchLabels") or {}).items())]
    for each in held.get("matchExpressions") or []:
        values = f"({','.join(each.get('values') or [])})"
        forms = {
            "In": f"{each['key']} in {values}",
            "NotIn": f"{each['key']} notin {values}",
            "Exists": each["key"],
            "DoesNotExist": f"!{each['key']}",
        }
        parts.append(forms[each["operator"]])
    return ",".join(parts) or "<none>"


def _daemon_set(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    selector = _at(obj, "spec", "template", "spec", "nodeSelector") or {}
    return [
        _name(obj),
        *(status.get(each, 0) for each in counts),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>",
        _age(obj),
        *_pods_of(obj),
    ]


def _deployment(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    return [
        _name(obj),
        f"{status.get('readyReplicas', 0)}/{_at(obj, 'spec', 'replicas') or 0}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(obj),
        *_pods_of(obj),
    ]


def _replica_set(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    counts = [_at(obj, "spec", "replicas") or 0, status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [_name(obj), *counts, _age(obj), *_pods_of(obj)]


def _budget(obj: Object) -> list[Any]:
    limits = [_at(obj, "spec", key) for key in ("minAvailable", "maxUnavailable")]
    shown = ["N/A" if each is None else str(each) for each in limits]
    return [_name(obj), *shown, _at(obj, "status", "disruptionsAllowed") or 0, _age(obj)]


def _config_map(obj: Object) -> list[Any]:
    return [_name(obj), len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), _age(obj)]


def _binding(obj: Object) -> list[Any]:
    subjects: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for each in obj.get("subjects") or []:
        name = f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"]
        subjects[each["kind"]].append(name)
    role = obj["roleRef"]
    listed = [", ".join(names) for names in subjects.values()]
    return [_name(obj), f"{role['kind']}/{role['name']}", _age(obj), *listed]


def _claim(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    states = []
    if "deletionTimestamp" in obj["metadata"]:
        states.append("deleted")
    if status.get("allocation"):
        states.append("allocated")
    if status.get("reservedFor"):
        states.append("reserved")
    return [_name(obj), ",".join(states) or "pending", _age(obj)]


_WORKLOAD = ("+Containers", "+Images", "+Selector")
_ROLE = Layout(("Name", "Created At"), lambda obj: [_name(obj), obj["metadata"]["creationTimestamp"]])
_BINDING = Layout(("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), _binding)
_EVENT = Layout(
    (
        *("Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message"),
        *("+First Seen", "+Count#", "+Name"),
    ),
    _event,
)
_LAYOUTS: Mapping[Resource, Layout] = {
    PODS: Layout(
        (
            *("Name", "Ready", "Status", "Restarts", "Age"),
            *("+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        ),
        pod_cells,
    ),
    NODES: Layout(
        (
            *("Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP"),
            *("+OS-Image", "+Kernel-Version", "+Container-Runtime"),
        ),
        _node,
    ),
    EVENTS: _EVENT,
    CONFIGMAPS: Layout(("Name", "Data", "Age"), _config_map),
    SECRETS: Layout(
        ("Name", "Type", "Data#", "Age"),
        lambda obj: [_name(obj), obj.get("type", ""), len(obj.get("data") or {}), _age(obj)],
    ),
    NAMESPACES: Layout(
        ("Name", "Status", "Age"), lambda obj: [_name(obj), _at(obj, "status", "phase") or "", _age(obj)]
    ),
    DAEMON_SETS: Layout(
        (
            *("Name", "Desired#", "Current#", "Ready#", "Up-to-date#", "Available#", "Node Selector", "Age"),
            *_WORKLOAD,
        ),
        _daemon_set,
    ),
    DEPLOYMENTS: Layout(("Name", "Ready", "Up-to-date", "Available", "Age", *_WORKLOAD), _deployment),
    REPLICA_SETS: Layout(("Name", "Desired#", "Current#", "Ready#", "Age", *_WORKLOAD), _replica_set),
    CONTROLLER_REVISIONS: Layout(
        ("Name", "Controller", "Revision", "Age"),
        lambda obj: [_name(obj), _controller(obj), obj.get("revision", 0), _age(obj)],
    ),
    POD_DISRUPTION_BUDGETS: Layout(
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions#", "Age"), _budget
    ),
    LEASES: Layout(
        ("Name", "Holder", "Age"),
        lambda obj: [_name(obj), _at(obj, "spec", "holderIdentity") or "", _age(obj)],
    ),
    ROLES: _ROLE,
    CLUSTER_ROLES: _ROLE,
    ROLE_BINDINGS: _BINDING,
    CLUSTER_ROLE_BINDINGS: _BINDING,
    RESOURCE_CLAIMS: Layout(("Name", "State", "Age"), _claim),
    RESOURCE_SLICES: Layout(
        ("Name", "Node", "Driver", "Pool", "Age"),
        lambda obj: [
            _name(obj),
            _at(obj, "spec", "nodeName") or "",
            _at(obj, "spec", "driver"),
            _at(obj, "spec", "pool", "name"),
            _age(obj),
        ],
    ),
}


def _controller(obj: Object) -> str:
    owner = next((each for each in obj["metadata"].get("ownerReferences") or []), None)
    return f"{owner['kind'].lower()}.apps/{owner['name']}" if owner else "<none>"
