"""The main job: a label on a Node re-partitions its GPUs, and the Node says so."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pynvml import NVML_ERROR_IN_USE

from mig_manager.simulation.resources import EVENTS, PODS
from mig_manager.simulation.workloads import NAMESPACE, pod, pod_spec
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, GpuNode
from tests.daemon.workloads import made_as_new

SMALL = [f"1g.10gb@{start}" for start in range(7)]


BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with layout `small`, and the daemon on it."""
    made = made_as_new(used_node)
    made.eventually(lambda: made.instances == [SMALL, SMALL], "the layout from before an edit")
    made.becomes("small")
    made.forget()
    return made


def uuids(node: GpuNode) -> set[str]:
    """The MIG devices of all GPUs."""
    gpus: list[dict[str, Any]] = node.cluster.gpus.snapshot()["gpus"]
    return {one["uuid"] for gpu in gpus for instance in gpu["instances"] for one in instance["compute"]}


def test_a_label_re_partitions_the_gpus_and_the_node_offers_them_when_it_says_success(node: GpuNode) -> None:
    deploy_labels, before = node.deploy_labels, uuids(node)
    node.label("balanced")
    node.wait(lambda: node.state == "pending" and node.cordoned, "the cordon")
    status = node.ended("balanced")
    assert node.state == "success"
    assert node.instances == [BALANCED, BALANCED]
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    assert len(before & uuids(node)) == 4, "instances that both layouts share stay where they are"
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert status["phase"] == "Done"
    assert status["gpus"] == [0, 1]
    assert "mig-manager/journal" not in node.annotations
    node.wait_event("Applied", "balanced: the GPUs are as the layout says")


def test_gpus_in_mig_mode_go_back_to_whole_gpus(node: GpuNode) -> None:
    node.becomes("all-disabled")
    assert node.instances == [["off"], ["off"]]
    assert node.allocatable == {"gpu": 2}


def test_a_refusal_that_passes_is_overcome_and_logged(node: GpuNode) -> None:
    node.cluster.gpus.fail("nvmlComputeInstanceDestroy", NVML_ERROR_IN_USE, times=2, gpu=1)
    node.becomes("balanced")
    assert "GPU 1: nvmlComputeInstanceDestroy was refused because of use, 2 times" in node.logged()


def test_what_already_matches_is_left_alone(node: GpuNode) -> None:
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the names of the layouts")
    node.forget()
    node.becomes("all-1g.10gb")
    assert node.cluster.gpus.calls(changes=True) == []
    node.eventually(lambda: node.changes_by_the_daemon() == ["patch nodes"] * 2, "pending, then success")


def test_a_gpu_that_is_right_keeps_everything_while_another_changes(node: GpuNode) -> None:
    first = uuids(node)
    node.cluster.gpus.record_calls()
    node.becomes("one-gpu")
    assert {call.gpu for call in node.cluster.gpus.calls(changes=True)} == {1}
    assert len(first & uuids(node)) == 7


def test_gpu_pods_are_evicted_and_others_stay(make_node: MakeNode) -> None:
    node = make_node()
    for name, resources in (("training", {"nvidia.com/gpu": 1}), ("web", {"cpu": "1"})):
        node.cluster.store.create(PODS, pod(name, pod_spec("example/image", resources)))
    node.wait(
        lambda: all(each.get("status", {}).get("phase") == "Running" for each in node.pods().values()), "pods"
    )
    node.start(MIG_MANAGER_EVICT_BARE_PODS="true")
    node.becomes("small")
    assert set(node.pods()) == {"web"}
    waits_for = f'"leaving": ["{NAMESPACE}/training"]'
    node.wait_event("Drained", f"gone: {NAMESPACE}/training")
    node.wait_requests(lambda each: '"phase": "Draining", ' in str(each.body) and waits_for in str(each.body))
    assert "leaving" not in node.status
    node.wait_event("Applied", "small")
    tells_its_story(node)
    (told,) = [
        each
        for each in node.cluster.store.list(EVENTS, NAMESPACE)[0]
        if each["reason"] == "EvictedForRepartition"
    ]
    assert told["message"] == "evicted so that GPU 0 can be re-partitioned to small"
    assert (told["reason"], told["involvedObject"]["name"]) == ("EvictedForRepartition", "training")
    assert told["metadata"]["annotations"] == {"mig-manager/run": node.status["run"]}


def tells_its_story(node: GpuNode) -> None:
    """The run in the log, as somebody who is called at night reads it, and all of it by its id."""
    lines = [json.loads(line) for line in node.logged().splitlines()]
    run = node.status["run"]
    of_the_run = [line for line in lines if line.get("run") == run]
    assert {line["node"] for line in lines} == {node.cluster.node}
    story = [
        (line["level"], line["phase"], re.sub(r"\d+\.\d s|(?<=-)[a-z0-9]{5}\b", "*", line["message"]))
        for line in of_the_run
    ]
    labels = ["dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery"]
    assert story == [
        (
            "INFO",
            "Validating",
            "small is wanted (attempt 1): GPUs 0-1: turn MIG on (reset), create 7x 1g.10gb",
        ),
        ("INFO", "Cordoning", "the node is cordoned, and the journal written"),
        ("INFO", "Draining", "in the way, and made to leave: ml/training"),
        ("INFO", "Draining", "gone after *: ml/training"),
        (
            "INFO",
            "PausingOperands",
            "GPU clients are paused, and gone after *: gpu-operator/gpu-feature-discovery-*, "
            "gpu-operator/nvidia-dcgm-exporter-*, gpu-operator/nvidia-device-plugin-daemonset-*",
        ),
        ("INFO", "Applying", "GPUs 0-1: the change begins"),
        ("INFO", "Applying", "GPUs 0-1: read back as planned, after *"),
        (
            "INFO",
            "ResumingOperands",
            f"GPU clients are started again: {', '.join(f'nvidia.com/gpu.deploy.{name}' for name in labels)}",
        ),
        ("INFO", "WaitingForResources", "advertised after *: nvidia.com/mig-1g.10gb: 14"),
        ("SUCCESS", "Done", "small: applied, and the node uncordoned, after *"),
    ]


def test_a_layout_of_the_hardware_serves_where_the_file_has_none_of_that_name(node: GpuNode) -> None:
    node.becomes("all-3g.40gb")
    assert node.instances == [["3g.40gb@0", "3g.40gb@4"]] * 2


def test_a_restarted_daemon_finds_nothing_to_do_and_leaves_no_trace(node: GpuNode) -> None:
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the names of the layouts")
    assert '"configMap": "mig-manager/mig-manager-layouts"' in node.annotations["mig-manager/layouts-from"]
    assert node.terminate() == 0
    node.cluster.gpus.record_calls()
    node.cluster.api.requests.clear()
    node.start()
    node.eventually(lambda: any(call.function == "nvmlShutdown" for call in node.cluster.gpus.calls()))
    assert node.terminate() == 0
    assert node.cluster.gpus.calls(changes=True) == []
    assert node.changes_by_the_daemon() == []


def test_an_edit_of_the_layout_re_applies_and_an_edit_of_another_does_not(node: GpuNode) -> None:
    first = node.status
    other = LAYOUTS.replace('"2g.20gb": 1', '"2g.20gb": 2').replace("version: v1", "# a comment\nversion: v1")
    node.set_layouts(other)
    node.set_layouts(other.replace('{"1g.10gb": 7}', '{"1g.10gb": 3}'))
    node.wait(lambda: node.status["hash"] != first["hash"] and node.state == "success", "the edited layout")
    assert node.allocatable == {"mig-1g.10gb": 6}
    assert [reason for reason, _ in node.events()].count("Reconfiguring") == 1


def test_a_layout_that_disappears_under_its_label_changes_nothing_and_is_said(node: GpuNode) -> None:
    node.set_layouts(LAYOUTS.replace("  small:", "  tiny:"))
    node.wait_event("LayoutGone", "'small'")
    assert node.state == "success"
    assert node.instances == [SMALL, SMALL]
    node.set_layouts("version: v2\n")
    node.wait_event("LayoutGone", "version")
    assert node.state == "success"
    node.set_layouts(LAYOUTS)
    node.becomes("balanced")


def test_a_removed_label_ends_the_management_and_keeps_the_layout(node: GpuNode) -> None:
    node.label(None)
    node.wait(lambda: node.state is None, "the state to go")
    assert node.status == {}
    assert node.instances == [SMALL, SMALL]


def test_the_gpus_and_the_possible_layouts_stand_on_the_node(node: GpuNode) -> None:
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the names of the layouts")
    assert '"all-1g.10gb"' in node.annotations["mig-manager/layouts"]
    assert "impossible" not in node.annotations["mig-manager/layouts"]
    node.becomes("balanced")
    node.wait(lambda: '"profile":"3g.40gb"' in node.annotations["mig-manager/gpus"], "the new instances")


def test_the_single_strategy_offers_mig_devices_as_gpus(make_node: MakeNode) -> None:
    node = make_node(strategy="single")
    node.start()
    node.becomes("small")
    assert node.allocatable == {"gpu": 14}
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "StrategyMismatch"
    assert "What helps: set the strategy to 'mixed'" in status["message"]
    assert node.instances == [SMALL, SMALL]


def test_a_change_takes_at_most_twelve_requests_and_each_phase_is_written_at_most_once(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start()
    node.becomes("small")
    node.wait_requests(lambda each: (each.body or {}).get("reason") == "Applied")
    node.wait_requests(lambda each: "mig-manager/layouts" in str(each.body))
    node.forget()
    node.becomes("balanced")
    node.wait_requests(lambda each: (each.body or {}).get("reason") == "Applied")
    asked = [
        f"{each.verb} {each.resource}"
        for each in node.cluster.api.requests.all()
        if each.user_agent == "mig-manager" and "PartialObject" not in each.accept
    ]
    assert sorted(each for each in asked if "configmaps" not in each) == [
        "create events",
        "create events",
        "delete pods",
        "list pods",
        *["patch nodes"] * 6,
        "watch nodes",
        "watch pods",
    ]
    said = [each for each in node.history.phases if each != "Done"]
    assert said == ["Validating", "Cordoning", "PausingOperands", "Applying", "ResumingOperands"]
