"""A GPU that nothing resets: the node is rebooted for its MIG mode, once, and the next boot goes on."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.simulation.resources import DEPLOYMENTS, POD_DISRUPTION_BUDGETS
from mig_manager.simulation.workloads import deployment, disruption_budget, pod_spec
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, OPERATOR, GpuNode
from tests.daemon.workloads import QUICK, running

SMALL = [f"1g.10gb@{start}" for start in range(7)]
BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
JOURNAL = "mig-manager/journal"
WITH_REBOOT = {**QUICK, "WITH_REBOOT": "true"}
FIRST_OFF = """\
  first-off:
    - devices: [0]
      mig-enabled: false
"""


@pytest.fixture
def make_vm(make_node: MakeNode) -> Any:
    """Makes virtual machines with two A100s that nobody can reset."""

    def make(**options: Any) -> GpuNode:
        return make_node(layouts=LAYOUTS + FIRST_OFF, gpu_options={"passthrough": True, **options})

    return make


@pytest.fixture
def without_operands(make_vm: Any) -> GpuNode:
    """One whose GPU Operator runs nothing that could be paused, and whose reboot command does nothing."""
    node: GpuNode = make_vm(reboots="ignored")
    node.patch_node(labels=dict.fromkeys(node.deploy_labels))
    node.wait(lambda: not running(node, "nvidia-device-plugin", OPERATOR), "the end of the plugin")
    node.start(**WITH_REBOOT)
    return node


def web(node: GpuNode) -> str:
    """A Deployment of one pod that uses no GPU; gives its name once it runs."""
    spec = pod_spec("example/image", {}, terminationGracePeriodSeconds=1)
    node.cluster.store.create(DEPLOYMENTS, deployment("web", 1, spec))
    return str(node.wait(lambda: running(node, "web"), "the pod of web"))


def asked(node: GpuNode) -> int:
    """How often the reboot command was run."""
    return node.cluster.gpus.reboots_asked


def modes(node: GpuNode) -> list[tuple[bool, bool]]:
    """Of each GPU: MIG mode, and the pending one."""
    return [(gpu["mig"]["current"], gpu["mig"]["pending"]) for gpu in node.cluster.gpus.snapshot()["gpus"]]


def is_as_before(node: GpuNode, deploy_labels: dict[str, str]) -> None:
    assert not node.cordoned
    assert node.deploy_labels == deploy_labels
    assert JOURNAL not in node.annotations


def test_mig_is_switched_on_and_off_by_a_reboot_each(make_vm: Any) -> None:
    node = make_vm()
    node.start(**WITH_REBOOT)
    deploy_labels, pod = node.deploy_labels, web(node)
    boot = node.cluster.gpus.boot_id
    status = node.becomes("small")
    assert node.instances == [SMALL, SMALL]
    assert node.allocatable == {"mig-1g.10gb": 14}
    is_as_before(node, deploy_labels)
    assert asked(node) == 1
    assert node.ends == [0]
    assert node.cluster.gpus.boot_id != boot == status["reboot"]["boot"]
    assert pod not in node.pods()
    rebooting = next(each for each in node.history.versions if each.state == "rebooting")
    assert (rebooting.phase, rebooting.cordoned, rebooting.paused) == ("Rebooting", True, True)
    assert boot in (rebooting.journal or "")
    assert ("Rebooting", "small: the node is rebooted for its MIG modes") in node.events()

    # Here a reset is tried first. What the layout does not name is as before, although no instance outlives a reboot.
    node.cluster.gpus.change_options(passthrough=False, resets="unsupported")
    node.cluster.gpus.record_calls()
    node.becomes("first-off")
    assert [(call.function, call.gpu) for call in node.cluster.gpus.calls() if call.function == "reset"] == [
        ("reset", 0)
    ]
    assert node.instances == [["off"], SMALL]
    assert node.allocatable == {"gpu": 1, "mig-1g.10gb": 7}
    is_as_before(node, deploy_labels)
    assert asked(node) == 2


@pytest.mark.parametrize(
    ("reboots", "message"),
    [
        ("in vain", "MIG mode of GPUs 0-1 is still on, although the node was rebooted for it"),
        ("refused", "The reboot command failed with exit status 1: Failed to connect to bus"),
        ("ignored", "The node is still up 3 s after the reboot command, which ended well."),
    ],
)
def test_a_reboot_that_does_not_help_is_the_only_one(make_vm: Any, reboots: str, message: str) -> None:
    node = make_vm(passthrough=False, reboots=reboots)
    settings = {**WITH_REBOOT, "MIG_MANAGER_REBOOT_TIMEOUT": "3" if reboots == "ignored" else "60"}
    node.start(**settings)
    node.becomes("small")
    node.cluster.gpus.change_options(passthrough=True)
    deploy_labels = node.deploy_labels
    status = node.becomes("all-disabled", "failed")
    assert (status["reason"], status["phase"]) == ("RebootRequired", "Rebooting")
    assert message in status["message"]
    assert "remove the label nvidia.com/mig.config and set it anew" in status["message"]
    assert modes(node) == [(True, True), (True, True)]
    assert node.instances == [SMALL, SMALL]
    is_as_before(node, deploy_labels)
    node.wait(lambda: node.allocatable == {"mig-1g.10gb": 14}, "the resources as before")
    assert asked(node) == 1

    node.kill()
    node.patch_node(annotations={"mig-manager/layouts": None})
    node.forget()
    node.start(**settings)
    node.wait(lambda: "mig-manager/layouts" in node.annotations, "the end of a run that says nothing new")
    assert (node.state, node.status["message"]) == ("failed", status["message"])
    assert not node.history.touched
    assert asked(node) == 1

    node.cluster.gpus.change_options(reboots="work")
    node.label(None)
    node.wait(lambda: node.state is None, "the node to be let go")
    node.becomes("all-disabled")
    assert asked(node) == 2


def test_while_the_reboot_is_under_way_a_restarted_daemon_waits_for_it(without_operands: GpuNode) -> None:
    node = without_operands
    node.label("small")
    node.eventually(lambda: asked(node) == 1, "the command")
    node.kill()
    node.forget()
    node.start(**WITH_REBOOT)
    node.eventually(lambda: "waiting for it" in node.logged(), "the wait")
    node.label("balanced")
    assert node.terminate() == 0
    assert (node.state, node.status["layout"], node.cordoned) == ("rebooting", "small", True)
    node.cluster.reboot()
    node.cluster.gpus.unload_driver()  # The node is up, and its driver is not there yet.
    node.start(**WITH_REBOOT, MIG_MANAGER_DRIVER_RETRY="0.3")
    assert node.ended("balanced")["reason"] == "NvmlError"
    assert node.cordoned
    assert JOURNAL in node.annotations
    node.cluster.gpus.load_driver()
    node.wait(lambda: node.state == "success", "the driver to be found")
    assert node.instances == [BALANCED, BALANCED]
    is_as_before(node, {})
    assert asked(node) == 1


def test_a_restarted_daemon_gives_up_at_the_deadline_and_goes_on_with_a_new_wish(
    without_operands: GpuNode,
) -> None:
    node = without_operands
    node.label("small")
    node.eventually(lambda: asked(node) == 1, "the command")
    node.kill()
    node.label("all-disabled")
    node.start(**WITH_REBOOT, MIG_MANAGER_REBOOT_TIMEOUT="0.5")
    # Whether the command was ever run, or how it ended, the daemon that was killed has told nobody.
    node.wait_event("RebootRequired", "small: The node is still up 0.5 s after a reboot was asked for at")
    assert not any("ended well" in message for _, message in node.events())
    assert node.ended("all-disabled")["state"] == "success"
    assert modes(node) == [(False, False), (False, False)]
    is_as_before(node, {})


def test_nobody_is_evicted_and_nothing_changed_where_the_node_cannot_be_drained(make_vm: Any) -> None:
    node = make_vm()
    node.start(**WITH_REBOOT | {"MIG_MANAGER_RETRY_FIRST": "0.2"})
    deploy_labels, pod = node.deploy_labels, web(node)
    node.cluster.store.create(POD_DISRUPTION_BUDGETS, disruption_budget("web", "web", minAvailable=1))
    node.cluster.gpus.record_calls()
    status = node.becomes("small", "failed")
    assert status["reason"] == "EvictionBlocked"
    assert f"ml/{pod}" in status["message"]
    node.wait(lambda: "Looked without a cordon" in node.status.get("message", ""), "a retry that looks first")
    assert node.cluster.gpus.calls(changes=True) == []
    assert pod in node.pods()
    is_as_before(node, deploy_labels)
    assert asked(node) == 0


@pytest.mark.parametrize("passthrough", [True, False])
def test_without_leave_to_reboot_the_message_tells_how_to_give_it(make_vm: Any, passthrough: bool) -> None:
    node = make_vm(passthrough=passthrough, resets="unsupported")
    node.start(**QUICK)
    deploy_labels = node.deploy_labels
    status = node.becomes("small", "failed")
    assert status["reason"] == "ResetNotSupported"
    assert "WITH_REBOOT=true" in status["message"]
    assert modes(node) == [(False, False), (False, False)]
    is_as_before(node, deploy_labels)
    assert asked(node) == 0
