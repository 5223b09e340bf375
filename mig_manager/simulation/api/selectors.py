"""Label and field selectors, in the text form of the API and as objects of kind LabelSelector."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mig_manager.simulation.api.status import StatusError, bad_request
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import (
    DAEMON_SETS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_SLICES,
    SECRETS,
)

Match = Callable[[Object], bool]

_FIELDS: Mapping[Resource, tuple[str, ...]] = {
    PODS: (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    NODES: ("spec.unschedulable",),
    NAMESPACES: ("status.phase",),
    SECRETS: ("type",),
    REPLICA_SETS: ("status.replicas",),
    DAEMON_SETS: (),
    RESOURCE_SLICES: ("spec.driver", "spec.nodeName"),
    EVENTS: (
        *(
            f"involvedObject.{each}"
            for each in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
"""Selectable fields beside metadata.name and metadata.namespace."""

_IN = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_EQUALS = re.compile(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)")
_EXISTS = re.compile(r"(!?)\s*([^=!<>\s()]+)")
_COMPARE = re.compile(r"([^=!<>\s]+)\s*([<>])\s*(-?\d+)")


def label_selector(text: str) -> Match:
    """What `labelSelector=` asks for; StatusError 400 if it cannot be read."""
    tests = [_label_test(part.strip(), text) for part in _split(text)] if text.strip() else []
    return lambda obj: all(test(labels_of(obj)) for test in tests)


def label_matches(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object matches. An empty one matches everything, none at all nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], each.get("values") or []
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds[each["operator"]]:
            return False
    return True


def field_selector(resource: Resource, text: str) -> Match:
    """What `fieldSelector=` asks for; StatusError 400 for a field that the kind does not offer."""
    tests: list[tuple[str, bool, str]] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = found.groups()
        if field not in ("metadata.name", "metadata.namespace", *_FIELDS.get(resource, ())):
            raise StatusError(
                400,
                "BadRequest",
                f'Unable to find "{resource.api_version}, Resource={resource.plural}" that match label '
                f'selector "", field selector "{text}": field label not supported: {field}',
            )
        tests.append((field, operator != "!=", value))
    return lambda obj: all((_field(obj, field) == value) is wanted for field, wanted, value in tests)


def labels_of(obj: Object) -> dict[str, str]:
    """The labels of an object."""
    return obj.get("metadata", {}).get("labels") or {}


def _split(text: str) -> list[str]:
    """At the commas that stand outside parentheses."""
    return re.split(r",(?![^(]*\))", text)


def _label_test(part: str, whole: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _IN.fullmatch(part):
        key, operator, listed = found.groups()
        values = {each.strip() for each in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUALS.fullmatch(part):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _COMPARE.fullmatch(part):
        key, operator, number = found.groups()
        return lambda labels: _compares(labels.get(key), operator, int(number))
    if found := _EXISTS.fullmatch(part):
        absent, key = found.groups()
        return lambda labels: (key in labels) is not bool(absent)
    raise bad_request(f'unable to parse requirement: found "{part}" in selector "{whole}"')


def _compares(value: str | None, operator: str, number: int) -> bool:
    if value is None or not re.fullmatch(r"-?\d+", value):
        return False
    return int(value) > number if operator == ">" else int(value) < number


def _field(obj: Object, path: str) -> str:
    if path == "source":
        path = "source.component"
    value: object = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if path in ("spec.unschedulable", "spec.hostNetwork"):
        return "true" if value else "false"
    if path == "status.replicas":
        return str(value or 0)
    return "" if value is None else str(value)
