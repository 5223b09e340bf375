"""Metrics: what Prometheus reads is what the Node says."""

from __future__ import annotations

import socket
import urllib.request

from tests.daemon.conftest import MakeNode
from tests.daemon.workloads import QUICK, by_hand


def scrape(port: int) -> dict[str, float]:
    """Values of our own metrics, by name and labels as Prometheus writes them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.removeprefix("mig_manager_").rpartition(" ") for line in lines if line[0] != "#")
    return {name: float(value) for name, _, value in samples}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_state_layout_runs_and_drift_are_to_be_scraped(make_node: MakeNode) -> None:
    node = make_node()
    port = free_port()
    node.start(**QUICK, MIG_MANAGER_METRICS_LISTEN=f"127.0.0.1:{port}", MIG_MANAGER_DRIFT_INTERVAL="0.3")
    node.becomes("small")
    node.becomes("nonsense", "failed")
    failure = 'runs_total{reason="UnknownLayout",state="failed"}'
    node.eventually(lambda: failure in scrape(port), "the run to be counted")
    seen = scrape(port)
    assert seen['state{state="failed"}'] == 1
    assert seen['state{state="success"}'] == 0
    assert seen['layout{said="nonsense",wanted="nonsense"}'] == 1
    assert seen['runs_total{reason="",state="success"}'] == 1
    assert seen[failure] == 1
    assert seen["drift"] == 0
    node.becomes("small")
    by_hand(node, "destroy", "1g.10gb:0")
    node.wait(lambda: node.state == "failed", "the drift to be said")
    assert scrape(port)["drift"] == 1


def test_a_port_that_is_taken_is_said_and_stops_nothing(make_node: MakeNode) -> None:
    node = make_node()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node.start(MIG_MANAGER_METRICS_LISTEN=f"127.0.0.1:{port}")
        node.becomes("small")
        assert f"no metrics on 127.0.0.1:{port}: Address already in use" in node.logged()
