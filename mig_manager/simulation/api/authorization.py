"""Who asks, and whether they may: bearer tokens, RBAC, and reviews of oneself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.status import StatusError, bad_request, details_of, qualified
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    REVIEWS,
    ROLE_BINDINGS,
    ROLES,
    at_path,
)
from mig_manager.simulation.store import MemoryStore

MASTERS = "system:masters"
_OF_COLLECTIONS = ("list", "watch", "deletecollection")
_BASIC_USER: Object = {
    "verbs": ["create"],
    "apiGroups": ["authorization.k8s.io"],
    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
}
"""What everybody may do who is known at all."""
_DISCOVERY: Object = {
    "verbs": ["get"],
    "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*"],
}


@dataclass(frozen=True, slots=True)
class User:
    """Who sends a request."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""
    """Where the pod runs that the token was given to; empty for other tokens."""

    @classmethod
    def service_account(cls, namespace: str, name: str, *, node: str = "") -> User:
        """As the token of a service account names it."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return cls(f"system:serviceaccount:{namespace}:{name}", groups, node)

    @property
    def info(self) -> Object:
        """As a UserInfo; Kubernetes 1.30 and later name the node of a pod's token."""
        extra = {"authentication.kubernetes.io/node-name": [self.node]} if self.node else None
        info: Object = {"username": self.name, "groups": list(self.groups)}
        return {**info, "extra": extra} if extra else info


ADMIN = User("kubernetes-admin", (MASTERS, "system:authenticated"))


@dataclass(frozen=True, slots=True)
class Access:
    """One thing that a user wants to do, in the words of RBAC."""

    user: User
    verb: str
    group: str
    resource: str
    """With its subresource: `pods/eviction`."""
    namespace: str
    """Empty: of the whole cluster."""
    name: str


Authorizer = Callable[[Access], bool]


def authenticate(header: str, tokens: Mapping[str, User] | None, anonymous: User | None) -> User:
    """The user of an Authorization header; StatusError 401. Without `tokens`, any token is the admin's."""
    scheme, _, token = header.partition(" ")
    user = anonymous
    if header:
        known = ADMIN if tokens is None else tokens.get(token.strip())
        user = known if scheme.lower() == "bearer" else None
    if user is None:
        raise StatusError(401, "Unauthorized", "Unauthorized")
    return user


def access_of(call: Call, user: User) -> Access:
    """What a call needs."""
    resource = f"{call.resource.plural}/{call.subresource}" if call.subresource else call.resource.plural
    return Access(user, call.verb, call.resource.group, resource, call.namespace or "", _named(call))


def _named(call: Call) -> str:
    """The object that a call is about; a field selector for one name counts as that name."""
    if call.name or call.verb not in _OF_COLLECTIONS:
        return call.name
    selector = re.search(r"(?:^|,)metadata\.name==?([^,]+)", call.query.get("fieldSelector", ""))
    return selector[1] if selector else ""


def forbidden(call: Call, access: Access) -> StatusError:
    """403 as the API server words it."""
    name = f' "{access.name}"' if access.name else ""
    scope = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    message = (
        f'{qualified(call.resource)}{name} is forbidden: User "{access.user.name}" cannot {access.verb} '
        f'resource "{access.resource}" in API group "{access.group}" {scope}'
    )
    return StatusError(403, "Forbidden", message, details=details_of(call.resource, access.name))


def stored_rbac(store: MemoryStore) -> Authorizer:
    """An authorizer that goes by the Roles and bindings in the store, as the RBAC mode does."""

    def allowed(access: Access) -> bool:
        if MASTERS in access.user.groups or _is_own_review(access):
            return True
        return any(_covers(rule, access) for rule in _rules(store, access.user, access.namespace))

    return allowed


def review(store: MemoryStore, call: Call, body: Object, user: User, authorizer: Authorizer | None) -> Object:
    """The answer to a SelfSubject(Access|Rules)Review, SelfSubjectReview or SubjectAccessReview."""
    spec = body.get("spec") or {}
    status: Object
    if call.resource.kind == "SelfSubjectReview":
        status = {"userInfo": user.info}
    elif call.resource.kind == "SelfSubjectRulesReview":
        if not spec.get("namespace"):
            raise bad_request("no namespace on request")
        everything = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        own = authorizer is None or MASTERS in user.groups
        rules = everything if own else [_BASIC_USER, *_rules(store, user, spec["namespace"])]
        status = {"resourceRules": rules, "nonResourceRules": [_DISCOVERY], "incomplete": False}
    else:
        if not spec.get("resourceAttributes"):
            raise bad_request("the simulation knows reviews with resourceAttributes only")
        about = user
        if call.resource.kind == "SubjectAccessReview":
            about = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
        status = {"allowed": authorizer is None or authorizer(_asked(spec, about))}
    return {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": status,
    }


def _asked(spec: Object, user: User) -> Access:
    wanted = spec.get("resourceAttributes") or {}
    resource = wanted.get("resource", "")
    if wanted.get("subresource"):
        resource = f"{resource}/{wanted['subresource']}"
    known = at_path(wanted.get("group", ""), "v1", wanted.get("resource", ""))
    namespace = wanted.get("namespace", "") if known is None or known.namespaced else ""
    return Access(
        user, wanted.get("verb", ""), wanted.get("group", ""), resource, namespace, wanted.get("name", "")
    )


def _is_own_review(access: Access) -> bool:
    reviews = {(each.group, each.plural) for each in REVIEWS if each.plural.startswith("self")}
    return access.verb == "create" and (access.group, access.resource) in reviews


def _rules(store: MemoryStore, user: User, namespace: str) -> Iterator[Object]:
    """The rules that hold for the user in a namespace (empty: in the whole cluster)."""
    for binding in store.snapshot(CLUSTER_ROLE_BINDINGS)[0]:
        if _binds(binding, user):
            yield from _role_rules(store, binding["roleRef"], "")
    if namespace:
        for binding in store.snapshot(ROLE_BINDINGS, namespace)[0]:
            if _binds(binding, user):
                yield from _role_rules(store, binding["roleRef"], namespace)


def _binds(binding: Object, user: User) -> bool:
    own = binding["metadata"].get("namespace", "")
    for each in binding.get("subjects") or []:
        if each["kind"] == "ServiceAccount":
            account = f"system:serviceaccount:{each.get('namespace') or own}:{each['name']}"
            if user.name == account:
                return True
        elif each["name"] in ((user.name,) if each["kind"] == "User" else user.groups):
            return True
    return False


def _role_rules(store: MemoryStore, reference: Object, namespace: str) -> list[Object]:
    if reference["kind"] == "ClusterRole":
        role = store.get(CLUSTER_ROLES, None, reference["name"])
    else:
        role = store.get(ROLES, namespace, reference["name"])
    return (role or {}).get("rules") or []


def _covers(rule: Object, access: Access) -> bool:
    def holds(key: str, *wanted: str) -> bool:
        listed = rule.get(key) or []
        return "*" in listed or any(each in listed for each in wanted)

    subresource = access.resource.partition("/")[2]
    resources = [access.resource, *([f"*/{subresource}"] if subresource else [])]
    names = rule.get("resourceNames") or []
    return (
        holds("verbs", access.verb)
        and holds("apiGroups", access.group)
        and holds("resources", *resources)
        and (not names or access.name in names)
    )
