"""What the API server refuses to store, in its own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from mig_manager.simulation.api.selectors import label_matches
from mig_manager.simulation.api.status import Cause, bad_request, invalid
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
)

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"
_MAX_ANNOTATIONS = 256 * 1024
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_QUALIFIED}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    f"for validation is '{_VALUE}')"
)
_CONFIG_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
    f"'KEY_NAME',  or 'key-name', regex used for validation is '{_CONFIG_KEY}')"
)


def validate(resource: Resource, obj: Object, old: Object | None = None) -> None:
    """Raise StatusError if the object may not be stored (over `old`, when it is an update)."""
    meta = obj["metadata"]
    causes = [] if old else list(_name(resource, meta))
    causes += _labels(meta.get("labels") or {}, "metadata.labels")
    causes += _annotations(meta.get("annotations") or {})
    check = _CHECKS.get(resource)
    if check is not None:
        causes += check(obj, old)
    if causes:
        raise invalid(resource, meta.get("name") or meta.get("generateName", ""), causes)


def require_types(resource: Resource, obj: Object) -> None:
    """Raise StatusError 400 where a map of texts holds something else, which no Go struct takes in."""
    if (problem := type_problem(obj)) is not None:
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"{problem}"
        )


def type_problem(obj: Object) -> str | None:
    """The first value of a wrong type among the maps that people get wrong, or None."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        return f"json: cannot unmarshal {_go(meta)} into Go struct field .metadata of type v1.ObjectMeta"
    places: tuple[tuple[str, object], ...] = (
        ("ObjectMeta.metadata.labels", meta.get("labels")),
        ("ObjectMeta.metadata.annotations", meta.get("annotations")),
    )
    if obj.get("kind") == "ConfigMap":
        places += (("ConfigMap.data", obj.get("data")),)
    for place, held in places:
        if held is not None and not isinstance(held, dict):
            return (
                f"json: cannot unmarshal {_go(held)} into Go struct field {place} of type map[string]string"
            )
        for value in (held or {}).values():
            if not isinstance(value, str):
                return f"json: cannot unmarshal {_go(value)} into Go struct field {place} of type string"
    return _time_problem(obj) if obj.get("kind") == "Lease" else None


def _time_problem(lease: Object) -> str | None:
    """A time that is no MicroTime: its parser insists on six digits."""
    spec = lease.get("spec") or {}
    for key in ("acquireTime", "renewTime"):
        if spec.get(key) is not None and not _MICRO_TIME.fullmatch(str(spec[key])):
            return f'parsing time "{spec[key]}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse it'
    return None


def _go(value: object) -> str:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _invalid(field: str, value: object, text: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {text}", field)


def _required(field: str, text: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value: {text}" if text else "Required value", field)


def _name(resource: Resource, meta: Object) -> Iterator[Cause]:
    name = meta.get("name")
    if not name:
        yield _required("metadata.name", "name or generateName is required")
    elif resource in (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS):
        if "/" in name or "%" in name:
            yield _invalid("metadata.name", name, "may not contain '/' or '%'")
    elif resource == NAMESPACES:
        if not re.fullmatch(_LABEL, name) or len(name) > 63:
            yield _invalid("metadata.name", name, _LABEL_TEXT)
    elif not re.fullmatch(_SUBDOMAIN, name) or len(name) > 253:
        yield _invalid("metadata.name", name, _SUBDOMAIN_TEXT)


def _key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and (not re.fullmatch(_SUBDOMAIN, prefix) or len(prefix) > 253):
        return f"prefix part {_SUBDOMAIN_TEXT}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return None if re.fullmatch(_QUALIFIED, name) else _NAME_PART_TEXT


def _labels(labels: Mapping[str, str], field: str) -> Iterator[Cause]:
    for key, value in labels.items():
        if problem := _key_problem(key):
            yield _invalid(field, key, problem)
        if len(value) > 63:
            yield _invalid(field, value, "must be no more than 63 bytes")
        elif not re.fullmatch(_VALUE, value):
            yield _invalid(field, value, _VALUE_TEXT)


def _annotations(annotations: Mapping[str, str]) -> Iterator[Cause]:
    for key in annotations:
        if problem := _key_problem(key.lower()):
            yield _invalid("metadata.annotations", key, problem)
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        text = f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes"
        yield Cause("FieldValueTooLong", text, "metadata.annotations")


def _node(obj: Object, old: Object | None) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(obj.get("spec", {}).get("taints") or []):
        field = f"spec.taints[{i}]"
        key, value, effect = taint.get("key") or "", taint.get("value") or "", taint.get("effect") or ""
        if problem := _key_problem(key):
            yield _invalid(f"{field}.key", key, problem)
        if not re.fullmatch(_VALUE, value):
            yield _invalid(f"{field}.value", value, _VALUE_TEXT)
        if not effect:
            yield _required(f"{field}.effect")
        elif effect not in _EFFECTS:
            listed = ", ".join(f'"{each}"' for each in sorted(_EFFECTS))
            text = f'Unsupported value: "{effect}": supported values: {listed}'
            yield Cause("FieldValueNotSupported", text, f"{field}.effect")
        if (key, effect) in seen:
            yield Cause(
                "FieldValueDuplicate", f'Duplicate value: {{"key":"{key}","effect":"{effect}"}}', field
            )
        seen.add((key, effect))


def _pod(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    containers = spec.get("containers") or []
    if not containers:
        yield _required("spec.containers")
    for i, container in enumerate(containers):
        if not container.get("name"):
            yield _required(f"spec.containers[{i}].name")
        if not container.get("image"):
            yield _required(f"spec.containers[{i}].image")
    if old is not None and _fixed_part(spec) != _fixed_part(old["spec"]):
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
            "to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
            "was previously negative)"
        )
        yield Cause("FieldValueForbidden", text, "spec")


def _fixed_part(spec: Object) -> Object:
    """What an update of a pod may not change."""
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
    fixed = {key: value for key, value in spec.items() if key not in free}
    for key in ("containers", "initContainers"):
        if key in fixed:
            fixed[key] = [
                {name: value for name, value in each.items() if name != "image"} for each in fixed[key] or []
            ]
    return fixed


def _config_map(obj: Object, old: Object | None) -> Iterator[Cause]:
    for place in ("data", "binaryData"):
        for key in obj.get(place) or {}:
            if not re.fullmatch(_CONFIG_KEY, key):
                yield _invalid(f"{place}[{key}]", key, _CONFIG_KEY_TEXT)
    if old is not None and old.get("immutable") and obj.get("data") != old.get("data"):
        text = "Forbidden: field is immutable when `immutable` is set"
        yield Cause("FieldValueForbidden", text, "data")


def _workload(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    selector, template = spec.get("selector"), spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector:
        yield _required("spec.selector")
    elif not label_matches(selector, labels):
        shown = "{" + ",".join(f'"{key}":"{value}"' for key, value in sorted(labels.items())) + "}"
        text = f"Invalid value: {shown}: `selector` does not match template `labels`"
        yield Cause("FieldValueInvalid", text, "spec.template.metadata.labels")
    if not (template.get("spec") or {}).get("containers"):
        yield _required("spec.template.spec.containers")
    if old is not None and selector != old["spec"].get("selector"):
        yield Cause("FieldValueInvalid", f"Invalid value: {selector}: field is immutable", "spec.selector")


def _budget(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        text = "minAvailable and maxUnavailable cannot be both set"
        yield _invalid("spec", "", text)


def _lease(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield _invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield _invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


def _event(obj: Object, old: Object | None) -> Iterator[Cause]:
    involved = (obj.get("involvedObject") or {}).get("namespace") or "default"
    namespace = obj["metadata"].get("namespace")
    if involved != namespace:
        yield _invalid("involvedObject.namespace", involved, "does not match event.namespace")


_CHECKS: Mapping[Resource, Callable[[Object, Object | None], Iterator[Cause]]] = {
    NODES: _node,
    PODS: _pod,
    CONFIGMAPS: _config_map,
    DAEMON_SETS: _workload,
    DEPLOYMENTS: _workload,
    REPLICA_SETS: _workload,
    POD_DISRUPTION_BUDGETS: _budget,
    EVENTS: _event,
    LEASES: _lease,
}
