"""Pods that people run on the simulated node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mig_manager.simulation.objects import Object

NAMESPACE = "ml"


def pod_spec(
    image: str,
    resources: Mapping[str, int | str],
    *,
    init_resources: Mapping[str, int | str] | None = None,
    **more: Any,
) -> Object:
    """A pod spec of one container with these limits, and an init container with `init_resources`."""
    spec: Object = {"containers": [_container("main", image, resources)], **more}
    if init_resources is not None:
        spec["initContainers"] = [_container("prepare", image, init_resources)]
    return spec


def pod(
    name: str,
    spec: Object,
    *,
    namespace: str = NAMESPACE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A pod that no controller owns."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {"app": name}),
            "annotations": dict(annotations or {}),
        },
        "spec": spec,
    }


def deployment(
    name: str,
    replicas: int,
    spec: Object,
    *,
    namespace: str = NAMESPACE,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A Deployment whose pods are labelled `app: <name>` and carry the annotations."""
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": dict(annotations or {})},
                "spec": spec,
            },
        },
    }


def claim_template(name: str, device_class: str, *, namespace: str = NAMESPACE) -> Object:
    """A ResourceClaimTemplate for one device of a class such as `mig.nvidia.com`."""
    meta = {"name": name, "namespace": namespace}
    return {"metadata": meta, "spec": {"spec": claim(name, device_class)["spec"]}}


def claim(name: str, device_class: str, *, namespace: str = NAMESPACE) -> Object:
    """A ResourceClaim for one device of a class."""
    request = {"name": "device", "exactly": {"deviceClassName": device_class}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
    }


def claiming(name: str, *, template: str | None = None, named: str | None = None, **more: Any) -> Object:
    """A bare pod that holds a device by a ResourceClaim, its own from a template or a named one."""
    source = {"resourceClaimTemplateName": template, "resourceClaimName": named}
    entry = {"name": "gpu", **{key: value for key, value in source.items() if value is not None}}
    spec = pod_spec("example/image", {}, resourceClaims=[entry], **more)
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod(name, spec)


def disruption_budget(name: str, app: str, *, namespace: str = NAMESPACE, **limits: int | str) -> Object:
    """A PodDisruptionBudget for pods labelled `app`; `limits`: `minAvailable` or `maxUnavailable`."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": app}}, **limits},
    }


def _container(name: str, image: str, resources: Mapping[str, int | str]) -> Object:
    return {
        "name": name,
        "image": image,
        "command": ["python"],
        "resources": {"limits": {key: str(value) for key, value in resources.items()}},
    }
