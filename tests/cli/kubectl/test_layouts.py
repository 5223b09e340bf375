"""What nodes can be asked for, and what each layout gives."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.status import GPUS_ANNOTATION, LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.resources import NODES
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig

OWN = """version: v1
mig-configs:
  mine:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 3, "3g.40gb": 1}
"""
HERE = LayoutsFrom("here/layouts", "mine.yaml")


def place(found: LayoutsFrom) -> NodeChange:
    return NodeChange(annotations={LAYOUTS_FROM_ANNOTATION: found.to_json()})


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Cluster:
    """Two nodes with a ConfigMap of their own, and one that was never asked for anything."""
    cluster.add_config_map("here", "layouts", {"mine.yaml": OWN})
    for name in ("gpu-1", "gpu-2"):
        cluster.add_node(name, layout="mine", own=OWN)
        cluster.change_node(name, place(HERE))
    cluster.add_node("new-1", layout=None)
    return cluster


def rows(text: str) -> dict[str, list[str]]:
    """By layout: what it gives, and from where."""
    cells = [[cell.strip() for cell in line.removeprefix("*").split("   ")] for line in text.splitlines()]
    found = [[cell for cell in row if cell] for row in cells]
    return {row[0]: row[1:] for row in found if len(row) > 1}


def test_each_layout_comes_with_the_resources_that_result(mig: Mig, fleet: Cluster) -> None:
    ended = mig("layouts", "gpu-1")
    assert (ended.code, ended.err) == (0, "")
    found = rows(ended.out)
    assert found["mine"] == ["1 x gpu, 3 x mig-1g.10gb, 1 x mig-3g.40gb", "ConfigMap"]
    assert found["all-1g.10gb"] == ["14 x mig-1g.10gb", "hardware"]
    assert found["all-disabled"] == ["2 x gpu", "hardware"]
    assert [line for line in ended.out.splitlines() if line.startswith("*")] == [
        next(line for line in ended.out.splitlines() if " mine " in line)
    ]
    assert ended.out.splitlines()[-1] == "layouts: ConfigMap here/layouts"


def test_on_a_narrow_terminal_what_a_layout_gives_takes_several_lines(
    mig: Mig, fleet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("FORCE_COLOR", "1"),
        ("TERM", "xterm-256color"),
        ("COLUMNS", "60"),
        ("NO_COLOR", "1"),
    ):
        monkeypatch.setenv(name, value)
    lines = mig("layouts", "gpu-1").out.splitlines()
    assert max(map(len, lines)) <= 60
    at = next(number for number, line in enumerate(lines) if "all-balanced" in line)
    assert [line.split("   ")[-1].strip() for line in lines[at + 1 : at + 3]] == [
        "2 x mig-2g.20gb,",
        "2 x mig-3g.40gb",
    ]


def test_nodes_that_can_take_the_same_share_a_table(mig: Mig, fleet: Cluster) -> None:
    out = mig("layouts").out
    assert "gpu-1, gpu-2\n" in out
    assert "new-1\nmig-manager has listed no layouts there" in out


def test_scripts_get_documents_and_names(mig: Mig, fleet: Cluster) -> None:
    (node,) = mig("layouts", "gpu-1", "-o", "json").json["nodes"]
    mine = next(each for each in node["layouts"] if each["name"] == "mine")
    assert (node["layout"], mine["from"], mine["remark"]) == ("mine", "ConfigMap", None)
    assert mine["resources"]["nvidia.com/mig-3g.40gb"] == 1
    assert mine["gpus"] == [{"index": 0, "mig": True, "devices": {"3g.40gb": 1, "1g.10gb": 3}}]
    assert "all-1g.10gb" in mig("layouts", "-o", "name").out.splitlines()
    wide = mig("layouts", "gpu-1", "-o", "wide").out
    assert "GPU 0: 1 x 3g.40gb + 3 x 1g.10gb; GPU 1 untouched" in wide


def test_a_node_that_lists_nothing_ends_with_1(mig: Mig, fleet: Cluster) -> None:
    assert mig("layouts", "new-1").code == 1
    assert mig("layouts").code == 0
    nothing = mig("layouts", "-l", "pool=none")
    assert (nothing.code, nothing.err) == (1, "no Node has labels pool=none\n")


def test_what_the_strategy_does_not_allow_is_told(mig: Mig, cluster: Cluster) -> None:
    cluster.add_node("single-1", strategy="single")
    out = mig("layouts", "single-1").out
    assert rows(out)["all-1g.10gb"][0] == "14 x gpu"
    assert rows(out)["all-balanced"][0] == "?"
    assert "all-balanced: StrategyMismatch" in out


@pytest.mark.parametrize(
    ("change", "gives", "remark"),
    [
        (place(LayoutsFrom(file="/etc/layouts.yaml")), "?", "/etc/layouts.yaml on the node"),
        (place(LayoutsFrom("here/gone", "mine.yaml")), "?", "there is no ConfigMap here/gone"),
        (place(LayoutsFrom("here/layouts", "other.yaml")), "?", "no key 'other.yaml'; its keys: 'mine.yaml'"),
        (NodeChange(annotations={LAYOUTS_FROM_ANNOTATION: "nonsense"}), "?", "only those of the hardware"),
        (NodeChange(annotations={GPUS_ANNOTATION: "nonsense"}), "?", "what they give is not known"),
    ],
)
def test_what_cannot_be_read_from_here_is_told_in_plain_words(
    mig: Mig, cluster: Cluster, change: NodeChange, gives: str, remark: str
) -> None:
    cluster.add_node("odd-1", layout="mine", own=OWN)
    cluster.change_node("odd-1", place(HERE))
    cluster.change_node("odd-1", change)
    ended = mig("layouts", "odd-1")
    cluster.server.store.delete(NODES, None, "odd-1")
    assert ended.code == 0
    assert rows(ended.out)["mine"][0] == gives
    assert remark in ended.out


def test_a_config_map_that_must_not_be_read_leaves_the_layouts_of_the_hardware(
    mig: Mig, fleet: Cluster
) -> None:
    fleet.server.faults.add(Fault(path="/configmaps/layouts", status=403))
    found = rows(mig("layouts", "gpu-1").out)
    assert found["all-1g.10gb"] == ["14 x mig-1g.10gb", "the ConfigMap or hardware"]
    assert found["mine"][0] == "?"


def test_an_empty_list_is_told_with_where_the_layouts_are_from(mig: Mig, cluster: Cluster) -> None:
    cluster.add_node("none-1")
    cluster.change_node("none-1", place(HERE))
    cluster.change_node("none-1", NodeChange(annotations={LAYOUTS_ANNOTATION: "[]"}))
    ended = mig("layouts", "none-1")
    assert ended.code == 1
    assert "no layout is possible there now; layouts: ConfigMap here/layouts" in ended.out


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, LayoutsFrom("here/mig-manager-layouts", "config.yaml")),
        ({"config_map_namespace": "there"}, LayoutsFrom("there/mig-manager-layouts", "config.yaml")),
        ({"config_file": "/a", "default_config_file": "/b"}, LayoutsFrom(file="/a", default_file="/b")),
    ],
)
def test_the_daemon_says_where_its_layouts_are_from(settings: dict[str, Any], found: LayoutsFrom) -> None:
    said = LayoutsFrom.of(Settings(node_name="gpu-1", pod_namespace="here", **settings))
    assert said == found
    assert LayoutsFrom.from_json(said.to_json()) == found


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", "{}", '{"configMap": "no-namespace"}', "7"])
def test_a_place_that_makes_no_sense_is_none(text: str | None) -> None:
    assert LayoutsFrom.from_json(text) is None
