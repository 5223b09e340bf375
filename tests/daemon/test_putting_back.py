"""A run that fails leaves the node as it was, and says why; what may pass is tried again without help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pynvml import NVML_ERROR_IN_USE, NVML_ERROR_UNKNOWN

from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.workloads import NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import OPERATOR, GpuNode
from tests.daemon.workloads import (
    QUICK,
    break_plugin,
    guard,
    made_as_new,
    mark_stuck,
    running,
    stick_operand,
    unguard,
    unlabel_plugin,
    web,
)

SMALL = [f"1g.10gb@{start}" for start in range(7)]
BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
DEPLOY = "nvidia.com/gpu.deploy."
JOURNAL = "mig-manager/journal"


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with layout `small`."""
    return made_as_new(used_node, QUICK)


def endless(node: GpuNode) -> None:
    mark_stuck(node, NAMESPACE, web(node))


def fault(function: str, code: int | None, **more: object) -> Callable[[GpuNode], None]:
    def make(node: GpuNode) -> None:
        node.cluster.gpus.fail(function, code, **more)  # type: ignore[arg-type]

    return make


@dataclass(frozen=True)
class Case:
    """One failure on a node whose GPUs are `small`, asked for `layout`."""

    name: str
    prepare: Callable[[GpuNode], object]
    reason: str
    phase: str
    parts: tuple[str, ...]
    layout: str = "balanced"


CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CASES = [
    Case("PDB", guard, "EvictionBlocked", "Draining", ("pod ml/web-", "web-guard", "Nothing was evicted")),
    Case("endless pod", endless, "DrainTimeout", "Draining", ("ml/web-",)),
    Case(
        "operand", stick_operand, "OperandTimeout", "PausingOperands", ("gpu-operator/nvidia-dcgm-exporter",)
    ),
    Case(
        "in use",
        fault("nvmlGpuInstanceDestroy", NVML_ERROR_IN_USE, times=None, gpu=1),
        "GpuInUse",
        "Applying",
        ("GPU 1", "NVML shows no process on it"),
    ),
    Case(
        "a call",
        fault(CREATE, NVML_ERROR_UNKNOWN, nth=2),
        "NvmlError",
        "Applying",
        ("previous layout is back",),
    ),
    Case(
        "create that lies",
        fault("nvmlGpuInstanceCreateComputeInstance", 0, times=1, gpu=0),
        "VerifyFailed",
        "Applying",
        ("GPU 0", "previous layout is back"),
    ),
    Case(
        "a reset",
        lambda node: node.cluster.gpus.change_options(resets="refused"),
        "GpuInUse",
        "Applying",
        ("reset of GPU 0 and GPU 1 failed", "previous layout is back"),
        "all-disabled",
    ),
    Case(
        "no reset",
        lambda node: node.cluster.gpus.change_options(resets="unsupported"),
        "ResetNotSupported",
        "Applying",
        ("reset of GPU 0 and GPU 1 failed",),
        "all-disabled",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_failure_leaves_the_node_as_it_was_and_says_why(node: GpuNode, case: Case) -> None:
    # A client that somebody keeps off, and one that nobody has labelled.
    node.patch_node(labels={f"{DEPLOY}dcgm": "false", f"{DEPLOY}node-status-exporter": None})
    deploy_labels, allocatable = node.deploy_labels, node.allocatable
    case.prepare(node)
    status = node.becomes(case.layout, "failed")
    assert (status["reason"], status["phase"]) == (case.reason, case.phase)
    missing = [part for part in case.parts if part not in status["message"]]
    assert not missing, (missing, status["message"])
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert JOURNAL not in node.annotations
    assert node.instances == [SMALL, SMALL]
    node.wait(lambda: node.allocatable == allocatable, "the resources as before")
    node.wait_event(case.reason, case.parts[0])
    assert node.logged().count(f"{case.reason} in phase {case.phase}") == 1
    assert ("nextRetryAt" in status) == (case.reason != "ResetNotSupported")


def test_a_failure_before_the_clients_were_stopped_restarts_none_of_them(node: GpuNode) -> None:
    guard(node)
    before = {name: pod["metadata"]["uid"] for name, pod in node.pods(OPERATOR).items()}
    node.becomes("balanced", "failed")
    assert "ResumingOperands" not in node.history.phases
    after = {name: pod["metadata"]["uid"] for name, pod in node.pods(OPERATOR).items()}
    assert after == before


def test_an_admins_cordon_stays(node: GpuNode) -> None:
    node.patch_node(unschedulable=True)
    node.becomes("balanced")
    assert node.cordoned
    stick_operand(node)
    node.becomes("small", "failed")
    assert node.cordoned


def test_a_cordon_that_an_admin_sets_in_the_last_moment_stays(node: GpuNode) -> None:
    def cordon(change: Change) -> None:
        if change.resource is NODES and node.status.get("layout") == "balanced" and not node.cordoned:
            node.patch_node(unschedulable=True)
            leave()

    leave = node.cluster.store.subscribe(cordon)
    node.becomes("balanced")
    assert node.cordoned


def test_a_client_without_a_deploy_label_starts_anew_once_the_gpus_have_changed(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK)
    node.becomes("small")
    unlabel_plugin(node)
    validator = running(node, "nvidia-operator-validator", OPERATOR)
    node.becomes("balanced")
    assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    assert validator not in node.pods(OPERATOR)
    status = node.becomes("all-disabled", "failed")  # A reset, while the plugin holds the GPUs.
    assert status["reason"] == "GpuInUse"
    assert node.instances == [BALANCED, BALANCED]
    assert "nvidia.com/gpu.deploy.device-plugin" not in node.labels


def test_a_deploy_label_that_somebody_sets_meanwhile_stays(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_OPERAND_TIMEOUT": "60", "MIG_MANAGER_DRAIN_TIMEOUT": "60"})
    node.becomes("small")
    guard(node)
    name = stick_operand(node)
    node.label("balanced")
    node.wait(lambda: node.cordoned, "the cordon")
    node.patch_node(labels={f"{DEPLOY}gpu-feature-discovery": "false"})  # While pods are drained.
    unguard(node)
    node.wait(lambda: node.labels.get(f"{DEPLOY}dcgm-exporter") == PAUSED, "the pause")
    # While clients are away. Without the device plugin there is nothing to wait for.
    node.patch_node(labels={f"{DEPLOY}dcgm-exporter": "false", f"{DEPLOY}device-plugin": "false"})
    mark_stuck(node, OPERATOR, name, None)
    assert node.ended("balanced")["state"] == "success"
    assert node.labels[f"{DEPLOY}gpu-feature-discovery"] == "false"
    assert node.labels[f"{DEPLOY}dcgm-exporter"] == "false"
    assert node.labels[f"{DEPLOY}device-plugin"] == "false"
    break_plugin(node)
    node.patch_node(labels={f"{DEPLOY}device-plugin": "true"})
    node.wait(lambda: any("device-plugin" in each for each in node.pods(OPERATOR)), "the plugin's pod")
    node.label("one-gpu")
    node.wait(lambda: node.status.get("phase") == "ResumingOperands", "the wait for resources")
    node.patch_node(labels={f"{DEPLOY}device-plugin": None})
    assert node.ended("one-gpu")["state"] == "success"
