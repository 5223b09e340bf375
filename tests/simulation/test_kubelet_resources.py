from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mig_manager.simulation.delays import Delays
from mig_manager.simulation.gpus import ResetRefusedError
from mig_manager.simulation.objects import Object
from mig_manager.simulation.operands.deviceplugin import Strategy
from mig_manager.simulation.operands.featurediscovery import OWN_LABELS
from mig_manager.simulation.podspec import is_ready
from mig_manager.simulation.resources import NODES, PODS
from mig_manager.simulation.world import SimulatedCluster
from tests.simulation.kubelet_world import (
    GPUS,
    Recording,
    clear,
    eventually,
    partition,
    set_labels,
    with_app,
)

PLUGIN = "nvidia-device-plugin-daemonset"
GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
LARGE = "nvidia.com/mig-3g.40gb"

Layout = Sequence[str] | None


def world(
    directory: Path,
    *layout: Layout,
    gpus: str = GPUS,
    delays: Delays | None = None,
    strategy: Strategy = "mixed",
) -> SimulatedCluster:
    cluster = SimulatedCluster(
        directory, gpus, delays=delays or Delays.fast(), strategy=strategy, workloads=False
    )
    partition(cluster.gpus, *layout)
    return cluster


def plugin(cluster: SimulatedCluster) -> Object | None:
    pods = with_app(cluster, PLUGIN)
    return pods[0] if pods else None


def restart_plugin(cluster: SimulatedCluster) -> None:
    """Delete its pod and wait for the next one."""
    old = plugin(cluster)
    assert old is not None
    cluster.store.delete(PODS, "gpu-operator", old["metadata"]["name"])
    cluster.wait_for(
        lambda: (
            (now := plugin(cluster)) and now["metadata"]["uid"] != old["metadata"]["uid"] and is_ready(now)
        ),
        "another plugin",
    )


def amounts(cluster: SimulatedCluster, field: str) -> dict[str, int]:
    held = cluster.node_object()["status"][field]
    return {name: int(amount) for name, amount in held.items() if name.startswith("nvidia.com/")}


@pytest.mark.parametrize(
    ("strategy", "layout", "offered"),
    [
        ("none", [None, None], {GPU: 2}),
        ("none", [["1g.10gb"] * 7, None], {GPU: 2}),
        ("single", [None, None], {GPU: 2}),
        ("single", [["1g.10gb"] * 7, ["1g.10gb"] * 2], {GPU: 9}),
        ("mixed", [None, None], {GPU: 2}),
        ("mixed", [["3g.40gb"] + ["1g.10gb"] * 4, None], {GPU: 1, SMALL: 4, LARGE: 1}),
        ("mixed", [["1g.10gb+me", "1g.10gb"], []], {SMALL: 1, f"{SMALL}.me": 1}),
        ("mixed", [[], []], {}),
    ],
)
def test_the_plugin_offers_what_the_strategy_implies(
    tmp_path: Path, strategy: Strategy, layout: Sequence[Layout], offered: dict[str, int]
) -> None:
    with world(tmp_path, *layout, strategy=strategy) as cluster:
        cluster.wait_for(lambda: (p := plugin(cluster)) and is_ready(p), "the plugin")
        cluster.wait_for(lambda: cluster.allocatable() == offered, "resources")
        held = cluster.kubelet.allocatable_devices()
        assert {name: len(ids) for name, ids in held.items()} == offered
        known = {each["uuid"] for each in cluster.gpus.snapshot()["gpus"]}
        for name, ids in held.items():
            whole = name == GPU and (strategy != "single" or not any(layout))
            assert all((each in known) is whole for each in ids)


@pytest.mark.parametrize(
    ("strategy", "layout", "message"),
    [
        ("single", [["1g.10gb"], []], "device 1 has no MIG devices configured"),
        ("single", [["1g.10gb"], ["3g.40gb"]], "more than one MIG device type present on node"),
        ("single", [["1g.10gb", "1g.10gb+me"], ["1g.10gb"]], "more than one MIG device type present on node"),
        ("single", [["1g.10gb"], None], "must be configured with the same migEnabled value"),
        ("mixed", [["1c.3g.40gb", "1g.10gb"], None], "1c.3g.40gb does not match any resource patterns"),
    ],
)
def test_the_plugin_crash_loops_where_the_gpus_do_not_suit_the_strategy(
    tmp_path: Path, strategy: Strategy, layout: Sequence[Layout], message: str
) -> None:
    def crashed() -> Object | None:
        now = plugin(cluster)
        statuses = (now or {"status": {}})["status"].get("containerStatuses")
        return statuses[0] if statuses and statuses[0]["restartCount"] >= 2 else None

    with world(tmp_path, *layout, strategy=strategy) as cluster:
        seen = Recording(cluster, PODS)
        status = cluster.wait_for(crashed, "restarts")
        assert message in status["lastState"]["terminated"]["message"]
        assert status["state"].get("waiting", {}).get("reason", "CrashLoopBackOff") == "CrashLoopBackOff"
        assert cluster.allocatable() == {}
        plugins = [
            change.object for change in seen.changes if change.object["metadata"]["labels"]["app"] == PLUGIN
        ]
        assert not any(is_ready(each) for each in plugins)


def test_the_plugin_is_ready_before_its_devices_are_known(tmp_path: Path) -> None:
    cluster = world(tmp_path, ["1g.10gb"], None)
    pods, nodes = Recording(cluster, PODS), Recording(cluster, NODES)
    with cluster:
        eventually(
            lambda: any(SMALL in each.object["status"]["allocatable"] for each in nodes.changes), "resources"
        )

        def version(change_of: Object) -> int:
            return int(change_of["metadata"]["resourceVersion"])

        ready = next(
            each.object
            for each in pods.changes
            if each.object["metadata"]["labels"]["app"] == PLUGIN and is_ready(each.object)
        )
        offered = next(each.object for each in nodes.changes if SMALL in each.object["status"]["allocatable"])
        assert version(ready) < version(offered)


def test_the_plugin_shows_what_was_there_when_it_started(tmp_path: Path) -> None:
    with world(tmp_path, ["1g.10gb"], []) as cluster:
        cluster.wait_ready()
        clear(cluster.gpus, 0)
        partition(cluster.gpus, None, ["3g.40gb"])
        time.sleep(0.1)
        assert cluster.allocatable() == {SMALL: 1}
        restart_plugin(cluster)
        cluster.wait_for(lambda: cluster.allocatable() == {SMALL: 0, LARGE: 1}, "new resources")
        # The kubelet never takes a resource that it knew out of the node's status.
        assert amounts(cluster, "capacity") == {SMALL: 1, LARGE: 1}


def test_a_plugin_that_is_gone_leaves_capacity_for_a_while_but_nothing_allocatable(tmp_path: Path) -> None:
    delays = replace(Delays.fast(), plugin_forget=0.3)
    with world(tmp_path, ["1g.10gb"] * 3, None, delays=delays) as cluster:
        cluster.wait_ready()
        nodes = Recording(cluster, NODES)
        set_labels(cluster, device_plugin="paused-for-mig-change")
        cluster.wait_for(lambda: amounts(cluster, "capacity") == {SMALL: 0, GPU: 0}, "no capacity")
        assert {SMALL: ("3", "0"), GPU: ("1", "0")} in [
            {name: (status["capacity"][name], status["allocatable"][name]) for name in (SMALL, GPU)}
            for status in (each.object["status"] for each in nodes.changes)
        ]
        set_labels(cluster, device_plugin="true")
        cluster.wait_for(lambda: cluster.allocatable() == {SMALL: 3, GPU: 1}, "the plugin is back")


@pytest.mark.parametrize(("node_sync", "shown"), [(3600, {}), (0.2, {SMALL: 1, GPU: 1})])
def test_the_node_shows_old_numbers_until_the_next_sync(
    tmp_path: Path, node_sync: float, shown: dict[str, int]
) -> None:
    delays = replace(Delays.fast(), node_sync=node_sync)
    with world(tmp_path, ["1g.10gb"], None, delays=delays) as cluster:
        eventually(lambda: SMALL in cluster.kubelet.allocatable_devices(), "the kubelet knows")
        cluster.wait_for(lambda: cluster.allocatable() == shown, "what is shown")


def test_heartbeats_move_only_when_the_status_is_written(tmp_path: Path) -> None:
    delays = replace(Delays.fast(), node_report=2.5)
    with world(tmp_path, None, None, delays=delays) as cluster:
        cluster.wait_ready()

        def beats() -> set[str]:
            return {each["lastHeartbeatTime"] for each in cluster.node_object()["status"]["conditions"]}

        first = beats()
        time.sleep(0.3)
        assert beats() == first
        cluster.wait_for(lambda: beats() != first, "a report")
        conditions = {each["type"]: each["status"] for each in cluster.node_object()["status"]["conditions"]}
        assert conditions == {
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
            "Ready": "True",
        }


def test_plugin_and_exporter_keep_gpus_from_being_reset_until_their_labels_are_paused(tmp_path: Path) -> None:
    with world(tmp_path, gpus="2xA100-SXM4-80GB") as cluster:
        cluster.wait_ready()
        with pytest.raises(ResetRefusedError) as refused:
            cluster.gpus.reset([0])
        assert {name.split("(")[1].rstrip(")") for name in refused.value.holders[0]} == {
            "nvidia-device-plugin",
            "dcgm-exporter",
        }
        set_labels(cluster, device_plugin="paused", dcgm_exporter="paused", gpu_feature_discovery="paused")
        apps = (PLUGIN, "nvidia-dcgm-exporter", "gpu-feature-discovery")
        cluster.wait_for(lambda: not any(with_app(cluster, app) for app in apps), "all gone")
        cluster.gpus.reset([0, 1])
        assert with_app(cluster, "nvidia-operator-validator")


@pytest.mark.parametrize(
    ("strategy", "layout", "labels"),
    [
        (
            "none",
            [["1g.10gb"], None],
            {
                "mig.strategy": None,
                "mig.capable": "true",
                "gpu.product": "NVIDIA-H100-80GB-HBM3",
                "gpu.count": "2",
                "gpu.replicas": "1",
                "mig-1g.10gb.count": None,
            },
        ),
        (
            "mixed",
            [["3g.40gb"] + ["1g.10gb"] * 2, []],
            {
                "mig.strategy": "mixed",
                "gpu.product": "NVIDIA-H100-80GB-HBM3",
                "gpu.count": "2",
                "gpu.replicas": "0",
                "gpu.family": "hopper",
                "mig-1g.10gb.count": "2",
                "mig-1g.10gb.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
                "mig-3g.40gb.count": "1",
                "mig-3g.40gb.slices.gi": "3",
                "mig-3g.40gb.engines.copy": "3",
            },
        ),
        (
            "single",
            [["1g.10gb"] * 3, ["1g.10gb"]],
            {
                "mig.strategy": "single",
                "gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
                "gpu.count": "4",
                "gpu.slices.gi": "1",
                "mig-1g.10gb.count": None,
            },
        ),
        (
            "single",
            [["1g.10gb"], []],
            {
                "mig.strategy": "single",
                "gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID",
                "gpu.count": "0",
                "gpu.replicas": "0",
            },
        ),
        (
            "single",
            [None, None],
            {"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "2", "gpu.slices.gi": None},
        ),
    ],
)
def test_feature_discovery_labels_the_node(
    tmp_path: Path, strategy: Strategy, layout: Sequence[Layout], labels: dict[str, str | None]
) -> None:
    with world(tmp_path, *layout, strategy=strategy) as cluster:
        cluster.wait_for(
            lambda: OWN_LABELS in cluster.node_object()["metadata"].get("annotations", {}), "labels"
        )
        held = cluster.node_object()["metadata"]["labels"]
        assert {name: held.get(f"nvidia.com/{name}") for name in labels} == labels


def test_labels_of_instances_that_are_gone_go_with_the_next_start(tmp_path: Path) -> None:
    with world(tmp_path, ["1g.10gb"], []) as cluster:
        cluster.wait_ready()
        set_labels(cluster, gpu_feature_discovery="paused")
        cluster.wait_for(lambda: not with_app(cluster, "gpu-feature-discovery"), "gone")
        clear(cluster.gpus, 0)
        partition(cluster.gpus, ["3g.40gb"])
        assert "nvidia.com/mig-1g.10gb.count" in cluster.node_object()["metadata"]["labels"]

        def own(node: Object) -> Object:
            node["metadata"]["labels"]["nvidia.com/mig.config"] = "mine"
            return node

        cluster.store.update(NODES, None, cluster.node, own)
        set_labels(cluster, gpu_feature_discovery="true")
        labels = cluster.wait_for(
            lambda: (
                held
                if "nvidia.com/mig-3g.40gb.count" in (held := cluster.node_object()["metadata"]["labels"])
                else None
            ),
            "new labels",
        )
        assert not any(name.startswith("nvidia.com/mig-1g.10gb") for name in labels)
        assert labels["nvidia.com/mig.config"] == "mine"
        assert labels["nvidia.com/gpu.deploy.device-plugin"] == "true"


def test_the_plugin_waits_for_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    cluster = world(tmp_path, None, None)
    cluster.gpus.unload_driver()
    with cluster:
        cluster.wait_for(
            lambda: (
                (now := plugin(cluster))
                and (now["status"].get("containerStatuses") or [{"restartCount": 0}])[0]["restartCount"] > 0
            ),
            "a crash",
        )
        cluster.gpus.load_driver()
        cluster.wait_for(lambda: cluster.allocatable() == {GPU: 2}, "resources")
