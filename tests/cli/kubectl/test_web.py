"""`kubectl mig web`: a page of this machine only, live, that runs nothing of what clusters call their things."""

from __future__ import annotations

import copy
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from mig_manager.cli.kubectl.cluster import connect
from mig_manager.cli.kubectl.webview.fleet import Fleet
from mig_manager.cli.kubectl.webview.server import PageServer
from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Phase,
    State,
)
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.resources import NODES
from tests.browser import Page, browser
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig
from tests.requirements import need_chromium

SMALL = "nvidia.com/mig-1g.10gb"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> None:
    cluster.clear()


@contextmanager
def served(cluster: Cluster) -> Iterator[PageServer]:
    with (
        connect(cluster.kubeconfig, None) as api,
        Fleet(api) as fleet,
        PageServer(fleet, "the cluster") as server,
    ):
        yield server


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(need_chromium(), tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def ask(
    server: PageServer, path: str, *, method: str = "GET", host: str | None = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host} if host is not None else {})
    return connection.getresponse()


def test_only_requests_that_name_this_machine_and_port_are_answered(cluster: Cluster) -> None:
    with served(cluster) as server:
        port = server.server_port
        for path, host in product(
            ["/", "/app.js", "/events"],
            [
                "evil.example",
                f"evil.example:{port}",
                "127.0.0.1",
                "",
                "localhost:1",
                f"localhost:{port}.evil",
            ],
        ):
            refused = ask(server, path, host=host)
            assert (refused.status, path, host) == (421, path, host)
            assert b"MIG" not in refused.read()
        for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
            assert ask(server, "/", host=host).status == 200


def test_the_page_is_served_to_this_machine_with_a_policy_and_changes_nothing(cluster: Cluster) -> None:
    with served(cluster) as server:
        assert server.server_address[0] == "127.0.0.1"
        found = ask(server, "/")
        policy = found.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["Access-Control-Allow-Origin"] is None
        assert b"http" not in found.read().replace(b"https://", b"http").replace(b"http-equiv", b"")
        assert ask(server, "/../server.py").status == 404
        assert ask(server, "/app.py").status == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            refused = ask(server, "/", method=method)
            assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
            assert refused.headers["Content-Security-Policy"] == policy
            assert refused.read() == b"this page can only be read\n"
        assert (ask(server, "/", method="HEAD").status, ask(server, "/", method="HEAD").read()) == (200, b"")
    writes = [each for each in cluster.server.requests.all() if each.verb not in ("get", "list", "watch")]
    assert writes == []


def test_a_stream_tells_everything_first_and_then_what_changes(cluster: Cluster) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB", layout="all-1g.10gb")
    cluster.add_node("gpu-2", "1xT4", layout="all-disabled")
    cluster.add_node("plain", "1xT4", layout=None, labels={"nvidia.com/gpu.present": "false"})
    with served(cluster) as server:
        stream = Stream(server)
        first = stream.next()
        assert (first["all"], first["problem"], first["cluster"]) == (True, "", "the cluster")
        assert [each["name"] for each in first["nodes"]] == ["gpu-1", "gpu-2", "plain"]
        assert [box["use"] for box in first["nodes"][0]["gpus"][0]["boxes"]] == ["free"] * 7
        cluster.add_pod("a", "gpu-1", {SMALL: 7})
        changed = stream.next()
        assert not changed["all"]
        assert [each["name"] for each in changed["nodes"]] == ["gpu-1"]
        assert [box["use"] for box in changed["nodes"][0]["gpus"][0]["boxes"]] == ["used"] * 7
        assert changed["nodes"][0]["resources"][0]["pods"] == ["default/a (7)"]
        meta = cluster.node("gpu-2")["metadata"]
        cluster.server.store.remove(NODES, None, "gpu-2", meta["uid"])
        assert stream.next()["gone"] == ["gpu-2"]


def test_what_cannot_be_read_or_makes_no_sense_is_said_and_leaves_the_rest(cluster: Cluster) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB")
    cluster.add_node("gpu-2")
    cluster.change_node("gpu-2", NodeChange(annotations={GPUS_ANNOTATION: "nonsense"}))
    cluster.add_node("gpu-3")
    strange = '{"layout": "a", "state": "pending", "phase": "Draining", "gpus": ["a", "b"]}'
    cluster.change_node(
        "gpu-3", NodeChange(labels={STATE_LABEL: "pending"}, annotations={STATUS_ANNOTATION: strange})
    )
    cluster.server.faults.add(Fault("GET", "/pods", status=403, times=None))
    with served(cluster) as server:
        news = Stream(server).next()
    first, second, third = news["nodes"]
    assert "makes no sense" in third["problem"]
    assert news["problem"].startswith("Pods cannot be read")
    assert {box["use"] for box in first["gpus"][0]["boxes"]} == {"unknown"}
    assert first["resources"][0]["used"] is None
    assert "cannot be read" in second["problem"]


def test_a_port_that_is_taken_is_one_error(cluster: Cluster, mig: Mig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = mig("web", "--port", taken.getsockname()[1])
    assert told.code == 2
    assert "without --port a free one is taken" in told.err
    for port in ("abc", "70000"):
        told = mig("web", "--port", port)
        assert (
            told.code,
            told.err.startswith(f"error: Invalid value for '--port': '{port}' should be "),
        ) == (2, True)


def test_a_selector_that_makes_no_sense_is_bad_input(mig: Mig) -> None:
    told = mig("web", "-l", "(((")
    assert (told.code, told.err.startswith("error: the selector (-l) '(((' cannot be read: ")) == (2, True), (
        told.err
    )


def test_the_states_of_a_run_appear_without_a_reload(cluster: Cluster, page: Page) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB", layout="all-balanced")
    with served(cluster) as server:
        page.open(server.url)
        page.wait_for(card("gpu-1", ".state", "success"))
        assert page.value("document.querySelectorAll('#nodes .box').length") == 4
        page.value("window.mark = 'the same page'")
        for phase in (Phase.DRAINING, Phase.APPLYING):
            cluster.say("gpu-1", partial(replace, state=State.PENDING, phase=phase, gpus=(0,)))
            page.wait_for(card("gpu-1", ".phase", phase))
            page.wait_for(f"document.querySelector('#runs li').textContent.includes('{phase}')")
        leaving = ("default/one", "default/gone")
        cluster.add_pod("one", "gpu-1", {SMALL: 1})
        cluster.say("gpu-1", partial(replace, state=State.PENDING, phase=Phase.DRAINING, leaving=leaving))
        page.wait_for(card("gpu-1", ".phase", "1 of 2 pods left"))
        assert page.value("document.getElementById('said').textContent") == "gpu-1: pending"
        assert page.value("document.getElementById('state-pending').textContent") == "pending 1"
        cluster.say("gpu-1", lambda said: replace(said, state=State.SUCCESS, phase=Phase.DONE))
        page.wait_for(card("gpu-1", ".state", "success"))
        page.wait_for("document.getElementById('running').hidden")
        assert page.value("document.getElementById('said').textContent") == "gpu-1: success"
        assert page.value("window.mark") == "the same page"
    page.wait_for("document.getElementById('connection').textContent.startsWith('connection lost')")
    # Only that the server has gone; nothing that the policy forbids, no exception.
    assert all("ERR_" in each for each in page.complaints)


def test_what_clusters_call_their_things_is_text(cluster: Cluster, page: Page) -> None:
    cluster.add_node(HOSTILE, "1xA100-SXM4-80GB", layout="all-balanced")
    cluster.change_node(HOSTILE, NodeChange(labels={CONFIG_LABEL: HOSTILE}))
    cluster.say(
        HOSTILE, lambda said: replace(said, state=State.PENDING, phase=Phase.DRAINING, message=HOSTILE)
    )
    gpus = json.loads(cluster.node(HOSTILE)["metadata"]["annotations"][GPUS_ANNOTATION])
    gpus[0]["model"] = HOSTILE
    cluster.change_node(HOSTILE, NodeChange(annotations={GPUS_ANNOTATION: json.dumps(gpus)}))
    cluster.add_pod(HOSTILE, HOSTILE, {SMALL: 1})
    with served(cluster) as server:
        page.open(server.url)
        page.wait_for("document.querySelector('#runs a')")
        shown = page.value("document.body.textContent")
        # Name, run, layout, message, model, pod.
        assert shown.count(HOSTILE) >= 6
        assert page.value("document.querySelectorAll('main img, main script, #running img').length") == 0
        assert page.value("window.hacked === undefined")
        markup = "try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }"
        assert page.value(markup) == "TypeError"


def test_five_hundred_nodes_can_be_filtered(cluster: Cluster, page: Page) -> None:
    cluster.add_node("gpu-0", "8xA100-SXM4-80GB", layout="all-balanced")
    pattern = cluster.node("gpu-0")
    for number in range(1, 500):
        other: dict[str, Any] = copy.deepcopy({key: pattern[key] for key in ("spec", "status")})
        meta = pattern["metadata"]
        labels = dict(meta["labels"]) | (
            {"nvidia.com/mig.config.state": "failed"} if number % 100 == 0 else {}
        )
        other["metadata"] = {
            "name": f"gpu-{number}",
            "labels": labels,
            "annotations": dict(meta["annotations"]),
        }
        cluster.server.store.create(NODES, other)
    visible = "[...document.querySelectorAll('article')].filter((card) => !card.hidden).length"
    with served(cluster) as server:
        page.open(server.url)
        page.wait_for(f"{visible} === 500")
        page.value("document.getElementById('state-failed').click()")
        assert page.value(visible) == 4
        assert page.value("document.getElementById('shown').textContent") == "4 of 500 nodes"
        assert page.value("document.getElementById('state-failed').getAttribute('aria-pressed')") == "true"
        page.value("document.getElementById('state-').click()")
        page.value(
            "{ const box = document.getElementById('filter'); box.value = 'GPU-49 3g.40gb';"
            " box.dispatchEvent(new Event('input')); }"
        )
        assert page.value(visible) == 11
        colours = set()
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            colours.add(page.value("getComputedStyle(document.body).backgroundColor"))
        assert len(colours) == 2


class Stream:
    """The server-sent events of a page."""

    def __init__(self, server: PageServer) -> None:
        self._response = ask(server, "/events")
        assert self._response.headers["Content-Type"] == "text/event-stream"

    def next(self) -> dict[str, Any]:
        """The next news."""
        for line in self._response:
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found
        raise AssertionError("the stream has ended")


def card(name: str, part: str, text: str) -> str:
    """An expression: the card of a node shows a text in a part of it."""
    return (
        "[...document.querySelectorAll('article')].some((card) => "
        f"card.querySelector('h3').textContent === {json.dumps(name)} && "
        f"card.querySelector({json.dumps(part)})?.textContent.includes({json.dumps(str(text))}))"
    )
