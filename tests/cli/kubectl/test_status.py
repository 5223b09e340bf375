"""What `kubectl mig status` shows, as people and as scripts read it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from mig_manager.cli.kubectl.durations import age
from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.status import CONFIG_LABEL, Phase, State, Status
from mig_manager.errors import Reason
from mig_manager.simulation.api.faults import Fault
from tests.cli.kubectl.cluster import Cluster, inventory_of
from tests.cli.kubectl.conftest import Mig

MIG = "nvidia.com/mig-1g.10gb"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Cluster:
    """A node where all is well, one in a run, one that failed, and one that nobody has asked for anything."""
    cluster.add_node("a-well", labels={"pool": "one"})
    cluster.add_pod("inference-1", "a-well", {MIG: 2})
    cluster.add_pod("inference-2", "a-well", {MIG: 1})
    cluster.add_pod("ended", "a-well", {MIG: 1}, phase="Succeeded")
    cluster.add_node("b-running", labels={"pool": "one"})
    cluster.journal("b-running", inventory_of("2xA100-SXM4-80GB"))
    cluster.change_node("b-running", NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
    cluster.say("b-running", running)
    cluster.add_pod("training-1", "b-running", {MIG: 1}, namespace="ml")
    cluster.add_node("c-failed", "1xH100-80GB-HBM3,1xT4", layout="all-balanced", cordoned=True)
    cluster.say("c-failed", failed)
    cluster.add_node("d-new", layout=None)
    return cluster


def running(said: Status) -> Status:
    return replace(
        said,
        layout="all-balanced",
        state=State.PENDING,
        phase=Phase.DRAINING,
        finishedAt=None,
        gpus=(0, 1),
        leaving=("ml/training-1", "ml/training-2", "ml/training-3"),
    )


def failed(said: Status) -> Status:
    return replace(
        said,
        state=State.FAILED,
        phase=Phase.DRAINING,
        reason=Reason.EVICTION_BLOCKED,
        message="Evictions were refused for 300 s:\n pod ml/a: PodDisruptionBudget a needs 1 healthy pod",
        nextRetryAt="2026-03-01T12:10:00Z",
        attempt=2,
    )


def test_a_row_says_how_a_node_stands(mig: Mig, fleet: Cluster) -> None:
    ended = mig("status")
    assert (ended.code, ended.err) == (1, ""), "one has not what it was asked for"
    head, *rows = ended.out.splitlines()
    assert head.split() == ["NODE", "GPUS", "LAYOUT", "STATE", "PHASE", "SINCE", "USED", "CORDON", "MESSAGE"]
    cells = [[cell.strip() for cell in row.split("   ") if cell.strip()] for row in rows]
    since = age(datetime(2026, 3, 1, 12, 0, 40, tzinfo=UTC))
    assert cells[0] == [
        "a-well", "2 x A100-SXM4-80GB", "all-1g.10gb", "success", "-", since, "mig-1g.10gb 3/14", "no",
    ]  # fmt: skip
    assert cells[1][2:5] == ["all-balanced", "pending", "Draining (1 of 3 pods left, 0 of 2 GPUs done)"]
    assert cells[1][7] == "run"
    assert cells[2][1:5] == ["1 x H100 80GB HBM3, 1 x Tesla T4", "all-balanced", "failed", "Draining"]
    assert cells[2][7:] == [
        "yes",
        "EvictionBlocked: Evictions were refused for 300 s: pod ml/a: PodDisruptionBudget a needs 1 healthy pod"
        " Next attempt at 2026-03-01T12:10:00Z.",
    ]
    assert cells[3][1:5] == ["-", "-", "-", "-"]
    assert cells[3][-1] == "no label nvidia.com/mig.config"


def test_scripts_get_documents_and_names(mig: Mig, fleet: Cluster) -> None:
    documents = mig("status", "-l", "pool=one", "-o", "json").json["nodes"]
    well, running = documents
    assert (well["name"], well["state"], well["asAsked"]) == ("a-well", "success", True)
    assert well["resources"] == {MIG: {"allocatable": 14, "used": 3}}
    assert well["progress"] == {"podsLeft": None, "gpusDone": None}
    assert (running["asAsked"], running["phase"], running["changes"]) == (False, "Draining", [0, 1])
    assert running["progress"] == {"podsLeft": {"left": 1, "of": 3}, "gpusDone": {"done": 0, "of": 2}}
    assert (running["cordoned"], running["cordonOfRun"]) == (True, True)
    assert yaml.safe_load(mig("status", "-l", "pool=one", "-o", "yaml").out) == {"nodes": documents}
    assert mig("status", "a-well", "d-new", "-o", "name").out == "node/a-well\nnode/d-new\n"
    assert mig("status", "node/a-well", "-o", "name").out == "node/a-well\n", "names as -o name prints them"


def test_wide_has_more_columns(mig: Mig, fleet: Cluster) -> None:
    head, row = mig("status", "c-failed", "-o", "wide").out.splitlines()
    assert head.split()[-5:] == ["CHANGES", "ATTEMPT", "NEXT", "HASH", "MESSAGE"]
    assert "2026-03-01T12:10:00Z" in row


def test_a_narrow_terminal_has_below_a_row_what_has_no_room_in_it(
    mig: Mig, fleet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLUMNS", "60")):
        monkeypatch.setenv(name, value)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", mig("status").out).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["NODE", "LAYOUT", "STATE", "SINCE", "PHASE"]
    assert [line.split()[0] for line in lines if line[0] != " "][1:] == [
        "a-well",
        "b-running",
        "c-failed",
        "d-new",
    ]
    below = [line for line in lines if line[0] == " "]
    assert below[0] == "    used: mig-1g.10gb 3/14"
    assert below[1] == "    1 of 3 pods left, 0 of 2 GPUs done;"
    assert below[2].endswith("; cordoned by the run")
    assert "    EvictionBlocked: Evictions were refused for 300 s: po..." in below


def test_gpus_are_done_once_they_have_been_changed(mig: Mig, fleet: Cluster) -> None:
    fleet.say("b-running", lambda said: replace(said, phase=Phase.RESUMING_OPERANDS, leaving=()))
    assert "ResumingOperands (2 of 2 GPUs done)" in mig("status", "b-running").out
    fleet.say("b-running", running)


@pytest.mark.parametrize(
    ("arguments", "code"), [(["a-well"], 0), (["a-well", "d-new"], 0), (["b-running"], 1), (["c-failed"], 1)]
)
def test_the_exit_code_says_whether_all_have_what_they_were_asked_for(
    mig: Mig, fleet: Cluster, arguments: list[str], code: int
) -> None:
    assert mig("status", *arguments).code == code
    assert mig("status", *arguments, "-o", "name").code == code


def test_a_label_that_was_not_taken_up_and_one_that_differs_are_told(mig: Mig, cluster: Cluster) -> None:
    cluster.add_node("e-unheard", layout=None, labels={CONFIG_LABEL: "all-1g.10gb"})
    cluster.add_node("f-other")
    cluster.change_node("f-other", NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
    ended = mig("status", "e-unheard", "f-other")
    assert ended.code == 1
    assert "mig-manager has said nothing about all-1g.10gb yet" in ended.out
    assert "all-balanced (says all-1g.10gb)" in ended.out


def test_without_a_permission_to_read_pods_their_use_is_not_known(mig: Mig, fleet: Cluster) -> None:
    fleet.server.faults.add(Fault(status=403, path="/pods"))
    assert "mig-1g.10gb ?/14" in mig("status", "a-well").out
    fleet.server.faults.clear()


def test_what_cannot_be_shown_is_named(mig: Mig, fleet: Cluster) -> None:
    for name in ("node/a-well", "nodes/a-well", "no/a-well"):
        assert mig("status", name, "-o", "name").out == "node/a-well\n"
    ended = mig("status", "a-wel")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no Node 'a-wel'; did you mean a-well?" in ended.err
    assert mig("status", "a-well", "-l", "pool=one").code == 2
    unreadable = mig("status", "-l", "pool=one,,")
    assert (unreadable.code, "the selector (-l) 'pool=one,,' cannot be read" in unreadable.err) == (2, True)
    nothing = mig("status", "-l", "pool=none")
    assert (nothing.code, nothing.out, nothing.err) == (1, "", "no Node has labels pool=none\n"), (
        "nobody is as asked for"
    )
    assert mig("status", "-l", "pool=none", "-o", "json").json == {"nodes": []}


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(minutes=3, seconds=12), "3m12s"),
        (timedelta(minutes=42, seconds=12), "42m"),
        (timedelta(hours=5, minutes=6), "5h6m"),
        (timedelta(hours=30), "30h"),
        (timedelta(days=3, hours=4), "3d4h"),
        (timedelta(days=30), "30d"),
    ],
)
def test_ages_are_those_of_kubectl(ago: timedelta, words: str) -> None:
    now = datetime.now(UTC)
    assert age(now - ago, now) == words
