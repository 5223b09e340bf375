"""OpenAPI v3: what kubectl reads before it applies, and shows in `kubectl explain`."""

from __future__ import annotations

from functools import cache
from typing import Any

from mig_manager.simulation.api.discovery import VERSION, group_versions
from mig_manager.simulation.api.schemas import fields, item_of, model_of
from mig_manager.simulation.api.strategic import MERGE_KEYS, MERGED_PRIMITIVES
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import RESOURCES, REVIEWS

_PLAIN: dict[str, Object] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int32"},
    "bool": {"type": "boolean"},
    "float": {"type": "number", "format": "double"},
    "datetime": {"type": "string", "format": "date-time"},
}
_INFO = {"title": "Kubernetes", "version": VERSION}


def openapi(path: str) -> Object | None:
    """The document at a path, or None. Building one imports the official client's models."""
    if path == "/openapi/v3":
        places = [_place(each) for each in group_versions()]
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in places}}
    for version in group_versions():
        if path == f"/openapi/v3/{_place(version)}":
            return _document(version)
    return None


def _place(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


@cache
def _document(version: str) -> Object:
    served = [each for each in (*RESOURCES, *REVIEWS) if each.api_version == version]
    schemas: Object = {}
    paths: Object = {}
    for each in served:
        _collect(model_of(each), schemas)
        kind = {"group": each.group, "version": each.version, "kind": each.kind}
        schemas[model_of(each)]["x-kubernetes-group-version-kind"] = [kind]
        paths.update(_paths(each, kind))
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def _paths(resource: Resource, kind: Object) -> Object:
    """The operations whose query parameters tell clients what the server can do."""
    base = f"/{_place(resource.api_version)}/"
    base += f"namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else resource.plural
    create = {"post": _operation("post", kind)}
    if resource in REVIEWS:
        return {base: create}
    return {
        base: {**create, "get": _operation("list", kind)},
        f"{base}/{{name}}": {
            "get": _operation("get", kind),
            "put": _operation("put", kind),
            "patch": _operation("patch", kind),
            "delete": _operation("delete", kind),
        },
    }


def _operation(action: str, kind: Object) -> Object:
    names = ["dryRun", "fieldManager", "fieldValidation"] if action in ("post", "put", "patch") else []
    names = ["dryRun"] if action == "delete" else names
    return {
        "parameters": [{"name": each, "in": "query", "schema": {"type": "string"}} for each in names],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
    }


def _collect(model: str, schemas: Object) -> None:
    """Add the schema of a model, and of all that it refers to."""
    if model in schemas:
        return
    schema: Object = {"type": "object", "properties": {}}
    schemas[model] = schema
    known = fields(model) or {}
    for name, field in known.items():
        entry = {**_schema(field.type, schemas), "description": field.description}
        if "$ref" in entry:
            entry = {"allOf": [{"$ref": entry.pop("$ref")}], **entry}
        entry.update(_merging(name, field.type))
        schema["properties"][name] = entry
    required = [name for name, field in known.items() if field.required]
    if required:
        schema["required"] = required


def _schema(kind: str, schemas: Object) -> dict[str, Any]:
    shape, item = item_of(kind)
    if shape == "list":
        return {"type": "array", "items": _schema(item, schemas)}
    if shape == "map":
        return {"type": "object", "additionalProperties": _schema(item, schemas)}
    if shape == "model":
        _collect(item, schemas)
        return {"$ref": f"#/components/schemas/{item}"}
    return dict(_PLAIN.get(item, {}))


def _merging(name: str, kind: str) -> Object:
    """How a strategic merge patch treats the list."""
    shape, item = item_of(kind)
    if shape == "list" and name in MERGE_KEYS and (fields(item) or {}).get(MERGE_KEYS[name]):
        return {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": MERGE_KEYS[name]}
    return {"x-kubernetes-patch-strategy": "merge"} if name in MERGED_PRIMITIVES else {}
