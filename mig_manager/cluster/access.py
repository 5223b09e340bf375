"""What the API server lets us do, asked of the API server itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.wait import Deadline


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource, in the words of RBAC."""

    verb: str
    resource: str
    """With its subresource: `pods/eviction`."""
    group: str = ""
    namespace: str = ""
    """Empty: in the whole cluster."""
    name: str = ""
    """Of the one object that is meant; empty: of any."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{name}{where}"


def denied(api: Api, wanted: Iterable[Permission], *, deadline: Deadline) -> frozenset[Permission]:
    """Those of the permissions that we do not have.

    One SelfSubjectAccessReview each, which every service account may send. Raises ApiError.
    """
    return frozenset(each for each in wanted if not _granted(api, each, deadline))


def _granted(api: Api, permission: Permission, deadline: Deadline) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": permission.namespace,
        "name": permission.name,
    }
    review: JsonObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    path = collection_path("selfsubjectaccessreviews", group="authorization.k8s.io/v1")
    answer = api.create(path, review, deadline=deadline)
    return bool((answer.get("status") or {}).get("allowed"))
