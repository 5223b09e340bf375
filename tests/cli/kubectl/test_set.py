"""Asking nodes for a layout: what is checked, what is written, and what counts as its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.status import (
    AGAIN_ANNOTATION,
    CONFIG_LABEL,
    LAYOUTS_ANNOTATION,
    LAYOUTS_FROM_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Phase,
    Reboot,
    State,
    Status,
)
from mig_manager.errors import Reason
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import CONFIGMAPS
from tests.cli.kubectl.cluster import FINISHED, Cluster, once_watched
from tests.cli.kubectl.conftest import Mig

LATER, LATEST = "2026-03-01T13:00:00.000Z", "2026-03-01T13:00:41.500Z"
Step = Callable[[Status], Status]


@pytest.fixture(autouse=True)
def nodes(cluster: Cluster) -> Iterator[None]:
    """gpu-1 and gpu-2 have all-1g.10gb; new-1 has never been asked for anything."""
    cluster.add_node("gpu-1", labels={"pool": "one"})
    cluster.add_node("gpu-2", labels={"pool": "one"})
    cluster.add_node("new-1", layout=None)
    yield
    cluster.clear()


def meta(cluster: Cluster, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of a Node."""
    found = cluster.node(name)["metadata"]
    return found["labels"], found["annotations"]


def patches(cluster: Cluster) -> list[Any]:
    return [each.body for each in cluster.server.requests.all() if each.verb == "patch"]


class Daemon:
    """Says on Nodes what a daemon would, one word after each change of the Node that asks for it."""

    def __init__(self, cluster: Cluster, *steps: Step) -> None:
        self._cluster = cluster
        self._steps = steps
        self._leave: Callable[[], None] = lambda: None
        self._threads: list[threading.Thread] = []
        self._asked: set[tuple[str, str, str]] = set()

    def __enter__(self) -> Daemon:
        self._leave = self._cluster.server.store.subscribe(self._see)
        return self

    def __exit__(self, *exc: object) -> None:
        self._leave()
        for thread in self._threads:
            thread.join()

    def _see(self, change: Change) -> None:
        if change.resource.plural != "nodes" or change.type != "MODIFIED":
            return
        found = change.object["metadata"]
        token = found["annotations"].get(AGAIN_ANNOTATION, "")
        asked = (found["name"], found["labels"].get(CONFIG_LABEL, ""), token)
        if asked not in self._asked:
            self._asked.add(asked)
            thread = threading.Thread(target=self._run, args=asked[:2])
            self._threads.append(thread)
            thread.start()

    def _run(self, name: str, layout: str) -> None:
        for step in self._steps:
            self._cluster.say(name, lambda said: step(replace(said, layout=layout)))  # noqa: B023


def begins(said: Status) -> Status:
    return replace(
        said, state=State.PENDING, phase=Phase.APPLYING, reason=None, message=None, startedAt=LATER,
        finishedAt=None, gpus=(0, 1),
    )  # fmt: skip


def succeeds(said: Status) -> Status:
    return replace(said, state=State.SUCCESS, phase=Phase.DONE, startedAt=LATER, finishedAt=LATEST)


def fails(said: Status) -> Status:
    return replace(
        succeeds(said),
        state=State.FAILED,
        phase=Phase.DRAINING,
        reason=Reason.EVICTION_BLOCKED,
        message="why",
    )


# Before anything is written


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["gpu-1", "all-1g.10bg"],
            ["gpu-1: layout 'all-1g.10bg' is not possible", "did you mean all-1g.10gb"],
        ),
        (["-l", "pool=one", "nonsense"], ["gpu-1, gpu-2: layout 'nonsense'", "there are: all-1g.10gb"]),
        (["gpu-3", "all-1g.10gb"], ["there is no Node 'gpu-3'; did you mean gpu-1"]),
        (["all-1g.10gb"], ["'all-1g.10gb' is taken for the layout"]),
        (["gpu-1", "all-1g.10gb", "-l", "pool=one"], ["not both"]),
        (["-l", "pool=none", "all-1g.10gb"], ["no Node has labels pool=none"]),
        (["new-1", "1g.10gb+me"], ["no name that a label can hold"]),
        (["gpu-1", "all-balanced", "--timeout", "5m"], ["--timeout", "goes with --wait"]),
        (
            ["gpu-1", "all-balanced", "--wait", "--timeout", "soon"],
            ["--timeout", "'soon' is no length of time"],
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    mig: Mig, cluster: Cluster, arguments: list[str], parts: Sequence[str]
) -> None:
    cluster.server.requests.clear()
    ended = mig("set", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert [part for part in parts if part not in ended.err] == [], ended.err
    assert patches(cluster) == []


def test_a_node_without_any_possible_layout_is_told(mig: Mig, cluster: Cluster) -> None:
    cluster.change_node("gpu-2", NodeChange(annotations={"mig-manager/layouts": "[]"}))
    ended = mig("set", "gpu-1", "gpu-2", "all-balanced")
    assert ended.code == 2
    assert "gpu-2: it can take no layout now" in ended.err
    assert meta(cluster, "gpu-1")[0][CONFIG_LABEL] == "all-1g.10gb", "nor is the other one asked"


def test_a_dry_run_says_what_would_be_done(mig: Mig, cluster: Cluster) -> None:
    cluster.server.requests.clear()
    cluster.say("gpu-2", lambda said: fails(replace(said, layout="all-balanced")))
    cluster.change_node("gpu-2", NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
    ended = mig("set", "gpu-1", "gpu-2", "new-1", "all-balanced", "--dry-run")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "node/gpu-1 would be asked for all-balanced (before: all-1g.10gb)",
        "node/gpu-2 would be asked for all-balanced again: it failed with EvictionBlocked",
        "node/new-1 would be asked for all-balanced (before: no layout)",
    ]
    assert "new-1: mig-manager has said nothing there yet" in ended.err
    assert patches(cluster) == []


# With a ConfigMap


OWN = """version: v1
mig-configs:
  mine:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": COUNT}
  too-much:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 8}
"""


@pytest.fixture
def own_node(cluster: Cluster) -> Iterator[str]:
    """A node that has the layout `mine` of its ConfigMap."""
    text = OWN.replace("COUNT", "3")
    place = LayoutsFrom("here/layouts", "mine.yaml").to_json()
    cluster.add_node("own-1", layout="mine", own=text, annotations={LAYOUTS_FROM_ANNOTATION: place})
    names = json.dumps([name for name in json.loads(listed(cluster)) if name != "too-much"])
    cluster.change_node("own-1", NodeChange(annotations={LAYOUTS_ANNOTATION: names}))
    cluster.add_config_map("here", "layouts", {"mine.yaml": text})
    yield "own-1"
    cluster.server.store.delete(CONFIGMAPS, "here", "layouts")


def listed(cluster: Cluster) -> str:
    return meta(cluster, "own-1")[1][LAYOUTS_ANNOTATION]


def write(cluster: Cluster, text: str) -> None:
    """Edit the ConfigMap; no daemon has seen it yet."""
    cluster.server.store.update(
        CONFIGMAPS, "here", "layouts", lambda found: found | {"data": {"mine.yaml": text}}
    )


def test_a_layout_that_its_gpus_cannot_hold_is_refused_with_the_reason(
    mig: Mig, cluster: Cluster, own_node: str
) -> None:
    ended = mig("set", own_node, "too-much")
    assert ended.code == 2
    assert "own-1: here/layouts/mine.yaml:8: GPU 0 (NVIDIA A100-SXM4-80GB) can't hold 8x1g.10gb" in ended.err


def test_a_layout_that_was_written_a_moment_ago_can_be_asked_for(
    mig: Mig, cluster: Cluster, own_node: str
) -> None:
    write(cluster, OWN.replace("mine", "another").replace("COUNT", "2"))
    assert mig("set", own_node, "another", "--dry-run").code == 0


def test_an_edit_that_was_not_applied_yet_is_waited_for(mig: Mig, cluster: Cluster, own_node: str) -> None:
    assert "has mine already" in mig("set", own_node, "mine", "--wait").out
    write(cluster, OWN.replace("COUNT", "2"))
    with once_watched(cluster, lambda: cluster.say(own_node, succeeds)):
        ended = mig("set", own_node, "mine", "--wait", "--timeout", "120s")
    assert ended.code == 0
    assert "own-1: has mine after 41s" in ended.out


# What is written


def test_one_patch_a_node_sets_the_label(mig: Mig, cluster: Cluster) -> None:
    cluster.server.requests.clear()
    ended = mig("set", "-l", "pool=one", "all-balanced")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"node/gpu-{number} asked for all-balanced (before: all-1g.10gb)" for number in (1, 2)
    ]
    assert [each["metadata"]["labels"] for each in patches(cluster)] == [{CONFIG_LABEL: "all-balanced"}] * 2


def test_a_node_that_has_it_is_left_alone(mig: Mig, cluster: Cluster) -> None:
    cluster.server.requests.clear()
    ended = mig("set", "gpu-1", "all-1g.10gb", "--wait")
    assert (ended.code, ended.err) == (0, "")
    assert "node/gpu-1 has all-1g.10gb already" in ended.out
    assert patches(cluster) == []


@pytest.mark.parametrize(
    "said",
    [fails, lambda said: replace(said, message="The layout was edited.")],
    ids=["failed", "an edit that is held back"],
)
def test_a_layout_that_a_node_is_at_odds_with_is_asked_for_anew(
    mig: Mig, cluster: Cluster, said: Step
) -> None:
    cluster.say("gpu-1", said)
    assert mig("set", "gpu-1", "all-1g.10gb").code == 0
    labels, annotations = meta(cluster, "gpu-1")
    assert labels[CONFIG_LABEL] == "all-1g.10gb"
    assert STATE_LABEL not in labels
    assert STATUS_ANNOTATION not in annotations
    first = annotations[AGAIN_ANNOTATION]
    cluster.say("gpu-1", lambda said: fails(replace(said, layout="all-1g.10gb")))
    assert mig("set", "gpu-1", "all-1g.10gb").code == 0
    assert meta(cluster, "gpu-1")[1][AGAIN_ANNOTATION] != first


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (lambda said: replace(fails(said), reason=Reason.ROLLBACK_FAILED), "gpu-1: RollbackFailed is never"),
        (
            lambda said: replace(fails(said), reboot=Reboot("all-1g.10gb", None, "boot", FINISHED)),
            "gpu-1: it has been rebooted for this layout",
        ),
    ],
)
def test_what_may_do_harm_is_tried_again_only_on_demand(
    mig: Mig, cluster: Cluster, said: Step, part: str
) -> None:
    cluster.say("gpu-1", said)
    cluster.server.requests.clear()
    ended = mig("set", "gpu-1", "gpu-2", "all-1g.10gb")
    assert (ended.code, ended.out, patches(cluster)) == (2, "", [])
    assert part in ended.err
    assert "--again" in ended.err
    assert mig("set", "gpu-1", "gpu-2", "all-1g.10gb", "--again").code == 0
    assert AGAIN_ANNOTATION in meta(cluster, "gpu-1")[1]


def test_a_refusal_on_one_node_keeps_none_of_the_others(mig: Mig, cluster: Cluster) -> None:
    cluster.server.faults.add(Fault(method="PATCH", path="/nodes/gpu-1$", status=403))
    ended = mig("set", "gpu-1", "gpu-2", "all-balanced")
    assert ended.code == 3
    assert "/nodes/gpu-1" in ended.err
    assert meta(cluster, "gpu-1")[0][CONFIG_LABEL] == "all-1g.10gb"
    assert meta(cluster, "gpu-2")[0][CONFIG_LABEL] == "all-balanced"


# What is waited for


def test_waiting_ends_when_all_have_it(mig: Mig, cluster: Cluster) -> None:
    with Daemon(cluster, begins, succeeds):
        ended = mig("set", "gpu-1", "gpu-2", "all-balanced", "--wait", "--timeout", "120s")
    assert (ended.code, ended.err) == (0, "")
    for name in ("gpu-1", "gpu-2"):
        assert f"{name}: has all-balanced after 41s" in ended.out


def test_the_reasons_of_nodes_that_failed_end_it_with_1(mig: Mig, cluster: Cluster) -> None:
    with Daemon(cluster, begins, fails):
        ended = mig("set", "gpu-1", "all-balanced", "--wait", "--timeout", "120s")
    assert ended.code == 1
    assert "error: gpu-1: failed in phase Draining: EvictionBlocked: why" in ended.err


@pytest.mark.parametrize(
    "before",
    [
        lambda said: replace(said, layout="all-balanced"),
        lambda said: fails(replace(said, layout="all-balanced", finishedAt=FINISHED)),
    ],
    ids=["success", "failed"],
)
def test_an_old_end_with_the_same_layout_is_not_the_new_one(mig: Mig, cluster: Cluster, before: Step) -> None:
    """The label had been changed to another layout, and nobody had taken that up."""
    cluster.say("gpu-1", before)
    with Daemon(cluster, lambda said: replace(begins(said), startedAt=LATEST), fails):
        ended = mig("set", "gpu-1", "all-balanced", "--wait", "--timeout", "120s")
    assert (ended.code, "EvictionBlocked: why" in ended.err) == (1, True)


def test_a_daemon_that_repeats_the_old_end_is_not_believed(mig: Mig, cluster: Cluster) -> None:
    """One that knows nothing of asking again writes its former word again, where it was taken away."""
    cluster.say("gpu-1", fails)
    former = Status.from_json(meta(cluster, "gpu-1")[1][STATUS_ANNOTATION])
    assert former is not None
    with Daemon(cluster, lambda said: former):
        ended = mig("set", "gpu-1", "all-1g.10gb", "--wait", "--timeout", "1s")
    assert ended.code == 1
    assert "error: not ended within 1 s; the change goes on:" in ended.err


def test_a_time_out_says_where_each_node_stands(mig: Mig, cluster: Cluster) -> None:
    with Daemon(cluster, begins):
        ended = mig("set", "gpu-1", "all-balanced", "--wait", "--timeout", "1s")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "error: not ended within 1 s; the change goes on:",
        "gpu-1: pending, Applying, 0 of 2 GPUs done",
    ]


def test_somebody_who_asks_for_something_else_ends_it(mig: Mig, cluster: Cluster) -> None:
    def meanwhile(said: Status) -> Status:
        cluster.change_node("gpu-1", NodeChange(labels={CONFIG_LABEL: "all-disabled"}))
        return said

    with Daemon(cluster, begins, meanwhile):
        ended = mig("set", "gpu-1", "all-balanced", "--wait", "--timeout", "120s")
    assert (ended.code, "gpu-1: it was asked for all-disabled meanwhile" in ended.err) == (1, True)


def test_a_run_that_is_under_way_is_joined(mig: Mig, cluster: Cluster) -> None:
    cluster.change_node("gpu-1", NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
    cluster.say("gpu-1", lambda said: begins(replace(said, layout="all-balanced")))
    cluster.server.requests.clear()
    with once_watched(cluster, lambda: cluster.say("gpu-1", succeeds)):
        ended = mig("set", "gpu-1", "all-balanced", "--wait", "--timeout", "120s")
    assert (ended.code, patches(cluster)) == (0, [])
    assert "already, and is working on it" in ended.out


def test_ctrl_c_ends_the_waiting_alone(mig: Mig, cluster: Cluster, press_ctrl_c: Callable[[], None]) -> None:
    with once_watched(cluster, press_ctrl_c):
        ended = mig("set", "gpu-1", "all-balanced", "--wait")
    assert ended.code == 130
    assert "the change goes on. To follow it: kubectl mig status -w gpu-1" in ended.err
    assert meta(cluster, "gpu-1")[0][CONFIG_LABEL] == "all-balanced"
