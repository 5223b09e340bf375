"""The cells that kubectl shows of each kind but pods, in the order of the columns in `tables`."""

from __future__ import annotations

from typing import Any

from mig_manager.simulation.api.durations import age
from mig_manager.simulation.objects import Object


def name_of(obj: Object) -> str:
    """The name."""
    name: str = obj["metadata"]["name"]
    return name


def age_of(obj: Object) -> str:
    """The time since the creation."""
    return age(obj["metadata"].get("creationTimestamp"))


def look(obj: Object, *path: str) -> Any:
    """What lies at a path of keys; None if there is nothing."""
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def node_cells(obj: Object) -> list[Any]:
    """Name, Status, Roles, Age, Version, Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime."""
    ready = next((each for each in look(obj, "status", "conditions") or [] if each["type"] == "Ready"), None)
    state = "Unknown" if ready is None else ("Ready" if ready["status"] == "True" else "NotReady")
    if look(obj, "spec", "unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    labels = look(obj, "metadata", "labels") or {}
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix)
    info = look(obj, "status", "nodeInfo") or {}
    addresses = {each["type"]: each["address"] for each in look(obj, "status", "addresses") or []}
    return [
        name_of(obj),
        state,
        ",".join(roles) or "<none>",
        age_of(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def event_cells(obj: Object) -> list[Any]:
    """Last Seen, Type, Reason, Object, Subobject, Source, Message, First Seen, Count, Name."""
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
        name_of(obj),
    ]


def _pods_of(obj: Object) -> list[Any]:
    """Containers, images and selector: the wide columns of workloads."""
    containers = look(obj, "spec", "template", "spec", "containers") or []
    return [
        ",".join(each.get("name", "") for each in containers),
        ",".join(each.get("image", "") for each in containers),
        _selector_text(look(obj, "spec", "selector")),
    ]


def _selector_text(selector: Object | None) -> str:
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


def daemon_set_cells(obj: Object) -> list[Any]:
    """Name, the five counts, Node Selector, Age, Containers, Images, Selector."""
    status = obj.get("status") or {}
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    selector = look(obj, "spec", "template", "spec", "nodeSelector") or {}
    return [
        name_of(obj),
        *(status.get(each, 0) for each in counts),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>",
        age_of(obj),
        *_pods_of(obj),
    ]


def deployment_cells(obj: Object) -> list[Any]:
    """Name, Ready, Up-to-date, Available, Age, Containers, Images, Selector."""
    status = obj.get("status") or {}
    return [
        name_of(obj),
        f"{status.get('readyReplicas', 0)}/{look(obj, 'spec', 'replicas') or 0}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age_of(obj),
        *_pods_of(obj),
    ]


def replica_set_cells(obj: Object) -> list[Any]:
    """Name, Desired, Current, Ready, Age, Containers, Images, Selector."""
    status = obj.get("status") or {}
    counts = [look(obj, "spec", "replicas") or 0, status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name_of(obj), *counts, age_of(obj), *_pods_of(obj)]


def budget_cells(obj: Object) -> list[Any]:
    """Name, Min Available, Max Unavailable, Allowed Disruptions, Age."""
    limits = [look(obj, "spec", key) for key in ("minAvailable", "maxUnavailable")]
    shown = ["N/A" if each is None else str(each) for each in limits]
    return [name_of(obj), *shown, look(obj, "status", "disruptionsAllowed") or 0, age_of(obj)]


def config_map_cells(obj: Object) -> list[Any]:
    """Name, Data, Age."""
    return [name_of(obj), len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), age_of(obj)]


def binding_cells(obj: Object) -> list[Any]:
    """Name, Role, Age, Users, Groups, ServiceAccounts."""
    subjects: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for each in obj.get("subjects") or []:
        name = f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"]
        subjects[each["kind"]].append(name)
    role = obj["roleRef"]
    listed = [", ".join(names) for names in subjects.values()]
    return [name_of(obj), f"{role['kind']}/{role['name']}", age_of(obj), *listed]


def claim_cells(obj: Object) -> list[Any]:
    """Name, State, Age."""
    status = obj.get("status") or {}
    states = []
    if "deletionTimestamp" in obj["metadata"]:
        states.append("deleted")
    if status.get("allocation"):
        states.append("allocated")
    if status.get("reservedFor"):
        states.append("reserved")
    return [name_of(obj), ",".join(states) or "pending", age_of(obj)]


def controller_of(obj: Object) -> str:
    """The first owner, or `<none>`."""
    owner = next((each for each in obj["metadata"].get("ownerReferences") or []), None)
    return f"{owner['kind'].lower()}.apps/{owner['name']}" if owner else "<none>"
