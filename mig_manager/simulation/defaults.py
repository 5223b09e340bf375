"""What the API server fills in when an object leaves it out, as far as clients look at it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SECRETS,
)

_NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)
"""Texts that the server always shows, empty or not; clients with models insist on them."""
_DAEMON_COUNTS = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
_BUDGET_COUNTS = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")


def with_defaults(resource: Resource, obj: Object) -> Object:
    """The object with its defaults filled in, in place."""
    if resource == PODS:
        spec = obj.setdefault("spec", {})
        _pod_spec(spec)
        _fill(
            spec, {"serviceAccountName": "default", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
        )
        _tolerations(spec)
        _fill(obj.setdefault("status", {}), {"phase": "Pending", "qosClass": _qos_class(spec)})
    elif resource in (DAEMON_SETS, DEPLOYMENTS, REPLICA_SETS):
        _workload(resource, obj.setdefault("spec", {}))
        counts = {DAEMON_SETS: _DAEMON_COUNTS, REPLICA_SETS: ("replicas",)}.get(resource, ())
        _fill(obj.setdefault("status", {}), dict.fromkeys(counts, 0))
    elif resource == JOBS:
        spec = obj.setdefault("spec", {})
        _fill(spec, {"backoffLimit": 6, "completions": 1, "parallelism": 1, "completionMode": "NonIndexed"})
        _pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    elif resource == POD_DISRUPTION_BUDGETS:
        obj.setdefault("spec", {})
        _fill(obj.setdefault("status", {}), dict.fromkeys(_BUDGET_COUNTS, 0))
    elif resource == NODES:
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        _fill(status.setdefault("nodeInfo", {}), dict.fromkeys(_NODE_INFO, ""))
        status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    elif resource == NAMESPACES:
        name = obj.get("metadata", {}).get("name", "")
        obj.setdefault("metadata", {}).setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        obj.setdefault("status", {}).setdefault("phase", "Active")
    elif resource == SECRETS:
        obj.setdefault("type", "Opaque")
        for key, text in obj.pop("stringData", {}).items():
            obj.setdefault("data", {})[key] = b64encode(text.encode()).decode()
    elif resource == EVENTS:
        _fill(obj, {"type": "", "reason": "", "message": "", "source": {}, "reportingComponent": ""})
        _fill(
            obj, {"reportingInstance": "", "firstTimestamp": None, "lastTimestamp": None, "eventTime": None}
        )
    return obj


def _fill(target: Object, defaults: Object) -> None:
    for key, value in defaults.items():
        target.setdefault(key, value)


def _workload(resource: Resource, spec: Object) -> None:
    template = spec.setdefault("template", {}).setdefault("spec", {})
    _pod_spec(template)
    if resource == DAEMON_SETS:
        _fill(spec, {"revisionHistoryLimit": 10, "updateStrategy": {}})
        _fill(spec["updateStrategy"], {"type": "RollingUpdate"})
        if spec["updateStrategy"]["type"] == "RollingUpdate":
            _fill(
                spec["updateStrategy"].setdefault("rollingUpdate", {}), {"maxSurge": 0, "maxUnavailable": 1}
            )
        return
    spec.setdefault("replicas", 1)
    if resource == DEPLOYMENTS:
        _fill(spec, {"progressDeadlineSeconds": 600, "revisionHistoryLimit": 10, "strategy": {}})
        _fill(spec["strategy"], {"type": "RollingUpdate"})
        if spec["strategy"]["type"] == "RollingUpdate":
            limits = spec["strategy"].setdefault("rollingUpdate", {})
            _fill(limits, {"maxSurge": "25%", "maxUnavailable": "25%"})


def _pod_spec(spec: Object) -> None:
    _fill(
        spec,
        {
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "terminationGracePeriodSeconds": 30,
            "schedulerName": "default-scheduler",
            "securityContext": {},
        },
    )
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        image = str(container.get("image", ""))
        latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
        _fill(
            container,
            {
                "imagePullPolicy": "Always" if latest else "IfNotPresent",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            },
        )
        for port in container.get("ports") or []:
            port.setdefault("protocol", "TCP")
        limits = container["resources"].get("limits")
        if limits:
            _fill(container["resources"].setdefault("requests", {}), limits)


def _tolerations(spec: Object) -> None:
    """What the DefaultTolerationSeconds admission plug-in adds."""
    held: list[Object] = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            each.get("key") in (key, None) and each.get("effect") in ("NoExecute", None, "") for each in held
        ):
            held.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def _qos_class(spec: Object) -> str:
    requests: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        resources = container.get("resources", {})
        for held, name in ((requests, "requests"), (limits, "limits")):
            wanted = resources.get(name) or {}
            held.append({key: str(wanted[key]) for key in ("cpu", "memory") if key in wanted})
    if not any(requests) and not any(limits):
        return "BestEffort"
    guaranteed = requests == limits and all(len(each) == 2 for each in limits)
    return "Guaranteed" if guaranteed else "Burstable"
