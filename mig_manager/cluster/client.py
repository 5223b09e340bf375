"""Requests to the Kubernetes API server.

The official client reads kubeconfig and service account, knows proxies and TLS, and renews credentials; we
use its configuration and its connection pool. Its generated API classes are left out: importing CoreV1Api
alone takes 0.6 s and 22 MiB, most of it models that nothing here needs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast
from urllib.parse import quote, urlencode

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError, in_words, refused
from mig_manager.cluster.session import Credentials, Kubeconfig, ServiceAccount, Session
from mig_manager.cluster.wait import Deadline

if TYPE_CHECKING:
    import urllib3

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header for objects and watches: metadata only."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for lists: metadata only."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CONNECT_S = 5.0
_ANSWER_S = 15.0
_LONGEST_BACKOFF_S = 10.0


def _untold(method: str, status: int) -> None:
    """Nobody counts."""


class Api:
    """A connection to the API server. Safe to use from several threads."""

    def __init__(
        self,
        credentials: Credentials,
        pause: Callable[[float], None] = time.sleep,
        refused: Callable[[str, int], None] = _untold,
    ) -> None:
        """Read the credentials; sends nothing. See `connect` for the other arguments and what is raised."""
        self._credentials = credentials
        self._pause = pause
        self._refused = refused
        self._lock = threading.Lock()
        self._session = Session(credentials)

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | None = None,
        *,
        service_account: Path = SERVICE_ACCOUNT,
        pause: Callable[[float], None] = time.sleep,
        refused: Callable[[str, int], None] = _untold,
    ) -> Api:
        """Read the credentials; sends nothing.

        Without a kubeconfig, the pod's service account is used. `pause` waits between attempts (give
        `Signal.pause` to let the daemon break it off). `refused` is told method and status of each request that
        fails, 0 where there was no answer. Raises ApiError when there are no usable credentials.
        """
        found = ServiceAccount(service_account) if kubeconfig is None else Kubeconfig(kubeconfig)
        return cls(found, pause, refused)

    @property
    def server(self) -> str:
        """The server's address, for messages: `https://10.0.0.1:443`."""
        return self._session.host

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        deadline: Deadline | None = None,
    ) -> JsonObject:
        """Read an object or a list."""
        return self.request("GET", path, query, accept=accept, deadline=deadline)

    def patch(
        self, path: str, body: JsonObject, *, retry_conflict: bool = True, deadline: Deadline | None = None
    ) -> JsonObject:
        """Merge-patch an object; gives it as it is afterwards."""
        return self.request(
            "PATCH",
            path,
            body=body,
            content_type=MERGE_PATCH,
            retry_conflict=retry_conflict,
            deadline=deadline,
        )

    def create(
        self,
        path: str,
        body: JsonObject,
        query: Mapping[str, str] | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> JsonObject:
        """Post an object to a collection or a sub-resource."""
        return self.request("POST", path, query, body=body, deadline=deadline)

    def delete(
        self,
        path: str,
        body: JsonObject | None = None,
        *,
        retry_conflict: bool = True,
        deadline: Deadline | None = None,
    ) -> JsonObject:
        """Delete an object; `body` holds DeleteOptions."""
        return self.request("DELETE", path, body=body, retry_conflict=retry_conflict, deadline=deadline)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: JsonObject | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        retry_conflict: bool = True,
        deadline: Deadline | None = None,
    ) -> JsonObject:
        """Send one request and give the answer's body.

        With a deadline, what may pass (no connection, 401, 409, 429, 5xx) is tried again until then, with
        growing jittered pauses or as long as Retry-After says. Without one there is a single attempt.
        Raises ApiError.
        """
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept} | ({} if payload is None else {"Content-Type": content_type})

        def attempt() -> JsonObject:
            answer_s = _ANSWER_S if deadline is None else max(0.1, min(_ANSWER_S, deadline.remaining()))
            response = self._send(method, path, query, headers, payload, answer_s)
            try:
                answer = json.loads(response.read())
            except (urllib3.exceptions.HTTPError, ValueError) as error:
                raise ApiError(
                    f"{self._at(method, path)}: the answer broke off: {in_words(error)}"
                ) from error
            finally:
                response.release_conn()
            return cast(JsonObject, answer)

        import urllib3

        if deadline is None:
            return attempt()
        return self._retrying(deadline, retry_conflict)(attempt)

    def stream(
        self, path: str, query: Mapping[str, str], *, accept: str = JSON, silence_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Open a stream, such as a watch; reading from it fails after `silence_s` seconds without a byte.

        The caller reads and closes it; `shutdown()` of it ends a blocked read from another thread.
        Raises ApiError.
        """
        return self._send("GET", path, query, {"Accept": accept}, None, silence_s)

    def close(self) -> None:
        """Give back the idle connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _retrying(self, deadline: Deadline, retry_conflict: bool) -> Retrying:
        backoff = wait_random_exponential(multiplier=0.2, max=_LONGEST_BACKOFF_S)

        def worth_it(error: BaseException) -> bool:
            return isinstance(error, ApiError) and error.passing and (retry_conflict or error.status != 409)

        def pause_s(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, ApiError) else None
            # A server that asks for no pause at all is not asked the faster for it.
            return asked or backoff(state)

        def out_of_time(state: RetryCallState) -> bool:
            return deadline.remaining() <= state.upcoming_sleep

        return Retrying(
            retry=retry_if_exception(worth_it),
            wait=pause_s,
            stop=out_of_time,
            sleep=self._pause,
            reraise=True,
        )

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        payload: bytes | None,
        answer_s: float,
    ) -> urllib3.BaseHTTPResponse:
        """One request, and what has to be told of its failure."""
        try:
            return self._answered(method, path, query, headers, payload, answer_s)
        except ApiError as error:
            self._refused(method, error.status)
            raise

    def _answered(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        payload: bytes | None,
        answer_s: float,
    ) -> urllib3.BaseHTTPResponse:
        """One request; renews the credentials once if the server does not know them (any more)."""
        target = path + ("?" + urlencode(query) if query else "")
        session = self._session
        response = self._exchange(session, method, target, headers, payload, answer_s)
        if response.status == 401:
            response.drain_conn()
            response = self._exchange(self._renewed(session), method, target, headers, payload, answer_s)
        if 200 <= response.status < 300:
            return response
        try:
            raise refused(self._at(method, path), response)
        finally:
            response.release_conn()

    def _exchange(
        self,
        session: Session,
        method: str,
        target: str,
        headers: dict[str, str],
        payload: bytes | None,
        answer_s: float,
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        try:
            return session.pool.request(
                method,
                session.host + target,
                body=payload,
                headers=headers | session.credentials(),
                timeout=urllib3.Timeout(connect=min(_CONNECT_S, answer_s), read=answer_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except ValueError as error:
            # Such as a token with a line end in it, which no header can hold.
            raise ApiError(f"No request can be sent to {session.host}: {in_words(error)}.") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(f"The API server {session.host} does not answer: {in_words(error)}.") from error

    def _renewed(self, stale: Session) -> Session:
        """A session with credentials read anew, unless another thread has done that meanwhile."""
        with self._lock:
            if self._session is stale:
                self._session = Session(self._credentials)
            return self._session

    def _at(self, method: str, path: str) -> str:
        return f"{method} {self._session.host}{path}"


def object_path(plural: str, name: str, *, namespace: str | None = None, group: str = "v1") -> str:
    """The path of an object: `object_path("pods", "a", namespace="b")` is `/api/v1/namespaces/b/pods/a`."""
    return f"{collection_path(plural, namespace=namespace, group=group)}/{quote(name, safe='')}"


def collection_path(plural: str, *, namespace: str | None = None, group: str = "v1") -> str:
    """The path of a collection; `group` is an apiVersion such as `apps/v1`."""
    root = "/apis/" if "/" in group else "/api/"
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{group}{within}/{plural}"
