"""Events as the parts of a cluster record them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from mig_manager.simulation.objects import Object, Store
from mig_manager.simulation.resources import EVENTS


def timestamp(later_s: float = 0) -> str:
    """The time as Kubernetes writes it: UTC, whole seconds, `2026-01-31T12:00:00Z`."""
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Recorder:
    """Records Events of one component; the same one again only counts up."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._source = {"component": component, **({"host": host} if host else {})}
        self._known: dict[tuple[str, str, str], str] = {}

    def record(self, obj: Object, kind: str, reason: str, message: str) -> None:
        """`kind` is `Normal` or `Warning`."""
        meta = obj["metadata"]
        namespace = meta.get("namespace", "default")
        key = (meta["uid"], reason, message)
        known = self._known.get(key)
        if known is not None and self._store.update(EVENTS, namespace, known, _again) is not None:
            return
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        self._known[key] = name
        self._store.create(
            EVENTS,
            {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": obj["apiVersion"],
                    "kind": obj["kind"],
                    "name": meta["name"],
                    "namespace": meta.get("namespace", ""),
                    "uid": meta["uid"],
                },
                "type": kind,
                "reason": reason,
                "message": message,
                "source": self._source,
                "reportingComponent": self._source["component"],
                "count": 1,
                "firstTimestamp": timestamp(),
                "lastTimestamp": timestamp(),
            },
        )


def _again(event: Object) -> Object:
    event["count"] += 1
    event["lastTimestamp"] = timestamp()
    return event
