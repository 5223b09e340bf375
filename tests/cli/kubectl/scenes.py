"""Pods, and Nodes for them to wait among, as values; no API server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.explaining.scene import Place
from mig_manager.cli.kubectl.use import Tenant
from mig_manager.cluster.objects import JsonObject, Node
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    LAYOUTS_ANNOTATION,
    STATUS_ANNOTATION,
    STRATEGY_LABEL,
    Phase,
    State,
    Status,
)
from mig_manager.layouts.generate import generate_layouts
from mig_manager.planning.offers import offers
from tests.cli.kubectl.cluster import STARTED, feasible, inventory_of, resources_of, with_layout

ONE_A100 = "1xA100-SXM4-80GB"
MIG = "nvidia.com/mig-"


def pod(wants: Mapping[str, int] | None = None, *, meta: JsonObject | None = None, **spec: Any) -> JsonObject:
    """A pending pod ml/p of one container; `status` beside the parts of its spec."""
    status = spec.pop("status", {"phase": "Pending"})
    limits = {name: str(count) for name, count in (wants or {}).items()}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", **(meta or {})},
        "spec": {"containers": [container], **spec},
        "status": status,
    }


def place(
    name: str = "gpu-1",
    gpus: str = ONE_A100,
    *,
    layout: str = "all-1g.10gb",
    strategy: str = "mixed",
    users: Mapping[str, Mapping[str, int]] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    cordoned: bool = False,
    runs_to: str = "",
    offers_only: Mapping[str, int] | None = None,
    known: bool = True,
    doubts: tuple[str, ...] = (),
) -> Place:
    """A Node that has the layout.

    `runs_to`: it is being changed to that one; `offers_only`: it advertises that, whatever its GPUs are; `known`: they
    are.
    """
    inventory = with_layout(layout, inventory_of(gpus))
    annotations = {LAYOUTS_ANNOTATION: json.dumps(feasible(inventory))} if known else {}
    if runs_to:
        status = Status(runs_to, State.PENDING, Phase.DRAINING)
        journal = Journal(STARTED, cordoned, {}).to_json()
        annotations |= {STATUS_ANNOTATION: status.to_json(), JOURNAL_ANNOTATION: journal}
    shown = resources_of(inventory, strategy) if offers_only is None else offers_only
    offered = {key: str(count) for key, count in shown.items()}
    node = Node.from_json(
        {
            "metadata": {
                "name": name,
                "labels": {CONFIG_LABEL: runs_to or layout, STRATEGY_LABEL: strategy, **(labels or {})},
                "annotations": annotations,
            },
            "spec": {"unschedulable": cordoned, "taints": list(taints)},
            "status": {"allocatable": offered},
        }
    )
    found = Place(GpuNode(node), tuple(map(Tenant.from_json, _holders(users or {}, name))))
    book = generate_layouts(offers(inventory))
    return replace(found, inventory=inventory, book=book, doubts=doubts) if known else found


def _holders(users: Mapping[str, Mapping[str, int]], node: str) -> Iterator[JsonObject]:
    """Running pods of some controller that hold that much, by resource and `namespace/name`."""
    for resource, pods in users.items():
        for title, count in pods.items():
            namespace, _, name = title.partition("/")
            meta: JsonObject = {"name": name, "namespace": namespace, "uid": title}
            meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": name, "controller": True}]
            yield pod({resource: count}, meta=meta, nodeName=node, status={"phase": "Running"})
