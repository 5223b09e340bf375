"""Events lie in the store as core/v1; events.k8s.io/v1 is the same object in other words."""

from __future__ import annotations

from collections.abc import Mapping

from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import EVENTS, NEW_EVENTS

_NEW_NAMES: Mapping[str, str] = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}


def from_stored(resource: Resource, obj: Object) -> Object:
    """A stored object in the form of the resource that the client asked for."""
    return _renamed(obj, resource, _NEW_NAMES) if resource == NEW_EVENTS else obj


def to_stored(resource: Resource, obj: Object) -> Object:
    """The way back."""
    if resource != NEW_EVENTS:
        return obj
    return _renamed(obj, EVENTS, {new: old for old, new in _NEW_NAMES.items()})


def _renamed(obj: Object, resource: Resource, names: Mapping[str, str]) -> Object:
    renamed = {names.get(key, key): value for key, value in obj.items()}
    return {**renamed, "apiVersion": resource.api_version, "kind": resource.kind}
