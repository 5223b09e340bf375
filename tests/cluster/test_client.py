"""Requests to the API server: credentials, retries, and errors in words."""

from __future__ import annotations

import pickle
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from mig_manager.cluster.client import Api
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.objects import Node
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions, watch_node_meta
from mig_manager.errors import Reason
from tests.cluster.hostile import Exchange, HostileServer

NODES = "/api/v1/nodes"


def only(token: str) -> Callable[[Exchange], bool]:
    """Serve nobody but the bearer of a token."""

    def check(exchange: Exchange) -> bool:
        if exchange.headers["Authorization"] == f"Bearer {token}":
            return False
        exchange.refuse(401, "Unauthorized", "Unauthorized")
        return True

    return check


def test_a_rotated_token_is_read_again_once_the_old_one_is_refused(
    hostile: HostileServer, tmp_path: Path, signal: Signal
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    kubeconfig = hostile.write_kubeconfig(tmp_path / "kubeconfig", tokenFile=str(token))
    hostile.always = only("first")
    with (
        Api.connect(kubeconfig) as api,
        watch_node_meta(api, "gpu-1", signal, WatchOptions(stream_s=1, shortest_backoff_s=0.05)) as watch,
    ):
        watch.wait_synced(Deadline.after(10))
        token.write_text("second")
        hostile.always = only("second")
        hostile.label(layout="new")
        assert api.get(NODES)["items"]
        signal.wait_for(
            lambda: watch.sole is not None and watch.sole.labels.get("layout") == "new",
            Deadline.after(10),
            "the watch did not get over the rotation",
            reason=Reason.API_ERROR,
        )


def test_a_token_that_no_header_can_hold_is_an_error_that_does_not_show_it(
    hostile: HostileServer, tmp_path: Path
) -> None:
    kubeconfig = hostile.write_kubeconfig(tmp_path / "kubeconfig", token="s3cr3t-one\ns3cr3t-two")
    with Api.connect(kubeconfig) as api, pytest.raises(ApiError, match="No request can be sent") as error:
        api.get(NODES)
    assert "s3cr3t" not in str(error.value)


def test_credentials_that_stay_refused_are_renewed_once_a_request(
    hostile: HostileServer, tmp_path: Path
) -> None:
    hostile.always = only("nobody")
    api = Api.connect(hostile.write_kubeconfig(tmp_path / "kubeconfig", token="mine"))
    with pytest.raises(ApiError, match="401: Unauthorized"):
        api.get(NODES)
    assert len(hostile.requests) == 2


@pytest.fixture
def service_account(hostile: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's files and environment, and the server behind TLS as a cluster has it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    hostile.socket = context.wrap_socket(hostile.socket, server_side=True)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("bound-token\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(hostile.server_address[1]))
    return tmp_path


def test_in_a_cluster_every_request_carries_the_token(hostile: HostileServer, service_account: Path) -> None:
    """kubernetes 36.0.0 sent none."""
    tokens: list[str | None] = []

    def note(exchange: Exchange) -> bool:
        tokens.append(exchange.headers["Authorization"])
        return False

    hostile.always = note
    with Api.connect(service_account=service_account) as api:
        assert api.get(NODES)["items"]
        api.stream(
            NODES, {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "1"}, silence_s=5
        ).close()
    assert [token and token.lower() for token in tokens] == ["bearer bound-token"] * 2


def test_in_a_cluster_a_rotated_token_is_read_again(hostile: HostileServer, service_account: Path) -> None:
    with Api.connect(service_account=service_account) as api:
        (service_account / "token").write_text("next-token")

        def check(exchange: Exchange) -> bool:
            if "next-token" in exchange.headers["Authorization"]:
                return False
            exchange.refuse(401, "Unauthorized", "Unauthorized")
            return True

        hostile.always = check
        assert api.get(NODES)["items"]


def test_a_watch_over_tls_stops_at_once(
    hostile: HostileServer, service_account: Path, signal: Signal
) -> None:
    with Api.connect(service_account=service_account) as api:
        watch = watch_node_meta(api, "gpu-1", signal, WatchOptions(stream_s=60))

        def label(exchange: Exchange) -> bool:
            hostile.label(layout="read")
            return False

        hostile.watches += [label]
        watch.start()
        signal.wait_for(
            lambda: watch.sole is not None and "layout" in watch.sole.labels,
            Deadline.after(10),
            "no label",
            reason=Reason.API_ERROR,
        )
        watch.stop()
        watch.join(1.0)
        assert not watch.alive


def test_a_server_with_a_strange_certificate_is_named(hostile: HostileServer, service_account: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(service_account / "ca.crt"))
    with pytest.raises(ApiError, match="certificate verify failed"):
        Api.connect(service_account=service_account).get(NODES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "kubeconfig .*/kubeconfig: Invalid kube-config file"),
        ("{}", "kubeconfig .*/kubeconfig: Invalid kube-config file"),
        ("a: [", "kubeconfig .*/kubeconfig: while parsing a flow node"),
        ("just words", "kubeconfig .*/kubeconfig: "),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ApiError, match=words):
        Api.connect(path)


def test_outside_a_cluster_without_kubeconfig_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiError, match="service account of this pod: Service host/port is not set"):
        Api.connect()


def failing(times: int, code: int, reason: str, **status: object) -> Callable[[Exchange], bool]:
    left = [times]

    def fail(exchange: Exchange) -> bool:
        if not left[0]:
            return False
        left[0] -= 1
        exchange.refuse(code, reason, reason, **status)
        return True

    return fail


@pytest.mark.parametrize(
    ("code", "reason"), [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError"), (503, "Down")]
)
def test_what_passes_is_tried_again_until_the_deadline(
    hostile: HostileServer, hostile_api: Api, code: int, reason: str
) -> None:
    hostile.always = failing(2, code, reason)
    assert hostile_api.get(NODES, deadline=Deadline.after(60))["items"]
    hostile.always = failing(1000, code, reason)
    began = time.monotonic()
    with pytest.raises(ApiError, match=f"{code}: {reason}") as caught:
        hostile_api.get(NODES, deadline=Deadline.after(1))
    assert caught.value.status == code
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("code", "reason"), [(400, "BadRequest"), (403, "Forbidden"), (422, "Invalid")])
def test_what_cannot_pass_is_not_tried_again(
    hostile: HostileServer, hostile_api: Api, code: int, reason: str
) -> None:
    hostile.always = failing(1, code, reason)
    with pytest.raises(ApiError) as caught:
        hostile_api.get(NODES, deadline=Deadline.after(10))
    assert caught.value.status_reason == reason
    assert len(hostile.requests) == 1


def test_retry_after_is_honoured(hostile: HostileServer, hostile_api: Api) -> None:
    hostile.always = failing(1, 429, "TooManyRequests", details={"retryAfterSeconds": 1})
    began = time.monotonic()
    assert hostile_api.get(NODES, deadline=Deadline.after(60))["items"]
    assert time.monotonic() - began >= 1
    assert len(hostile.requests) == 2


def test_a_server_that_asks_for_no_pause_is_not_asked_without_one(
    hostile: HostileServer, hostile_api: Api
) -> None:
    hostile.always = lambda exchange: exchange.answer(429, "slow down", Retry_After="0")
    with pytest.raises(ApiError):
        hostile_api.get(NODES, deadline=Deadline.after(1))
    assert 2 <= len(hostile.requests) <= 15


def test_an_interrupt_breaks_off_the_retries(hostile: HostileServer, tmp_path: Path) -> None:
    class ChangedError(Exception):
        pass

    def interrupt() -> None:
        if len(hostile.requests) >= 2:
            raise ChangedError

    signal = Signal(interrupt)
    hostile.always = failing(1000, 503, "Down")
    with (
        Api.connect(hostile.write_kubeconfig(tmp_path / "kubeconfig"), pause=signal.pause) as api,
        pytest.raises(ChangedError),
    ):
        api.get(NODES, deadline=Deadline.after(60))


def test_a_connection_that_the_server_closed_while_idle_does_no_harm(
    hostile: HostileServer, hostile_api: Api
) -> None:
    def close_afterwards(exchange: Exchange) -> bool:
        exchange.close_connection = True
        return False

    hostile.always = close_afterwards
    for _ in range(3):
        assert hostile_api.get(NODES, deadline=Deadline.after(60))["items"]


def test_an_api_error_survives_pickling() -> None:
    error = ApiError("no", status=429, status_reason="TooManyRequests", causes=(("a", "b"),), retry_after=2.0)
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.status, again.causes, again.retry_after) == ("no", 429, (("a", "b"),), 2.0)


def test_an_update_computes_again_when_another_writer_came_between(
    hostile: HostileServer, hostile_api: Api
) -> None:
    """The patch names the version that was read; only a conflict makes it read again."""
    patches: list[dict[str, object]] = []

    def serve(exchange: Exchange) -> bool:
        if exchange.command == "GET":
            exchange.answer(200, hostile.node())
        else:
            patches.append(exchange.body)
            if exchange.body["metadata"]["resourceVersion"] != str(hostile.version):
                exchange.refuse(409, "Conflict", "the object has been modified")
            else:
                hostile.label(count=exchange.body["metadata"]["labels"]["count"])
                exchange.answer(200, hostile.node())
        return True

    def count(node: Node) -> NodeChange:
        if len(patches) < 2:
            hostile.label(count=str(10 * (len(patches) + 1)))
        return NodeChange(labels={"count": str(int(node.meta.labels.get("count", "0")) + 1)})

    hostile.always = serve
    node = NodeClient(hostile_api, "gpu-1").update(count, deadline=Deadline.after(60))
    assert node.meta.labels["count"] == "21"
    assert [patch["metadata"]["labels"] for patch in patches] == [  # type: ignore[index]
        {"count": "1"},
        {"count": "11"},
        {"count": "21"},
    ]
