"""What the API server lets us do, asked of the API server itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.wait import Deadline

_GROUP = "authorization.k8s.io/v1"


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


def denied(
    api: Api, wanted: Iterable[Permission], *, deadline: Deadline, user: str | None = None
) -> frozenset[Permission]:
    """Those of the permissions that we do not have, or that a service account does not.

    One SelfSubjectAccessReview each, which every service account may send; for the `user` name of a service account
    a SubjectAccessReview, which takes a permission of its own. Raises ApiError.
    """
    return frozenset(each for each in wanted if not _granted(api, each, user, deadline))


def _granted(api: Api, permission: Permission, user: str | None, deadline: Deadline) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": permission.namespace,
        "name": permission.name,
    }
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    review: JsonObject = {
        "apiVersion": _GROUP,
        "kind": kind,
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    if user is not None:
        namespace = user.split(":")[-2]
        everybody = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        review["spec"] |= {"user": user, "groups": list(everybody)}
    path = collection_path(f"{kind.lower()}s", group=_GROUP)
    answer = api.create(path, review, deadline=deadline)
    return bool((answer.get("status") or {}).get("allowed"))
