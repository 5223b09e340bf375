"""The chart, rendered by the real engine, and what is looked for in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.generate import CHART, render

Object = dict[str, Any]

VALUES = sorted(CHART.glob("ci/*-values.yaml"))
OLDEST, NEWEST = "1.30", "1.37"
"""The versions of Kubernetes that the chart is for: from its kubeVersion on, to the newest whose schemas there are."""


def values_of(path: Path) -> Object:
    found: Object = yaml.safe_load(path.read_text())
    return found


def of_kind(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of that kind, or of that kind and name."""
    (found,) = (o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"]))
    return found


def daemon_set(values: Object | None = None, namespace: str = "mig-manager") -> Object:
    made = [o for o in render(values, namespace) if o["kind"] == "DaemonSet"]
    return made[0]


def container(workload: Object) -> Object:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(workload: Object) -> dict[str, str]:
    """The variables with a value of their own, without those from the downward API."""
    return {each["name"]: each["value"] for each in container(workload)["env"] if "value" in each}


def downward(workload: Object) -> dict[str, str]:
    """Variables that the pod's own fields give, with their paths."""
    return {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container(workload)["env"]
        if "valueFrom" in each
    }


def granted(objects: list[Object], account: str = "mig-manager") -> set[tuple[str, str, str, str, str]]:
    """What an account may do: namespace (empty: everywhere), API group, resource, name, verb."""
    roles = {
        (o["kind"], o["metadata"]["name"]): o["rules"]
        for o in objects
        if o["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for each in objects:
        if each["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in [subject["name"] for subject in each["subjects"]]:
            continue
        where = each["metadata"].get("namespace", "")
        for rule in roles[each["roleRef"]["kind"], each["roleRef"]["name"]]:
            found |= {
                (where, group, resource, name, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
                for verb in rule["verbs"]
            }
    return found
