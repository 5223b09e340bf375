"""The fields of the kinds served: taken from the models of the official Python client.

The client's models take half a second to import, so that happens when they are first needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import EVENTS, NEW_EVENTS, RESOURCE_CLAIMS

_NAMES: Mapping[Resource, str] = {
    EVENTS: "CoreV1Event",
    NEW_EVENTS: "EventsV1Event",
    RESOURCE_CLAIMS: "ResourceV1ResourceClaim",
}
_LIST = re.compile(r"(?i)list\[(.+)\]")
_MAP = re.compile(r"(?i)dict[\[(]str, (.+)[\])]")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a model."""

    type: str
    """As the client writes it: `str`, `V1PodSpec`, `List[V1Container]`, `Dict[str, str]`."""
    description: str
    required: bool


def model_of(resource: Resource) -> str:
    """The client's name for a kind."""
    return _NAMES.get(resource, f"V1{resource.kind}")


@cache
def fields(model: str) -> Mapping[str, Field] | None:
    """The fields of a model by their names in JSON; None where there is no such model."""
    from kubernetes.client import models

    found: Any = getattr(models, model, None)
    if found is None:
        return None
    details = getattr(found, "model_fields", {})
    held = {}
    for name, kind in found.openapi_types.items():
        detail = details.get(name)
        held[found.attribute_map[name]] = Field(
            type=kind,
            description=(detail.description if detail is not None else "") or "",
            required=detail is not None and detail.is_required(),
        )
    return held


def item_of(kind: str) -> tuple[str, str]:
    """What a type is made of: (`list`, item), (`map`, value), (`model`, name) or (`plain`, name)."""
    if found := _LIST.fullmatch(kind):
        return "list", found[1]
    if found := _MAP.fullmatch(kind):
        return "map", found[1]
    return ("model" if fields(kind) is not None else "plain"), kind


def unknown_fields(resource: Resource, obj: Object) -> list[str]:
    """The paths of an object that its kind does not know, as strict decoding reports them."""
    return list(_unknown(model_of(resource), obj, ""))


def _unknown(kind: str, value: Any, path: str) -> Iterator[str]:
    shape, item = item_of(kind)
    if shape == "list" and isinstance(value, list):
        for i, each in enumerate(value):
            yield from _unknown(item, each, f"{path}[{i}]")
    elif shape == "map" and isinstance(value, dict):
        for key, each in value.items():
            yield from _unknown(item, each, f"{path}.{key}")
    elif shape == "model" and isinstance(value, dict):
        known = fields(item) or {}
        for key, each in value.items():
            place = f"{path}.{key}" if path else key
            if key not in known:
                yield place
            elif each is not None:
                yield from _unknown(known[key].type, each, place)
