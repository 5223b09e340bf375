"""What clients ask first: version, API groups and their resources, in the legacy and the aggregated form."""

from __future__ import annotations

from collections.abc import Iterator

from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import RESOURCES, REVIEWS, SUBRESOURCES

MINOR = "34"
VERSION = f"v1.{MINOR}.0"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_IN_ALL = frozenset({"pods", "daemonsets", "deployments", "replicasets"})
_SUBKINDS = {
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
_SUBVERBS = {"eviction": ["create"], "log": ["get"], "token": ["create"]}


def document(path: str, accept: str) -> Object | None:
    """The discovery document at a path, or None if there is none."""
    steps = path.strip("/").split("/")
    aggregated = "as=APIGroupDiscoveryList" in accept.replace(" ", "") and "v=v2" in accept.replace(" ", "")
    if steps == ["version"]:
        return _version()
    if steps == ["api"]:
        return _aggregated([""]) if aggregated else _core_versions()
    if steps == ["apis"]:
        return _aggregated(_groups()) if aggregated else _group_list()
    if steps == ["api", "v1"]:
        return _resource_list("", "v1")
    if steps[0] == "apis" and len(steps) == 2 and steps[1] in _groups():
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1])}
    if steps[0] == "apis" and len(steps) == 3:
        return _resource_list(steps[1], steps[2])
    return None


def group_versions() -> list[str]:
    """Every served `apiVersion`."""
    return list(dict.fromkeys(each.api_version for each in (*RESOURCES, *REVIEWS)))


def _version() -> Object:
    return {
        "major": "1",
        "minor": MINOR,
        "gitVersion": VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def _served(group: str, version: str | None = None) -> list[Resource]:
    return [
        each for each in (*RESOURCES, *REVIEWS) if each.group == group and version in (None, each.version)
    ]


def _groups() -> list[str]:
    return [each for each in dict.fromkeys(one.group for one in (*RESOURCES, *REVIEWS)) if each]


def _core_versions() -> Object:
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def _group(name: str) -> Object:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in dict.fromkeys(each.version for each in _served(name))
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _group_list() -> Object:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(each) for each in _groups()]}


def _verbs(resource: Resource) -> list[str]:
    return ["create"] if resource in REVIEWS else _VERBS


def _sub_verbs(subresource: str) -> list[str]:
    return _SUBVERBS.get(subresource, ["get", "patch", "update"])


def _sub_kind(resource: Resource, subresource: str) -> tuple[str, str, str]:
    return _SUBKINDS.get(subresource, (resource.group, resource.version, resource.kind))


def _resource_list(group: str, version: str) -> Object | None:
    served = _served(group, version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [entry for each in served for entry in _legacy(each)],
    }


def _legacy(resource: Resource) -> Iterator[Object]:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.plural in _IN_ALL:
        entry["categories"] = ["all"]
    yield entry
    for subresource in SUBRESOURCES.get(resource, ()):
        group, version, kind = _sub_kind(resource, subresource)
        sub: Object = {
            "name": f"{resource.plural}/{subresource}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": _sub_verbs(subresource),
        }
        if subresource in _SUBKINDS:
            sub.update(group=group, version=version)
        yield sub


def _aggregated(groups: list[str]) -> Object:
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None}
                if group
                else {"creationTimestamp": None},
                "versions": [
                    {
                        "version": version,
                        "resources": [_discovered(each) for each in _served(group, version)],
                        "freshness": "Current",
                    }
                    for version in dict.fromkeys(each.version for each in _served(group))
                ],
            }
            for group in groups
        ],
    }


def _kind_of(group: str, version: str, kind: str) -> Object:
    return {"group": group, "version": version, "kind": kind}


def _discovered(resource: Resource) -> Object:
    entry: Object = {
        "resource": resource.plural,
        "responseKind": _kind_of(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.plural in _IN_ALL:
        entry["categories"] = ["all"]
    if resource in SUBRESOURCES:
        entry["subresources"] = [
            {
                "subresource": each,
                "responseKind": _kind_of(*_sub_kind(resource, each)),
                "verbs": _sub_verbs(each),
            }
            for each in SUBRESOURCES[resource]
        ]
    return entry
