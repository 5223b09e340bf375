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
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, urlencode

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.wait import Deadline
from mig_manager.errors import MigManagerError, Reason

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
_CONNECTIONS = 32
_LONGEST_STATUS = 65536


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

    def __reduce__(self) -> tuple[object, ...]:
        return (_api_error, (self.message, self.status, self.status_reason, self.causes, self.retry_after))

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (0, 401, 409, 429, 500, 502, 503, 504)


def _api_error(
    message: str,
    status: int,
    status_reason: str,
    causes: tuple[tuple[str, str], ...],
    retry_after: float | None,
) -> ApiError:
    return ApiError(
        message, status=status, status_reason=status_reason, causes=causes, retry_after=retry_after
    )


class Api:
    """A connection to the API server. Safe to use from several threads."""

    def __init__(
        self, kubeconfig: Path | None, service_account: Path, pause: Callable[[float], None]
    ) -> None:
        self._kubeconfig = kubeconfig
        self._service_account = service_account
        self._pause = pause
        self._lock = threading.Lock()
        self._session = _Session(kubeconfig, service_account)

    @classmethod
    def connect(
        cls,
        kubeconfig: Path | None = None,
        *,
        service_account: Path = SERVICE_ACCOUNT,
        pause: Callable[[float], None] = time.sleep,
    ) -> Api:
        """Read the credentials; sends nothing.

        Without a kubeconfig, the pod's service account is used. `pause` waits between attempts (give
        `Signal.pause` to let the daemon break it off). Raises ApiError when there are no usable credentials.
        """
        return cls(kubeconfig, service_account, pause)

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
                raise ApiError(f"{self._at(method, path)}: the answer broke off: {_plain(error)}") from error
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
            return backoff(state) if asked is None else asked

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
            raise _refusal(self._at(method, path), response)
        finally:
            response.release_conn()

    def _exchange(
        self,
        session: _Session,
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
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(f"The API server {session.host} does not answer: {_plain(error)}.") from error

    def _renewed(self, stale: _Session) -> _Session:
        """A session with credentials read anew, unless another thread has done that meanwhile."""
        with self._lock:
            if self._session is stale:
                self._session = _Session(self._kubeconfig, self._service_account)
            return self._session

    def _at(self, method: str, path: str) -> str:
        return f"{method} {self._session.host}{path}"


class _Session:
    """The credentials as they were read at one time, and connections that use them."""

    def __init__(self, kubeconfig: Path | None, service_account: Path) -> None:
        import yaml
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader
        from kubernetes.config.kube_config import load_kube_config

        self._configuration = Configuration()
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        try:
            if kubeconfig is None:
                InClusterConfigLoader(  # type: ignore[no-untyped-call]
                    token_filename=str(service_account / "token"),
                    cert_filename=str(service_account / "ca.crt"),
                ).load_and_set(self._configuration)
            else:
                load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), client_configuration=self._configuration, persist_config=False
                )
        except (
            ConfigException,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            yaml.YAMLError,
        ) as error:
            source = (
                "the service account of this pod" if kubeconfig is None else f"the kubeconfig {kubeconfig}"
            )
            raise ApiError(f"No access to the API server by {source}: {error}") from error
        self.host: str = self._configuration.host.rstrip("/")
        self.pool: urllib3.PoolManager = ApiClient(self._configuration).rest_client.pool_manager

    def credentials(self) -> dict[str, str]:
        """The headers that say who we are; a service account's token is read again once a minute."""
        bearer = self._configuration.auth_settings().get("BearerToken")
        headers = {"User-Agent": "mig-manager"}
        if bearer is not None and bearer["value"]:
            headers["Authorization"] = bearer["value"].strip()
        return headers

    def close(self) -> None:
        self.pool.clear()


def _refusal(at: str, response: urllib3.BaseHTTPResponse) -> ApiError:
    """The error that an answer stands for; the message is the one of its Status body, if it has one."""
    import urllib3

    try:
        text = response.read(_LONGEST_STATUS).decode(errors="replace")
    except urllib3.exceptions.HTTPError as error:
        text = _plain(error)
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
    )


def _plain(error: BaseException) -> str:
    """What went wrong underneath, in the system's own words where it has some."""
    deepest: BaseException = error
    while (inner := deepest.__cause__ or deepest.__context__) is not None:
        deepest = inner
    if isinstance(deepest, OSError) and deepest.strerror:
        return deepest.strerror
    return str(deepest) or type(deepest).__name__


def object_path(plural: str, name: str, *, namespace: str | None = None, group: str = "v1") -> str:
    """The path of an object: `object_path("pods", "a", namespace="b")` is `/api/v1/namespaces/b/pods/a`."""
    return f"{collection_path(plural, namespace=namespace, group=group)}/{quote(name, safe='')}"


def collection_path(plural: str, *, namespace: str | None = None, group: str = "v1") -> str:
    """The path of a collection; `group` is an apiVersion such as `apps/v1`."""
    root = "/apis/" if "/" in group else "/api/"
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{group}{within}/{plural}"
