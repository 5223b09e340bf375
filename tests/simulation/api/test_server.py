from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import urllib3

from mig_manager.simulation.api.authorization import User, stored_rbac
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, PODS, ROLE_BINDINGS, ROLES
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import MAPS, NODES, Http, config_map, node, pod

_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def test_a_server_stops_at_once_with_watches_open_and_comes_back_on_its_port(store: MemoryStore) -> None:
    server = ApiServer(store)
    server.start()
    url = server.url
    with Http(url) as http, http.stream(f"{NODES}?watch=true") as events:
        server.faults.add(Fault(path="^/silent", how="silent"))
        hanging = threading.Thread(target=_ignore_loss, args=(url,))
        hanging.start()
        assert server.requests.wait_for(lambda request: request.path == "/silent", 60)
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 30
        assert list(events) == []
        hanging.join(60)
        assert not hanging.is_alive()
    with pytest.raises(urllib3.exceptions.HTTPError), Http(url) as http:
        http("GET", NODES)
    server.start()
    assert server.url == url
    with Http(url) as http:
        assert http("GET", NODES).code == 200
    server.stop()
    server.stop()


def _ignore_loss(url: str) -> None:
    with pytest.raises(urllib3.exceptions.ProtocolError), Http(url) as http:
        http("GET", "/silent")


def test_a_port_in_use_is_an_error(server: ApiServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        ApiServer(MemoryStore(), port=port).start()


def test_faults_hit_what_they_name_as_often_as_they_say(server: ApiServer, http: Http) -> None:
    http.made(NODES, node("a"))
    remove = server.faults.add(Fault(method="GET", path="^/api/v1/nodes/a$", status=503, times=2))
    server.faults.add(Fault(method="PATCH", status=429, retry_after_s=3))
    assert [http("GET", f"{NODES}/a").code for _ in range(3)] == [503, 503, 200]
    busy = http("PATCH", f"{NODES}/a", {}, content_type="application/merge-patch+json")
    assert (busy.code, busy.headers["Retry-After"]) == (429, "3")
    assert (busy.body["details"]["retryAfterSeconds"], busy.body["reason"]) == (3, "TooManyRequests")
    server.faults.add(Fault(path="nodes", status=418, body={"kind": "Pot"}, times=None))
    assert [http("GET", NODES).body for _ in range(2)] == [{"kind": "Pot"}] * 2
    assert http("GET", MAPS).code == 200
    server.faults.clear()
    assert http("GET", NODES).code == 200
    remove()
    server.faults.add(Fault(status=429, text="Too many requests, please try again later.", retry_after_s=1))
    throttled = http("GET", NODES)
    assert (throttled.code, throttled.headers["Retry-After"]) == (429, "1")
    assert throttled.body == "Too many requests, please try again later."


def test_an_answer_can_be_late_lost_or_cut(server: ApiServer, http: Http) -> None:
    server.faults.add(Fault(delay_s=0.2))
    started = time.monotonic()
    assert http("GET", NODES).code == 200
    assert time.monotonic() - started >= 0.2
    for how in ("drop", "cut"):
        server.faults.add(Fault(how=how))
        with pytest.raises(urllib3.exceptions.ProtocolError):
            http("GET", NODES)


def test_a_write_whose_answer_is_cut_has_been_done_and_one_that_is_dropped_has_not(
    server: ApiServer, http: Http
) -> None:
    for name, how in (("done", "cut"), ("not-done", "drop")):
        server.faults.add(Fault(method="POST", how=how))  # type: ignore[arg-type]
        with pytest.raises(urllib3.exceptions.ProtocolError):
            http("POST", MAPS, config_map(name))
    assert [each["metadata"]["name"] for each in http("GET", MAPS).body["items"]] == ["done"]


def test_the_log_tells_what_was_asked_by_whom(server: ApiServer, store: MemoryStore, http: Http) -> None:
    store.create(PODS, pod("p"))
    http(
        "POST",
        "/api/v1/namespaces/default/pods/p/eviction?dryRun=All",
        {"metadata": {"name": "p"}},
        user_agent="tester",
    )
    [request] = server.requests.all()
    assert (request.method, request.status, request.user_agent) == ("POST", 201, "tester")
    assert (request.verb, request.resource, request.namespace, request.name) == (
        "create",
        "pods/eviction",
        "default",
        "p",
    )
    assert (request.query, request.user) == ({"dryRun": "All"}, "kubernetes-admin")
    server.requests.clear()
    assert server.requests.all() == ()


def test_tokens_come_and_go(store: MemoryStore) -> None:
    tokens = {"old": User("someone")}
    with ApiServer(store, tokens=tokens, anonymous=None) as server, Http(server.url) as http:
        assert http("GET", NODES, authorization="Bearer old").code == 200
        tokens["new"] = tokens.pop("old")
        refused = http("GET", NODES, authorization="Bearer old")
        assert (refused.code, refused.body["reason"]) == (401, "Unauthorized")
        assert http("GET", NODES).code == 401
        assert http("GET", NODES, authorization="Bearer new").code == 200


@pytest.fixture
def guarded(store: MemoryStore) -> MemoryStore:
    """A store with the rights of service account `mig`: read nodes, patch node `a`, evict and read in `work`."""

    def role(kind: str, name: str, *rules: tuple[list[str], list[str], list[str]]) -> None:
        made = [{"apiGroups": [""], "resources": r, "verbs": v, "resourceNames": n} for r, v, n in rules]
        cluster = kind == "ClusterRole"
        where = {} if cluster else {"namespace": "work"}
        binding = {
            "metadata": {"name": name, **where},
            "roleRef": {"kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "mig", "namespace": "gpu"}],
        }
        store.create(
            CLUSTER_ROLES if cluster else ROLES, {"metadata": {"name": name, **where}, "rules": made}
        )
        store.create(CLUSTER_ROLE_BINDINGS if cluster else ROLE_BINDINGS, binding)

    role("ClusterRole", "nodes", (["nodes"], ["get", "list", "watch"], []), (["nodes"], ["patch"], ["a"]))
    role("Role", "pods", (["pods", "pods/eviction"], ["list", "create"], []))
    return store


def test_rbac_allows_what_the_stored_roles_say(guarded: MemoryStore) -> None:
    tokens = {"t": User.service_account("gpu", "mig")}
    with (
        ApiServer(guarded, tokens=tokens, authorizer=stored_rbac(guarded)) as server,
        Http(server.url) as http,
    ):
        http.made(NODES, node("a"))
        http.made(NODES, node("b"))
        http.made("/api/v1/namespaces", {"metadata": {"name": "work"}})
        merge = {"content-type": "application/merge-patch+json", "authorization": "Bearer t"}
        patch = {"metadata": {"labels": {"x": "y"}}}
        assert http("PATCH", f"{NODES}/a", patch, **merge).code == 200
        refused = http("PATCH", f"{NODES}/b", patch, **merge)
        assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
        assert refused.body["message"] == (
            'nodes "b" is forbidden: User "system:serviceaccount:gpu:mig" cannot patch resource "nodes" in API '
            'group "" at the cluster scope'
        )
        assert refused.body["details"] == {"name": "b", "kind": "nodes"}
        assert http("GET", "/api/v1/namespaces/work/pods", authorization="Bearer t").code == 200
        assert http("GET", "/api/v1/pods", authorization="Bearer t").code == 403
        for resource, verb, subresource, namespace, allowed in (
            ("nodes", "watch", "", "", True),
            ("nodes", "delete", "", "", False),
            ("pods", "create", "eviction", "work", True),
            ("pods", "create", "eviction", "default", False),
        ):
            attributes = {
                "resource": resource,
                "verb": verb,
                "subresource": subresource,
                "namespace": namespace,
            }
            review = http(
                "POST", _REVIEW, {"spec": {"resourceAttributes": attributes}}, authorization="Bearer t"
            )
            assert (review.code, review.body["status"]["allowed"]) == (201, allowed)


def test_a_kubeconfig_names_the_server_and_the_token(server: ApiServer, tmp_path: Path) -> None:
    server.write_kubeconfig(tmp_path / "config", token="secret", namespace="gpu")
    text = (tmp_path / "config").read_text()
    assert server.url in text
    assert "secret" in text
    assert "namespace: gpu" in text
