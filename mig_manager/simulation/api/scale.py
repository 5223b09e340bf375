"""The scale subresource."""

from __future__ import annotations

from mig_manager.simulation.api.status import bad_request, modified
from mig_manager.simulation.objects import Object, Resource


def scale_of(resource: Resource, obj: Object) -> Object:
    """The Scale of a Deployment or ReplicaSet."""
    meta = obj["metadata"]
    labels = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
    keys = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in keys if key in meta},
        "spec": {"replicas": obj["spec"].get("replicas", 1)},
        "status": {
            "replicas": obj.get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def scaled(resource: Resource, obj: Object, scale: Object) -> Object:
    """The object with the replicas that a Scale asks for."""
    meta = obj["metadata"]
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version and version != meta["resourceVersion"]:
        raise modified(resource, meta["name"])
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request(f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
    return {**obj, "spec": {**obj["spec"], "replicas": replicas}}
