"""Request bodies in protobuf, for the few kinds that kubectl sends in no other form.

Kubernetes wraps each object: four bytes of magic, then a message that names apiVersion and kind and
holds the object. Field numbers are those of the API's published .proto files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from mig_manager.simulation.api.status import bad_request, unsupported_media
from mig_manager.simulation.objects import Object

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_JSON_ONLY = "application/json, application/yaml"

Message = Mapping[int, tuple[str, Any]]
"""Field number -> name and type: `str`, `bytes`, `int`, `bool`, a nested Message, [type] for a repeated
field, {"": type} for a map of texts to that type."""

_OWNER: Message = {
    1: ("kind", "str"),
    3: ("name", "str"),
    4: ("uid", "str"),
    5: ("apiVersion", "str"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Message = {
    1: ("name", "str"),
    2: ("generateName", "str"),
    3: ("namespace", "str"),
    5: ("uid", "str"),
    6: ("resourceVersion", "str"),
    11: ("labels", {"": "str"}),
    12: ("annotations", {"": "str"}),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["str"]),
}
_REQUIREMENT: Message = {1: ("key", "str"), 2: ("operator", "str"), 3: ("values", ["str"])}
_SELECTOR: Message = {1: ("matchLabels", {"": "str"}), 2: ("matchExpressions", [_REQUIREMENT])}
_INT_OR_TEXT: Message = {1: ("type", "int"), 2: ("number", "int"), 3: ("text", "str")}
_ATTRIBUTES: Message = {
    1: ("namespace", "str"),
    2: ("verb", "str"),
    3: ("group", "str"),
    4: ("version", "str"),
    5: ("resource", "str"),
    6: ("subresource", "str"),
    7: ("name", "str"),
}
_PATH: Message = {1: ("path", "str"), 2: ("verb", "str")}
_BUDGET: Message = {
    1: ("minAvailable", _INT_OR_TEXT),
    2: ("selector", _SELECTOR),
    3: ("maxUnavailable", _INT_OR_TEXT),
}
_RULE: Message = {
    1: ("verbs", ["str"]),
    2: ("apiGroups", ["str"]),
    3: ("resources", ["str"]),
    4: ("resourceNames", ["str"]),
    5: ("nonResourceURLs", ["str"]),
}
_SUBJECT: Message = {1: ("kind", "str"), 2: ("apiGroup", "str"), 3: ("name", "str"), 4: ("namespace", "str")}
_ROLE_REF: Message = {1: ("apiGroup", "str"), 2: ("kind", "str"), 3: ("name", "str")}
_ROLE: Message = {1: ("metadata", _META), 2: ("rules", [_RULE])}
_BINDING: Message = {1: ("metadata", _META), 2: ("subjects", [_SUBJECT]), 3: ("roleRef", _ROLE_REF)}
_PORT: Message = {1: ("name", "str"), 3: ("containerPort", "int"), 4: ("protocol", "str")}
_CONTAINER: Message = {
    1: ("name", "str"),
    2: ("image", "str"),
    3: ("command", ["str"]),
    4: ("args", ["str"]),
    6: ("ports", [_PORT]),
}
_TEMPLATE: Message = {1: ("metadata", _META), 2: ("spec", {2: ("containers", [_CONTAINER])})}

_KINDS: Mapping[tuple[str, str], Message] = {
    ("v1", "ConfigMap"): {
        1: ("metadata", _META),
        2: ("data", {"": "str"}),
        3: ("binaryData", {"": "bytes"}),
        4: ("immutable", "bool"),
    },
    ("v1", "Secret"): {
        1: ("metadata", _META),
        2: ("data", {"": "bytes"}),
        3: ("type", "str"),
        4: ("stringData", {"": "str"}),
        5: ("immutable", "bool"),
    },
    ("v1", "Namespace"): {1: ("metadata", _META)},
    ("v1", "ServiceAccount"): {1: ("metadata", _META)},
    ("policy/v1", "PodDisruptionBudget"): {1: ("metadata", _META), 2: ("spec", _BUDGET)},
    ("policy/v1", "Eviction"): {1: ("metadata", _META)},
    ("apps/v1", "Deployment"): {
        1: ("metadata", _META),
        2: ("spec", {1: ("replicas", "int"), 2: ("selector", _SELECTOR), 3: ("template", _TEMPLATE)}),
    },
    ("rbac.authorization.k8s.io/v1", "Role"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: ("metadata", _META)},
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): {
        1: ("metadata", _META),
        2: ("spec", {1: ("resourceAttributes", _ATTRIBUTES), 2: ("nonResourceAttributes", _PATH)}),
    },
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): {
        1: ("metadata", _META),
        2: ("spec", {1: ("namespace", "str")}),
    },
}
_WRAPPER: Message = {
    1: ("type", {1: ("apiVersion", "str"), 2: ("kind", "str")}),
    2: ("raw", "raw"),
}


def read_protobuf(body: bytes) -> Object:
    """The object as JSON; StatusError 415 for a kind or field not listed here, 400 for what is no protobuf."""
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("no magic")
        wrapper = _read(_WRAPPER, body[len(_MAGIC) :])
        named = wrapper["type"]
        message = _KINDS.get((named.get("apiVersion", ""), named.get("kind", "")))
        if message is None:
            raise unsupported_media(_JSON_ONLY)
        return {**named, **_read(message, wrapper.get("raw", b""))}
    except (ValueError, IndexError, KeyError):
        raise bad_request("the object provided is unrecognized (must be of type protobuf)") from None


def _read(message: Message, data: bytes) -> Object:
    found: Object = {}
    for number, raw in _entries(data):
        if number not in message:
            if not _is_empty(raw):
                raise unsupported_media(_JSON_ONLY)
            continue
        name, kind = message[number]
        if isinstance(kind, list):
            found.setdefault(name, []).append(_value(kind[0], raw))
        elif isinstance(kind, dict) and "" in kind:
            pair = dict(_entries(raw))
            key = pair.get(1, b"").decode()
            found.setdefault(name, {})[key] = _value(kind[""], pair.get(2, b""))
        else:
            found[name] = _value(kind, raw)
    return {name: value for name, value in found.items() if value not in ("", {})}


def _is_empty(raw: Any) -> bool:
    """Whether a field says nothing: zero, no text, or a message of such fields."""
    if not isinstance(raw, bytes):
        return not raw
    try:
        return all(_is_empty(each) for _, each in _entries(raw))
    except (ValueError, IndexError):
        return False


def _value(kind: Any, raw: Any) -> Any:
    if kind is _INT_OR_TEXT:
        held = _read(_INT_OR_TEXT, raw)
        return held.get("text", "") if held.get("type") else held.get("number", 0)
    if isinstance(kind, Mapping):
        return _read(kind, raw)
    if kind == "str":
        return raw.decode()
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    if kind == "bool":
        return bool(raw)
    return raw


def _entries(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers with an int (varint) or bytes (length-delimited)."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("cut off")
            yield number, data[at : at + size]
            at += size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(wire)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
