"""What controllers have in common: the objects that they make, and the status that they write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mig_manager.simulation.objects import Object, Resource, Store


def template_hash(template: Object) -> str:
    """Ten hex digits that change with the template: the name of a revision."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def pod_from_template(
    template: Object, owner: Object, *, generate_name: str, labels: Mapping[str, str]
) -> Object:
    """A pod as a controller makes it for `owner`, with `labels` on top of the template's."""
    meta = template.get("metadata") or {}
    new: dict[str, Any] = {
        "generateName": generate_name,
        "namespace": owner["metadata"]["namespace"],
        "labels": {**(meta.get("labels") or {}), **labels},
        "ownerReferences": [owner_reference(owner)],
    }
    if meta.get("annotations"):
        new["annotations"] = dict(meta["annotations"])
    return {"metadata": new, "spec": template["spec"]}


def owner_reference(owner: Object) -> Object:
    """The reference by which a controller owns what it made."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_uid(obj: Object) -> str | None:
    """The uid of the controller that owns the object, or None."""
    for each in obj["metadata"].get("ownerReferences") or []:
        if each.get("controller"):
            return str(each["uid"])
    return None


def set_status(store: Store, resource: Resource, obj: Object, status: Object) -> None:
    """Write these fields of an object's status, unless they are what `obj` has already."""
    old = obj.get("status") or {}
    if all(old.get(key) == value for key, value in status.items()):
        return

    def change(now: Object) -> Object:
        now["status"] = {**(now.get("status") or {}), **status}
        return now

    store.update(resource, obj["metadata"]["namespace"], obj["metadata"]["name"], change)
