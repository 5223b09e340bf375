"""The columns that kubectl prints: meta.k8s.io/v1 Tables of the kinds served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mig_manager.simulation.api.cells import (
    age_of,
    binding_cells,
    budget_cells,
    claim_cells,
    config_map_cells,
    controller_of,
    daemon_set_cells,
    deployment_cells,
    event_cells,
    look,
    name_of,
    node_cells,
    replica_set_cells,
)
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
    return _LAYOUTS.get(resource, Layout(("Name", "Age"), lambda obj: [name_of(obj), age_of(obj)]))


_WORKLOAD = ("+Containers", "+Images", "+Selector")
_ROLE = Layout(("Name", "Created At"), lambda obj: [name_of(obj), obj["metadata"]["creationTimestamp"]])
_BINDING = Layout(("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), binding_cells)
_EVENT = Layout(
    (
        *("Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message"),
        *("+First Seen", "+Count#", "+Name"),
    ),
    event_cells,
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
        node_cells,
    ),
    EVENTS: _EVENT,
    CONFIGMAPS: Layout(("Name", "Data", "Age"), config_map_cells),
    SECRETS: Layout(
        ("Name", "Type", "Data#", "Age"),
        lambda obj: [name_of(obj), obj.get("type", ""), len(obj.get("data") or {}), age_of(obj)],
    ),
    NAMESPACES: Layout(
        ("Name", "Status", "Age"), lambda obj: [name_of(obj), look(obj, "status", "phase") or "", age_of(obj)]
    ),
    DAEMON_SETS: Layout(
        (
            *("Name", "Desired#", "Current#", "Ready#", "Up-to-date#", "Available#", "Node Selector", "Age"),
            *_WORKLOAD,
        ),
        daemon_set_cells,
    ),
    DEPLOYMENTS: Layout(("Name", "Ready", "Up-to-date", "Available", "Age", *_WORKLOAD), deployment_cells),
    REPLICA_SETS: Layout(("Name", "Desired#", "Current#", "Ready#", "Age", *_WORKLOAD), replica_set_cells),
    CONTROLLER_REVISIONS: Layout(
        ("Name", "Controller", "Revision", "Age"),
        lambda obj: [name_of(obj), controller_of(obj), obj.get("revision", 0), age_of(obj)],
    ),
    POD_DISRUPTION_BUDGETS: Layout(
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions#", "Age"), budget_cells
    ),
    LEASES: Layout(
        ("Name", "Holder", "Age"),
        lambda obj: [name_of(obj), look(obj, "spec", "holderIdentity") or "", age_of(obj)],
    ),
    ROLES: _ROLE,
    CLUSTER_ROLES: _ROLE,
    ROLE_BINDINGS: _BINDING,
    CLUSTER_ROLE_BINDINGS: _BINDING,
    RESOURCE_CLAIMS: Layout(("Name", "State", "Age"), claim_cells),
    RESOURCE_SLICES: Layout(
        ("Name", "Node", "Driver", "Pool", "Age"),
        lambda obj: [
            name_of(obj),
            look(obj, "spec", "nodeName") or "",
            look(obj, "spec", "driver"),
            look(obj, "spec", "pool", "name"),
            age_of(obj),
        ],
    ),
}
