"""What the API server says when it refuses, as an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mig_manager.errors import MigManagerError, Reason

if TYPE_CHECKING:
    import urllib3

_LONGEST_STATUS = 65536
_OTHER_UID = re.compile("UID in (the )?precondition")
"""The API server says it in one way before it deletes or evicts, and in another where its storage finds out."""


class ApiError(MigManagerError):
    """The API server refused a request, or could not be reached."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        status_reason: str = "",
        causes: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
        words: str = "",
    ) -> None:
        super().__init__(Reason.API_ERROR, message)
        self.status = status
        """The HTTP status code; 0 if there was no answer."""
        self.status_reason = status_reason
        """The reason in the Status body: `NotFound`, `Conflict`, `Expired`..."""
        self.causes = causes
        """Reason and message of each cause in the Status body: `("DisruptionBudget", "The dis...")`."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""
        self.words = words
        """What the API server itself said, without the request; empty if there was no answer."""

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _api_error,
            (self.message, self.status, self.status_reason, self.causes, self.retry_after, self.words),
        )

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later.

        Not so where it named the uid of an object, and another one has that name by now.
        """
        return self.status in (0, 401, 409, 429, 500, 502, 503, 504) and not self.other_object

    @property
    def other_object(self) -> bool:
        """Whether the request named the uid of an object that is gone, for another one has its name by now."""
        return self.status == 409 and _OTHER_UID.search(self.message) is not None


def _api_error(
    message: str,
    status: int,
    status_reason: str,
    causes: tuple[tuple[str, str], ...],
    retry_after: float | None,
    words: str,
) -> ApiError:
    return ApiError(
        message,
        status=status,
        status_reason=status_reason,
        causes=causes,
        retry_after=retry_after,
        words=words,
    )


def refused(at: str, response: urllib3.BaseHTTPResponse) -> ApiError:
    """The error that an answer stands for; the message is the one of its Status body, if it has one."""
    import urllib3

    try:
        text = response.read(_LONGEST_STATUS).decode(errors="replace")
    except urllib3.exceptions.HTTPError as error:
        text = in_words(error)
    try:
        status = json.loads(text)
        message = str(status["message"])
    except (ValueError, KeyError, TypeError):
        status, message = {}, text.strip()[:300] or str(response.reason)
    return refusal(at, response.status, message, status, response.headers.get("Retry-After"))


def refusal(
    at: str, code: int, message: str, status: Mapping[str, Any], retry_after: str | None = None
) -> ApiError:
    """An ApiError from a Status object, such as the body of an error or the object of an ERROR event."""
    details = status.get("details") or {}
    seconds = details.get("retryAfterSeconds") or retry_after or ""
    return ApiError(
        f"{at}: {code}: {message}",
        status=code,
        status_reason=str(status.get("reason", "")),
        causes=tuple(
            (str(c.get("reason", "")), str(c.get("message", ""))) for c in details.get("causes") or ()
        ),
        retry_after=float(seconds) if str(seconds).isdigit() else None,
        words=message,
    )


def in_words(error: BaseException) -> str:
    """What went wrong underneath, in the system's own words where it has some."""
    deepest: BaseException = error
    while (inner := deepest.__cause__ or deepest.__context__) is not None:
        deepest = inner
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror
    return str(deepest) or type(deepest).__name__
