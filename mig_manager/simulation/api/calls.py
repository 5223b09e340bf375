"""What a request to the API server asks for, read from its method, path and query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from mig_manager.simulation.api.status import bad_request, method_not_allowed, page_not_found
from mig_manager.simulation.objects import Resource
from mig_manager.simulation.resources import EVENTS, NEW_EVENTS, REVIEWS, SUBRESOURCES, at_path

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request for objects."""

    verb: str
    """As RBAC names it: get, list, watch, create, update, patch, delete, deletecollection."""
    resource: Resource
    namespace: str | None
    """None: of all namespaces, or a kind that has none."""
    name: str
    """Empty for a collection."""
    subresource: str
    query: Mapping[str, str]

    @property
    def stored(self) -> Resource:
        """Where the objects lie: both kinds of Event are one."""
        return EVENTS if self.resource == NEW_EVENTS else self.resource

    def flag(self, name: str) -> bool:
        """A boolean of the query."""
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """A whole number of the query, None if it is absent; StatusError 400 if it is none."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not text.lstrip("-").isdigit():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)


def read_call(method: str, path: str, query: Mapping[str, str]) -> Call:
    """Raises StatusError 404 for a path that names nothing served, 405 for a method it does not take."""
    steps = [unquote(step) for step in path.strip("/").split("/")]
    if steps[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", steps[2:]
    elif steps[0] == "apis" and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise page_not_found()
    namespace: str | None = None
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = at_path(group, version, rest[0]) if rest and len(rest) <= 3 else None
    if resource is None or (namespace is not None and not resource.namespaced):
        raise page_not_found()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in SUBRESOURCES.get(resource, ()):
        raise page_not_found()
    if name and resource.namespaced and namespace is None:
        raise page_not_found()
    return Call(
        _verb(method, resource, name, subresource, query), resource, namespace, name, subresource, query
    )


def _verb(method: str, resource: Resource, name: str, subresource: str, query: Mapping[str, str]) -> str:
    verb = _VERBS.get(method)
    watching = query.get("watch", "").lower() in ("true", "1")
    if verb == "get" and (watching or not name) and not subresource:
        verb = "watch" if watching else "list"
    elif verb == "delete" and not name:
        verb = "deletecollection"
    allowed = {"list", "watch", "create", "deletecollection"}
    if name:
        allowed = {"get", "watch", "update", "patch", "delete"}
    if subresource in ("status", "scale"):
        allowed = {"get", "update", "patch"}
    elif subresource == "log":
        allowed = {"get"}
    elif subresource in ("eviction", "token") or resource in REVIEWS:
        allowed = {"create"}
    if verb not in allowed:
        raise method_not_allowed()
    return verb
