"""The chart, rendered by the real engine once for the same values, and what is looked for in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from kubernetes_validate.utils import validate

from deploy import generate
from deploy.generate import CHART, KUSTOMIZE, program

Object = dict[str, Any]

VALUES = sorted(CHART.glob("ci/*-values.yaml"))
OLDEST, NEWEST = "1.30", "1.37"
"""The versions of Kubernetes that the chart is for: from its kubeVersion on, to the newest whose schemas there are."""


def values_of(path: Path) -> Object:
    found: Object = yaml.safe_load(path.read_text())
    return found


def render(values: Object | None = None, namespace: str = "mig-manager") -> list[Object]:
    """The objects that the chart makes with these values, hooks included."""
    found: list[Object] = json.loads(_rendered(json.dumps(values), namespace))
    return found


@cache
def _rendered(values: str, namespace: str) -> str:
    return json.dumps(generate.render(json.loads(values), namespace))


def built(name: str) -> list[Object]:
    """The objects that kubectl makes of a directory with a kustomization."""
    return list(yaml.load_all(_built(name), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def _built(name: str) -> str:
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(KUSTOMIZE / name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check_valid(objects: Iterable[Object], version: str) -> None:
    """That objects are what that version of Kubernetes takes. Raises kubernetes_validate's ValidationError."""
    for each in objects:
        _check_valid(json.dumps(each), version)


@cache
def _check_valid(each: str, version: str) -> None:
    validate(json.loads(each), version, strict=True)


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
