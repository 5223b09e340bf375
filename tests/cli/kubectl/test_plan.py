"""`kubectl mig plan`: what a layout would change, who would have to go, and why it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.status import GPUS_ANNOTATION, LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.resources import CONFIGMAPS, POD_DISRUPTION_BUDGETS
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig

OWN = """\
version: v1
mig-configs:
  training:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.40gb: 2}
  only-h100:
    - device-filter: "0x233010DE"
      devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
"""
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> None:
    cluster.clear()
    for kind in (CONFIGMAPS, POD_DISRUPTION_BUDGETS):
        for each in cluster.server.store.list(kind)[0]:
            meta = each["metadata"]
            cluster.server.store.remove(kind, meta["namespace"], meta["name"], meta["uid"])


def test_one_node_is_told_in_full(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB", layout="all-balanced")
    cluster.add_pod("bare", "gpu-1", {SMALL: 2}, owner=None)
    cluster.add_pod("monitor", "gpu-1", {"nvidia.com/mig-2g.20gb": 1}, owner="DaemonSet")
    cluster.add_pod("kept", "gpu-1", {LARGE: 1}, labels={"app": "kept"})
    cluster.add_budget("keep", {"app": "kept"}, 0)
    cluster.add_pod("other", "gpu-1")
    told = mig("plan", "gpu-1", "all-3g.40gb")
    assert (told.code, told.err) == (0, "")
    for line in (
        "  keep     1 x 3g.40gb at 4-7",
        "  destroy  1 x 2g.20gb at 0-1; 2 x 1g.10gb at 2, 3",
        "  create   1 x 3g.40gb at 0-3",
        f"offered to pods: {SMALL} 2 -> 0, nvidia.com/mig-2g.20gb 1 -> 0, {LARGE} 1 -> 2",
        f"  default/bare     it holds 2; all 2 {SMALL} go",
        "                   held up: it has no controller that would bring it back",
        "  default/monitor  the only nvidia.com/mig-2g.20gb goes",
        "                   held up: its DaemonSet would bring it back at once",
    ):
        assert f"{line}\n" in told.out
    assert "kept" not in told.out.partition("Pods that have to go")[2]
    assert told.out.count("What is held up makes the change wait, and fail in the end") == 1
    everything = mig("plan", "gpu-1", "all-7g.80gb", "-o", "json").json["nodes"][0]
    assert {one["name"]: one["heldUpBy"] for one in everything["pods"]} == {
        "bare": "it has no controller that would bring it back",
        "kept": "PodDisruptionBudget keep lets no pod go now",
        "monitor": "its DaemonSet would bring it back at once",
    }
    assert everything["feasible"]
    assert everything["resources"]["after"] == {"nvidia.com/mig-7g.80gb": 1}


def test_where_only_some_of_a_type_go_pods_may_have_to(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB")
    cluster.add_pod("one", "gpu-1", {SMALL: 1})
    cluster.add_pod("four", "gpu-1", {SMALL: 4}, spec={"volumes": [{"name": "data", "emptyDir": {}}]})
    told = mig("plan", "gpu-1", "all-balanced")
    assert (
        f"  default/four  it holds 4; 5 of 7 {SMALL} go; its emptyDir data ends with it\n"
        in told.out.partition("Pods that have to go:\n")[2].partition("Pods that may")[0]
    )
    assert f"  default/one  5 of 7 {SMALL} go\n" in told.out.partition("Pods that may have to go")[2]
    assert "At least 3 of the devices that go are in use.\n" in told.out
    assert "held up" not in told.out
    cluster.add_pod("bare", "gpu-1", {SMALL: 1}, owner=None)
    assert (
        "Should one that is held up have to go, the change waits" in mig("plan", "gpu-1", "all-balanced").out
    )


def test_nothing_to_do_is_said_and_nobody_goes(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", layout="all-balanced")
    cluster.add_pod("one", "gpu-1", {SMALL: 1})
    told = mig("plan", "gpu-1", "all-balanced")
    assert "all-balanced: nothing to do" in told.out
    assert "Pods" not in told.out
    assert mig("plan", "gpu-1", "all-balanced", "-o", "json").json["nodes"][0]["pods"] == []


def test_several_nodes_get_a_table_and_those_that_are_alike_one_telling(cluster: Cluster, mig: Mig) -> None:
    for name, gpus in (("a", "1xA100-SXM4-80GB"), ("b", "1xA100-SXM4-80GB"), ("c", "1xA30")):
        cluster.add_node(name, gpus, layout="all-disabled", labels={"pool": "x"})
    told = mig("plan", "-l", "pool=x", "all-3g.40gb")
    assert told.code == 2
    head, first, second, third = told.out.splitlines()[:4]
    assert head.split()[:2] == ["NODE", "FITS"]
    assert first.split() == ["a", "yes", "1", "-", "-", "2", "1", "-", "-"]
    assert second.split()[:2] == ["b", "yes"]
    assert third.startswith("c     no    UnknownLayout: ")
    assert "c: layout all-3g.40gb is not in" in told.err
    assert "b: the same as a" in told.out
    assert "the same as" not in mig("plan", "a", "b", "all-3g.40gb", "-o", "wide").out
    names = mig("plan", "-l", "pool=x", "all-3g.40gb", "-o", "name")
    assert (names.code, names.out, names.err) == (2, "node/a\nnode/b\n", told.err)
    assert mig("plan", "a", "b", "all-3g.40gb").code == 0
    document = mig("plan", "a", "c", "all-3g.40gb", "-o", "json").json
    assert [one["feasible"] for one in document["nodes"]] == [True, False]


def test_layouts_come_from_the_config_map_or_a_file_and_from_the_hardware_besides(
    cluster: Cluster, mig: Mig, tmp_path: Path
) -> None:
    cluster.add_node("gpu-1", layout="all-disabled")
    assert mig("plan", "gpu-1", "training").code == 2
    cluster.add_config_map("mig-manager", "mig-manager-layouts", {"config.yaml": OWN})
    told = mig("plan", "gpu-1", "training")
    assert "create   2 x 3g.40gb at 0-3, 4-7" in told.out
    assert "layouts: ConfigMap mig-manager/mig-manager-layouts\n" in told.out
    assert mig("plan", "gpu-1", "all-balanced").code == 0
    cluster.add_config_map("other", "mig-manager-layouts", {"config.yaml": OWN.replace("training", "yours")})
    several = mig("plan", "gpu-1", "training")
    assert (several.code, "other/mig-manager-layouts; name one" in several.err) == (2, True)
    assert mig("plan", "gpu-1", "yours", "--config-map", "other/mig-manager-layouts").code == 0
    file = tmp_path / "layouts.yaml"
    file.write_text(OWN.replace("training", "mine"))
    assert mig("plan", "gpu-1", "mine", "-f", file).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpu-1", "trainin"), "UnknownLayout: layout trainin is not in"),
        (("gpu-1", "trainin"), "did you mean training?"),
        (("gpu-1", "only-h100"), "InvalidLayout: "),
        (("gpu-1", "all-3g.90gb"), "all-3g.40gb"),
        (("gpu-11", "training"), "there is no Node 'gpu-11'; did you mean gpu-1?"),
        (("training",), "name at least one Node"),
        (("-l", "pool=none", "training"), "no Node has labels pool=none"),
        (("gpu-1", "training", "--config-map", "layouts"), "write NAMESPACE/NAME"),
        (("gpu-1", "training", "--config-map", "a/b/c"), "write NAMESPACE/NAME"),
        (
            ("gpu-1", "training", "--config-map", "a/b", "-f", "c"),
            "by --config-file or by --config-map, not both",
        ),
        (
            ("gpu-1", "training", "-o", "jsn"),
            "'jsn' is not one of 'text', 'wide', 'json', 'yaml', 'name'; did you mean json?",
        ),
        (("gpu-1", "training", "--config-map", "a/b"), "there is no ConfigMap a/b"),
        (("gpu-1", "training", "-f", "/nowhere.yaml"), "/nowhere.yaml"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_is_one_error(
    cluster: Cluster, mig: Mig, arguments: tuple[str, ...], words: str
) -> None:
    cluster.add_node("gpu-1", layout="all-disabled")
    cluster.add_config_map("mig-manager", "mig-manager-layouts", {"config.yaml": OWN})
    told = mig("plan", *arguments)
    assert (told.code, told.out) == (2, "")
    assert words in told.err
    assert "Traceback" not in told.err


def test_a_layout_that_is_too_much_is_explained(cluster: Cluster, mig: Mig, tmp_path: Path) -> None:
    cluster.add_node("gpu-1", layout="all-disabled")
    file = tmp_path / "layouts.yaml"
    file.write_text(OWN.replace("3g.40gb: 2", "3g.40gb: 3"))
    told = mig("plan", "gpu-1", "training", "-f", file)
    assert told.code == 2
    assert "ImpossibleLayout" in told.err
    assert "The most of it that fits: 2x3g.40gb" in told.err
    assert mig("plan", "gpu-1", "training", "-f", file, "-o", "json").json["nodes"][0]["reason"] == (
        "ImpossibleLayout"
    )


def test_a_layout_that_does_not_suit_the_strategy_is_refused_as_by_the_daemon(
    cluster: Cluster, mig: Mig
) -> None:
    cluster.add_node("gpu-1", strategy="single")
    told = mig("plan", "gpu-1", "all-balanced")
    assert (told.code, "StrategyMismatch" in told.err) == (2, True)


def test_a_layout_that_only_the_daemon_knows_is_looked_for_elsewhere(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", annotations={LAYOUTS_ANNOTATION: '["built-in"]'})
    told = mig("plan", "gpu-1", "built-in")
    assert "The daemon on gpu-1 lists it" in told.err
    assert "The daemon on gpu-1" not in mig("plan", "gpu-1", "built-on").err


def test_the_daemon_of_each_node_says_where_its_layouts_are(cluster: Cluster, mig: Mig) -> None:
    def place(**values: str) -> dict[str, str]:
        return {LAYOUTS_FROM_ANNOTATION: json.dumps(values)}

    cluster.add_config_map("a", "layouts", {"file": OWN})
    cluster.add_node("gpu-1", layout="all-disabled", annotations=place(configMap="a/layouts", key="file"))
    told = mig("plan", "gpu-1", "training")
    assert (told.code, told.out.endswith("layouts: ConfigMap a/layouts\n")) == (0, True)
    default = place(configMap="a/layouts", key="file", defaultFile="/etc/default.yaml")
    cluster.add_node("gpu-2", layout="all-disabled", annotations=default)
    assert "/etc/default.yaml" not in mig("plan", "gpu-2", "training").out
    assert "/etc/default.yaml, not readable from here, may define all-balanced." in (
        mig("plan", "gpu-2", "all-balanced").out
    )
    cluster.add_node("gpu-3", layout="all-disabled", annotations=place(file="/etc/layouts.yaml"))
    assert "/etc/layouts.yaml on the node, which cannot be read from here" in mig("plan", "gpu-3", "mine").err


def test_where_the_daemon_can_take_no_layout_the_hardware_offers_none_either(
    cluster: Cluster, mig: Mig
) -> None:
    place = json.dumps({"configMap": "a/layouts", "key": "file"})
    nothing = {LAYOUTS_FROM_ANNOTATION: place, LAYOUTS_ANNOTATION: "[]"}
    cluster.add_config_map("a", "layouts", {"file": "version: v1\nmig-configs: [nonsense"})
    cluster.add_node("gpu-1", annotations=nothing)
    told = mig("plan", "gpu-1", "all-balanced")
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: InvalidLayout: gpu-1: it can take no layout now: "), told.err
    assert "its layout file is not usable: a/layouts/file:3: " in told.err


def test_what_is_not_known_is_said(cluster: Cluster, mig: Mig) -> None:
    inventory = cluster.add_node("gpu-1")
    cluster.journal("gpu-1", inventory)
    cluster.server.faults.add(Fault("GET", "/poddisruptionbudgets", status=403, times=None))
    told = mig("plan", "gpu-1", "all-balanced")
    assert told.code == 0
    assert "PodDisruptionBudgets cannot be read" in told.out
    assert "A run is under way on gpu-1" in told.out


def test_nodes_of_which_nothing_is_known_do_not_hide_the_others(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1")
    cluster.add_node("gpu-2")
    cluster.change_node("gpu-2", NodeChange(annotations={GPUS_ANNOTATION: None}))
    told = mig("plan", "gpu-1", "gpu-2", "all-balanced")
    assert told.code == 2
    assert "gpu-1  yes" in told.out
    assert "gpu-2: Node 'gpu-2' has no annotation" in told.err
    assert mig("plan", "gpu-1", "gpu-2", "all-balanced", "-o", "json").json["nodes"][1]["feasible"] is None
