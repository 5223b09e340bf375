"""What the verbs do on the store: get, list, create, update, patch and delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mig_manager.simulation.api.admission import Ask
from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.conversion import from_stored, to_stored
from mig_manager.simulation.api.deletion import DeleteOptions, delete
from mig_manager.simulation.api.eviction import evict
from mig_manager.simulation.api.listing import list_objects
from mig_manager.simulation.api.patches import json_patch, merge_patch
from mig_manager.simulation.api.scale import scale_of, scaled
from mig_manager.simulation.api.schemas import unknown_fields
from mig_manager.simulation.api.serverside import apply_fields
from mig_manager.simulation.api.status import (
    Cause,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    modified,
    not_found,
    success,
    unsupported_media,
)
from mig_manager.simulation.api.strategic import strategic_merge
from mig_manager.simulation.api.validation import require_types, type_problem, validate
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import (
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    SUBRESOURCES,
)
from mig_manager.simulation.store import MemoryStore, ObjectExistsError

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

_ALWAYS_CONDITIONAL = frozenset({LEASES, POD_DISRUPTION_BUDGETS})
"""Kinds whose update must name the resourceVersion it replaces."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before it is written in the form that the client accepts."""

    code: int
    object: Object


def answer(store: MemoryStore, call: Call, body: Object | None, content_type: str, ask: Ask) -> Reply:
    """Carry out a call other than a watch or a log; raises StatusError. `ask` admits what would be stored."""
    options = {**(body or {}), **call.query} if call.verb.startswith("delete") else dict(call.query)
    options = (
        options
        if call.subresource != "eviction"
        else {**((body or {}).get("deleteOptions") or {}), **options}
    )
    with store.transaction(dry_run=_dry_run(call.resource, options)):
        reply = _answer(store, call, body, content_type, ask)
    kind = reply.object.get("kind")
    if kind == call.stored.kind:
        return Reply(reply.code, from_stored(call.resource, reply.object))
    return reply


def _answer(store: MemoryStore, call: Call, body: Object | None, content_type: str, ask: Ask) -> Reply:
    if call.verb == "list":
        return Reply(200, list_objects(store, call))
    if call.verb == "get":
        found = _get(store, call)
        return Reply(200, scale_of(call.resource, found) if call.subresource == "scale" else found)
    if call.verb == "delete":
        ask("DELETE", call, _get(store, call), None)
        return Reply(200, delete(store, call, DeleteOptions.read(call.query, body)))
    if call.verb == "deletecollection":
        options = DeleteOptions.read(call.query, body)
        listed = list_objects(store, call)
        for each in listed["items"]:
            meta = each["metadata"]
            one = Call("delete", call.resource, meta.get("namespace"), meta["name"], "", {})
            ask("DELETE", one, each, None)
            delete(store, one, options)
        return Reply(200, listed)
    if body is None:
        raise bad_request("Required body is missing or empty")
    if call.subresource == "eviction":
        ask("CREATE", call, None, body)
        evict(store, call, body)
        return Reply(201, success(code=201))
    if call.verb == "create":
        _known_fields(call, body)
        return Reply(201, _create(store, call, to_stored(call.resource, body), ask))
    if call.verb == "patch" and content_type == APPLY:
        return _apply(store, call, body, ask)
    return _update(store, call, body, content_type, ask)


def _dry_run(resource: Resource, options: Object) -> bool:
    wanted = options.get("dryRun") or []
    wanted = wanted if isinstance(wanted, list) else [wanted]
    if any(each != "All" for each in wanted):
        text = f'Unsupported value: {wanted}: supported values: "All"'
        raise invalid(resource, "", [Cause("FieldValueNotSupported", text, "dryRun")])
    return bool(wanted)


def _get(store: MemoryStore, call: Call) -> Object:
    found = store.get(call.stored, call.namespace, call.name)
    if found is None:
        raise not_found(call.resource, call.name)
    return found


def _create(store: MemoryStore, call: Call, obj: Object, ask: Ask) -> Object:
    resource = call.stored
    _expect_kind(call.stored, obj)
    require_types(resource, {"metadata": {}, **obj})
    meta = obj.setdefault("metadata", {})
    if resource.namespaced:
        if meta.setdefault("namespace", call.namespace or "default") != call.namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if store.get(NAMESPACES, None, meta["namespace"]) is None:
            raise not_found(NAMESPACES, meta["namespace"])
    if meta.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if "status" in SUBRESOURCES.get(resource, ()) and resource != NODES:
        obj.pop("status", None)
    probe = {**obj, "metadata": {**meta, "name": meta.get("name") or (meta.get("generateName") or "") + "x"}}
    validate(resource, probe if meta.get("generateName") else obj)
    ask("CREATE", call, None, obj)
    try:
        return store.create(resource, obj)
    except ObjectExistsError:
        raise already_exists(call.resource, meta["name"]) from None


def _update(store: MemoryStore, call: Call, body: Object, content_type: str, ask: Ask) -> Reply:
    scaling = call.subresource == "scale"

    def change(old: Object) -> Object:
        current = scale_of(call.resource, old) if scaling else from_stored(call.resource, old)
        if call.verb == "update":
            new = body
        else:
            new = _patched(current, body, content_type)
            if (problem := type_problem(new)) is not None:
                raise _undecodable(problem)
        if scaling:
            return admitted(old, scaled(call.resource, old, new))
        _expect_kind(call.resource, new)
        _known_fields(call, new)
        return admitted(old, replacement(call, old, to_stored(call.resource, new)))

    def admitted(old: Object, new: Object) -> Object:
        ask("UPDATE", call, old, new)
        return new

    updated = store.update(call.stored, call.namespace, call.name, change)
    if updated is None and call.verb == "update" and call.resource == LEASES:
        return Reply(201, _create(store, call, to_stored(call.resource, body), ask))
    if updated is None:
        raise not_found(call.resource, call.name)
    return Reply(200, scale_of(call.resource, updated) if scaling else updated)


def replacement(call: Call, old: Object, new: Object) -> Object:
    """What may be stored over `old` when the client sends `new`: checks, and the part that it may write."""
    require_types(call.stored, new)
    meta, before = new["metadata"], old["metadata"]
    name = meta.setdefault("name", call.name)
    if name != call.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({call.name})")
    if meta.get("namespace") not in (None, "", call.namespace):
        raise bad_request("the namespace of the object does not match the namespace on the request")
    if meta.get("uid") not in (None, "", before["uid"]):
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
        raise conflict(call.resource, call.name, why)
    version = meta.get("resourceVersion")
    if not version and call.verb == "update" and call.resource in _ALWAYS_CONDITIONAL:
        text = "Invalid value: 0: must be specified for an update"
        cause = Cause("FieldValueInvalid", text, "metadata.resourceVersion")
        raise invalid(call.resource, call.name, [cause])
    if version and version != before["resourceVersion"]:
        raise modified(call.resource, call.name)
    if call.subresource == "status":
        new = {**old, "metadata": meta, "status": new.get("status", {})}
    elif "status" in SUBRESOURCES.get(call.stored, ()):
        new = {**new, "status": old.get("status", {})}
    new["metadata"] = {**meta, "resourceVersion": before["resourceVersion"]}
    validate(call.stored, new, old)
    return new


def _patched(current: Object, patch: Object, content_type: str) -> Object:
    appliers: dict[str, Callable[[Object, Object], Object]] = {
        MERGE: merge_patch,
        STRATEGIC: strategic_merge,
        JSON_PATCH: json_patch,
    }
    if content_type not in appliers:
        raise unsupported_media(", ".join((JSON_PATCH, MERGE, STRATEGIC, APPLY)))
    if content_type != JSON_PATCH and not isinstance(patch, dict):
        raise bad_request("json: cannot unmarshal array into Go value of type map[string]interface {}")
    return appliers[content_type](current, patch)


def _apply(store: MemoryStore, call: Call, wanted: Object, ask: Ask) -> Reply:
    _expect_kind(call.resource, wanted)
    _known_fields(call, wanted)
    manager = call.query.get("fieldManager", "")
    if not manager:
        raise StatusError(
            422,
            "Invalid",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is '
            "required for apply patch",
        )
    require_types(call.resource, {"metadata": {}, **wanted})
    force = call.flag("force")

    def change(old: Object) -> Object:
        new = replacement(call, old, apply_fields(call.resource, old, wanted, manager, force=force))
        ask("UPDATE", call, old, new)
        return new

    updated = store.update(call.stored, call.namespace, call.name, change)
    if updated is not None:
        return Reply(200, updated)
    wanted.setdefault("metadata", {}).setdefault("name", call.name)
    applied = apply_fields(call.resource, None, wanted, manager, force=force)
    return Reply(201, _create(store, call, applied, ask))


def _known_fields(call: Call, obj: Object) -> None:
    """What `fieldValidation=Strict` asks for."""
    if call.query.get("fieldValidation") != "Strict" or not isinstance(obj, dict):
        return
    unknown = unknown_fields(call.resource, obj)
    if unknown:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        resource = call.resource
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"strict decoding error: {listed}"
        )


def _expect_kind(resource: Resource, obj: Object) -> None:
    version = obj.setdefault("apiVersion", resource.api_version)
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    kind = obj.setdefault("kind", resource.kind)
    if kind != resource.kind:
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {resource.kind}: no kind "{kind}" '
            "is registered"
        )


def _undecodable(problem: str) -> StatusError:
    text = f"Invalid value: {problem}"
    details = {"causes": [Cause("FieldValueInvalid", text, "patch").as_json()]}
    return StatusError(422, "Invalid", f' "" is invalid: patch: {text}', details=details)
