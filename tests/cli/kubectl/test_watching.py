"""Nodes as they change: line by line, as documents, and in place on a terminal."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from mig_manager.cli.kubectl.main import command_line
from mig_manager.daemon.status import Phase, State, Status
from mig_manager.simulation.api.faults import Fault
from tests.cli.kubectl.cluster import Cluster, once_watched
from tests.cli.kubectl.conftest import Mig

POD = "ml/training"
Watched = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def nodes(cluster: Cluster) -> Iterator[None]:
    cluster.add_node("gpu-1")
    cluster.add_node("gpu-2")
    cluster.add_pod("training", "gpu-1", {"nvidia.com/mig-1g.10gb": 1}, namespace="ml")
    yield
    cluster.clear()


def drains(said: Status) -> Status:
    return replace(said, state=State.PENDING, phase=Phase.DRAINING, gpus=(0, 1), leaving=(POD,))


def applies(said: Status) -> Status:
    return replace(said, phase=Phase.APPLYING, leaving=())


def succeeds(said: Status) -> Status:
    return replace(said, state=State.SUCCESS, phase=Phase.DONE)


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "150")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def watched(cluster: Cluster, press_ctrl_c: Callable[[], None]) -> Watched:
    """Watch, and press Ctrl-C in the end; gives exit code and what was printed.

    Once the first pattern has been printed, what stands beside it happens, and the next one is looked for.
    """

    def watch(*arguments: str, until: Sequence[tuple[str, Callable[[], object]]]) -> tuple[int, str]:
        hear, say = os.pipe()
        heard: list[str] = []

        def listen() -> None:
            with os.fdopen(hear) as stream:
                for pattern, happen in until:
                    text = ""
                    while not re.search(pattern, text):
                        text += os.read(stream.fileno(), 65536).decode()
                    heard.append(text)
                    happen()
                press_ctrl_c()
                heard.append(stream.read())

        thread = threading.Thread(target=listen)
        thread.start()
        with os.fdopen(say, "w") as stream, redirect_stdout(stream):
            code = command_line(["status", *arguments, "--kubeconfig", str(cluster.kubeconfig)])
        thread.join()
        return code, "".join(heard)

    return watch


def test_without_a_terminal_each_change_is_a_row(cluster: Cluster, watched: Watched) -> None:
    code, out = watched(
        "-w",
        until=[
            ("gpu-2.*\n", lambda: cluster.say("gpu-1", drains)),
            ("Draining.*\n", lambda: cluster.say("gpu-1", applies)),
            ("Applying.*\n", lambda: cluster.say("gpu-1", succeeds)),
            ("success.*\n", lambda: None),
        ],
    )
    assert code == 130
    head, *rows = out.splitlines()
    assert head.startswith("NODE")
    assert [row.split()[0] for row in rows] == ["gpu-1", "gpu-2", "gpu-1", "gpu-1", "gpu-1"]
    assert "Draining (1 of 1 pod left, 0 of 2 GPUs done)" in rows[2]
    assert "Applying (0 of 2 GPUs done)" in rows[3]
    assert "success" in rows[4]


def test_scripts_get_a_document_for_each_change(cluster: Cluster, watched: Watched) -> None:
    code, out = watched(
        *("gpu-1", "-w", "-o", "json"),
        until=[("Done", lambda: cluster.say("gpu-1", drains)), ("Draining", lambda: None)],
    )
    assert code == 130
    well, running = map(json.loads, out.splitlines())
    assert (well["phase"], well["state"]) == ("Done", "success")
    assert running["progress"]["podsLeft"] == {"left": 1, "of": 1}


def test_on_a_terminal_the_table_changes_in_place(
    cluster: Cluster, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    code, out = watched(
        "-w",
        until=[
            ("gpu-2", lambda: cluster.say("gpu-1", drains)),
            (r"Draining \(1 of 1 pod left, 0 of 2 GPUs done\)", lambda: None),
        ],
    )
    assert code == 130
    assert "\x1b[1A" in out, "the cursor goes up"
    assert "\x1b[33mpending" in out


def test_a_terminal_without_colours_has_none(
    mig: Mig, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in mig("status").out


def test_a_server_that_goes_away_is_told_once(
    cluster: Cluster, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    def goes_away() -> None:
        cluster.server.faults.add(Fault(path="/api/v1/nodes", status=503, times=None))
        cluster.server.disturb_watches("cut", "nodes")
        assert cluster.server.requests.wait_for(lambda each: each.status == 503, 60, count=2)

    code, out = watched("gpu-2", "-w", until=[("gpu-2", goes_away)])
    assert code == 130
    assert capsys.readouterr().err.count("What is shown may be old") == 1
    assert len(out.splitlines()) == 2


def test_waiting_on_a_terminal_has_a_bar_for_each_node(
    mig: Mig, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    cluster.say("gpu-1", lambda said: replace(drains(said), finishedAt=None))

    def succeed() -> None:
        time.sleep(0.5)  # Until it has been shown as it is.
        cluster.say("gpu-1", lambda said: replace(succeeds(said), finishedAt="x"))

    with once_watched(cluster, succeed):
        ended = mig("set", "gpu-1", "gpu-2", "all-1g.10gb", "--wait", "--timeout", "120s")
    assert ended.code == 0
    assert "━" in ended.out
    assert "pending, Draining, 1 of 1 pod left" in ended.out
    assert ended.out.endswith("gpu-2: has all-1g.10gb\ngpu-1: has all-1g.10gb\n")
