"""Failures as the API server words them: the bodies of kind `Status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mig_manager.simulation.objects import Object, Resource


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes`."""

    reason: str
    message: str
    field: str = ""

    def as_json(self) -> Object:
        """As it stands in the body."""
        held = {"reason": self.reason, "message": self.message, "field": self.field}
        return {key: value for key, value in held.items() if value}


class StatusError(Exception):
    """A request that the API server answers with a failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = dict(details or {})
        if retry_after_s:
            self.details["retryAfterSeconds"] = retry_after_s

    @property
    def body(self) -> Object:
        """The `Status` object."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        return {key: value for key, value in body.items() if key == "metadata" or value}


def success(*, code: int, details: Object | None = None) -> Object:
    """The `Status` of a request that has nothing else to show."""
    body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        body["details"] = details
    return body if code == 200 else {**body, "code": code}


def details_of(resource: Resource, name: str = "", causes: Sequence[Cause] = ()) -> Object:
    """`details` that name a kind by its plural, as most failures do."""
    held: Object = {"name": name, "group": resource.group, "kind": resource.plural}
    if causes:
        held["causes"] = [cause.as_json() for cause in causes]
    return {key: value for key, value in held.items() if value}


def qualified(resource: Resource) -> str:
    """As messages name a kind: `pods`, `daemonsets.apps`."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource, name: str) -> StatusError:
    """404 for an object."""
    return StatusError(
        404, "NotFound", f'{qualified(resource)} "{name}" not found', details=details_of(resource, name)
    )


def page_not_found() -> StatusError:
    """404 for a path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: Resource, name: str) -> StatusError:
    """409 for a creation."""
    message = f'{qualified(resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=details_of(resource, name))


def conflict(resource: Resource, name: str, why: str) -> StatusError:
    """409 for a write that meets another version than it expected."""
    message = f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=details_of(resource, name))


def modified(resource: Resource, name: str) -> StatusError:
    """409 for a stale resourceVersion."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """422 with its findings."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {**details_of(resource, name, causes), "kind": resource.kind}
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def unprocessable() -> StatusError:
    """422 for a patch that does not apply."""
    return StatusError(
        422, "Invalid", "the server rejected our request due to an error in our request", details={}
    )


def expired(message: str) -> StatusError:
    """410 for a version that the history no longer reaches."""
    return StatusError(410, "Expired", message)


def unsupported_media(accepted: str) -> StatusError:
    """415."""
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable() -> StatusError:
    """406."""
    message = "only the following media types are accepted: application/json, application/yaml"
    return StatusError(406, "NotAcceptable", message)


def method_not_allowed() -> StatusError:
    """405."""
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )
