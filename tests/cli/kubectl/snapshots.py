"""A cluster in which everything is in order, as a value, and the ways in which it can be otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from mig_manager.cli.kubectl.checking.daemonpods import Account
from mig_manager.cli.kubectl.checking.snapshot import Snapshot
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.objects import JsonObject, Node
from mig_manager.daemon.gpus import gpus_annotation
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    STRATEGY_LABEL,
    Phase,
    State,
    Status,
)
from tests.cli.kubectl.cluster import FINISHED, STARTED, feasible, inventory_of, resources_of, with_layout

NOW = datetime(2026, 3, 1, 12, 1, tzinfo=UTC)
ACCOUNT = Account("mig-manager", "mig-manager")
LAYOUT = "all-1g.10gb"
DONE = Status(LAYOUT, State.SUCCESS, Phase.DONE, startedAt=STARTED, finishedAt=FINISHED)
GPUS = with_layout(LAYOUT, inventory_of("2xA100-SXM4-80GB"))
JOURNAL = Journal(
    STARTED, True, {}, operands={"nvidia.com/gpu.deploy.dcgm": "true"}, services=("nvsm.service",)
)


def node(
    name: str = "gpu-1",
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    status: Status | None = DONE,
    journal: Journal | None = None,
    offers: Mapping[str, int] | None = None,
    **spec: Any,
) -> GpuNode:
    """A Node whose GPUs are as its layout says; None in labels and annotations takes one away."""
    said = {} if status is None else {STATUS_ANNOTATION: status.to_json()}
    kept = {} if journal is None else {JOURNAL_ANNOTATION: journal.to_json()}
    all_labels = {
        CONFIG_LABEL: LAYOUT,
        STATE_LABEL: None if status is None else str(status.state),
        STRATEGY_LABEL: "mixed",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.deploy.device-plugin": "true",
        "nvidia.com/gpu.deploy.dcgm": "true",
        "nvidia.com/cuda.driver-version.full": "570.86.15",
        **(labels or {}),
    }
    all_annotations = {
        GPUS_ANNOTATION: gpus_annotation(GPUS),
        LAYOUTS_ANNOTATION: json.dumps(feasible(GPUS)),
        **said,
        **kept,
        **(annotations or {}),
    }
    offered = resources_of(GPUS, "mixed") if offers is None else offers
    meta = {
        "name": name,
        "labels": {key: value for key, value in all_labels.items() if value is not None},
        "annotations": {key: value for key, value in all_annotations.items() if value is not None},
    }
    resources = {key: str(count) for key, count in offered.items()}
    return GpuNode(Node.from_json({"metadata": meta, "spec": spec, "status": {"allocatable": resources}}))


def pod(
    name: str,
    labels: Mapping[str, str],
    *,
    on: str = "gpu-1",
    namespace: str = "gpu-operator",
    image: str = "example/image:1",
    ready: bool = True,
    restarts: int = 0,
    waiting: str = "",
    env: Mapping[str, str] | None = None,
    account: str = "default",
) -> JsonObject:
    """A pod of a DaemonSet."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "ownerReferences": [{"kind": "DaemonSet", "name": name, "uid": name, "controller": True}],
        },
        "spec": {
            "nodeName": on,
            "serviceAccountName": account,
            "containers": [{"name": "main", "image": image, "env": variables}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "main", "restartCount": restarts, "state": state}],
        },
    }


def daemon(
    on: str = "gpu-1", image: str = "registry.example.com/gpu/mig-manager:0.1.0", **more: Any
) -> JsonObject:
    """A pod of the daemon, as the chart makes it."""
    name = f"mig-manager-{on}"
    labels = {"app.kubernetes.io/name": "mig-manager"}
    return pod(name, labels, on=on, namespace="mig-manager", image=image, account="mig-manager", **more)


def plugin(strategy: str = "mixed", **more: Any) -> JsonObject:
    """The GPU Operator's device plugin."""
    labels = {"app": "nvidia-device-plugin-daemonset"}
    return pod("device-plugin", labels, env={"MIG_STRATEGY": strategy}, **more)


def policy(account: Account = ACCOUNT) -> JsonObject:
    """The admission policy, for that account."""
    expression = f"request.userInfo.username == '{account.user}'"
    return {"metadata": {"name": "mig-manager"}, "spec": {"matchConditions": [{"expression": expression}]}}


def binding(action: str = "Deny") -> JsonObject:
    """What puts it in force."""
    spec = {"policyName": "mig-manager", "validationActions": [action]}
    return {"metadata": {"name": "mig-manager"}, "spec": spec}


HEALTHY = Snapshot(
    now=NOW,
    version="0.1.0",
    kubernetes="v1.34.1",
    nodes=(node(),),
    inventories={"gpu-1": GPUS},
    pods=(daemon(), plugin()),
    policies=(policy(),),
    bindings=(binding(),),
    missing={ACCOUNT: ()},
)


def unlike(**changes: Any) -> Snapshot:
    """The healthy cluster with something else in it."""
    return replace(HEALTHY, **changes)
