"""Small things about objects as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from mig_manager.simulation.objects import Object

Key = tuple[str, str]
"""Namespace (empty for kinds without) and name."""

Json = TypeVar("Json")
_NESTED = frozenset({dict, list})


def key_of(obj: Object) -> Key:
    """Where an object lies among those of its kind."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def copy_json(value: Json) -> Json:
    """A deep copy of JSON."""
    copy: Any = value
    kind = type(value)
    if kind is dict:
        copy = {key: copy_json(each) if type(each) in _NESTED else each for key, each in copy.items()}
    elif kind is list:
        copy = [copy_json(each) if type(each) in _NESTED else each for each in copy]
    return cast(Json, copy)


def now(later_s: float = 0) -> str:
    """The time (plus some seconds) as Kubernetes writes it: `2026-01-31T12:00:00Z`."""
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
