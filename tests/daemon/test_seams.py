"""Where two features meet: a run that is cut short, or that starts from what another one has left."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mig_manager.cli.main import command_line
from mig_manager.simulation.resources import DEPLOYMENTS
from mig_manager.simulation.workloads import NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, OPERATOR, PATIENCE, GpuNode
from tests.daemon.workloads import CREATE, QUICK, amid_the_apply, running, web

SMALL = [f"1g.10gb@{start}" for start in range(7)]
THREE = ["1g.10gb@0", "1g.10gb@1", "1g.10gb@2"]
EDITED = LAYOUTS.replace('{"1g.10gb": 7}', '{"1g.10gb": 3}')
JOURNAL = "mig-manager/journal"


def cdi(tmp_path: Path, specification: Path) -> dict[str, str]:
    """A CDI command that writes how often it was run; it ends its daemon instead while `tmp_path/kill` exists."""
    write = (
        "import os, pathlib, signal, sys\n"
        f"kill, made = pathlib.Path({str(tmp_path / 'kill')!r}), pathlib.Path({str(specification)!r})\n"
        "if kill.exists():\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    sys.exit(1)\n"
        "count = int(made.read_text()) if made.exists() else 0\n"
        "pathlib.Path(sys.argv[1]).write_text(str(count + 1))\n"
    )
    return {
        "CDI_ENABLED": "true",
        "MIG_MANAGER_CDI_SPECIFICATION": str(specification),
        "MIG_MANAGER_CDI_COMMANDS": json.dumps([[sys.executable, "-c", write, "{output}"]]),
    }


def test_containers_find_the_devices_of_a_run_that_was_cut_short_or_failed(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    specification, kill = tmp_path / "nvidia.yaml", tmp_path / "kill"
    settings = {**QUICK, **cdi(tmp_path, specification)}
    kill.touch()
    node.start(**settings)
    node.label("small")
    node.eventually(lambda: not node.runs, "the kill")
    assert node.instances == [SMALL, SMALL]
    kill.unlink()
    node.start(**settings)
    node.wait(lambda: node.state == "success", "the next start to go on")
    assert specification.read_text() == "1"

    # The devices of the previous layout are other ones after they were built anew.
    node.cluster.gpus.fail(CREATE, 999, times=2)
    node.becomes("balanced", "failed")
    assert node.instances == [SMALL, SMALL]
    assert specification.read_text() == "2"


@pytest.fixture
def bare(make_node: MakeNode) -> GpuNode:
    """A node without any GPU client that could be paused."""
    node = make_node()
    node.patch_node(labels=dict.fromkeys(node.deploy_labels))
    node.wait(lambda: not running(node, "nvidia-device-plugin", OPERATOR), "the end of the plugin")
    return node


def killed_in_the_apply(node: GpuNode) -> None:
    node.becomes("small")
    with amid_the_apply(node):
        node.kill()
    node.eventually(lambda: not node.cluster.gpus.sessions(), "the worker to end")
    assert node.instances != [SMALL, SMALL]


def test_without_clients_to_pause_a_wish_that_is_gone_brings_the_previous_layout_back_too(
    bare: GpuNode,
) -> None:
    bare.start()
    killed_in_the_apply(bare)
    bare.label(None)
    bare.cluster.gpus.unload_driver(force=True)
    bare.start(MIG_MANAGER_DRIVER_RETRY="0.3")
    bare.eventually(lambda: "NvmlError in phase Validating" in bare.logged(), "a look for the driver")
    assert JOURNAL in bare.annotations
    assert bare.cordoned
    bare.cluster.gpus.load_driver()
    bare.wait(lambda: JOURNAL not in bare.annotations and not bare.cordoned, "the node to be put back")
    assert bare.instances == [SMALL, SMALL]


def held_back(node: GpuNode) -> None:
    """Layout `small` was applied and edited, which is only reported; the daemon does not run any more."""
    node.start(MIG_MANAGER_EDITED_LAYOUTS="report")
    node.becomes("small")
    node.set_layouts(EDITED)
    node.wait_event("EditNotApplied", "MIG_MANAGER_EDITED_LAYOUTS=report")
    node.kill()
    node.forget()


def test_what_a_reboot_has_taken_comes_back_whatever_keeps_changes_off(make_node: MakeNode) -> None:
    """Nobody has anything of it to lose: neither an edit that is only reported nor a closed window is a reason."""
    node = make_node()
    held_back(node)
    node.cluster.gpus.unload_driver(force=True)
    far = (datetime.now(UTC).hour + 12) % 24
    node.start(
        MIG_MANAGER_EDITED_LAYOUTS="report",
        MIG_MANAGER_MAINTENANCE_WINDOWS=f'["30 {far} * * * 1h"]',
        MIG_MANAGER_DRIVER_RETRY="0.3",
    )
    node.wait(lambda: node.status.get("reason") == "NvmlError", "a look for the driver")
    node.cluster.gpus.load_driver()
    node.wait(lambda: node.state == "success", "the layout to come back")
    assert node.instances == [THREE, THREE]


def test_an_edit_is_held_back_as_a_failure_where_the_gpus_are_not_as_it_was_before(
    make_node: MakeNode,
) -> None:
    node = make_node()
    held_back(node)
    by_hand = ["destroy", "1g.10gb:0", "--gpu", "0", "--simulate-state", str(node.cluster.gpus.path)]
    assert command_line(by_hand) == 0
    node.start(MIG_MANAGER_EDITED_LAYOUTS="report")
    node.wait(lambda: node.state == "failed", "the failure")
    assert node.status["reason"] == "Drifted"
    assert "the GPUs are not as it was before either" in node.status["message"]
    assert node.instances == [SMALL[1:], SMALL]


def test_two_generations_are_switched_by_one_reboot(make_node: MakeNode) -> None:
    """Of the one the mode waits for the reboot; of the other it does not outlive it."""
    node = make_node(gpus="A100-SXM4-80GB,H100-80GB-HBM3", gpu_options={"passthrough": True})
    node.start(**QUICK, WITH_REBOOT="true")
    node.becomes("small")
    assert node.instances == [SMALL, SMALL]
    assert node.cluster.gpus.reboots_asked == 1
    assert not node.cordoned


def test_a_cordon_that_an_admin_takes_off_before_the_reboot_is_ours_from_then_on(make_node: MakeNode) -> None:
    node = make_node(gpu_options={"passthrough": True})
    node.patch_node(unschedulable=True)
    node.start(**QUICK, WITH_REBOOT="true")
    with node.cluster.gpus.hold_calls("nvmlDeviceSetMigMode") as gate:
        node.label("small")
        gate.wait(PATIENCE)
        node.patch_node(unschedulable=False)
    assert node.ended("small")["state"] == "success"
    assert not node.cordoned


def test_where_nobody_may_be_drained_retries_look_before_they_cordon(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.2", "MIG_MANAGER_DRAIN_MODE": "off"})
    node.becomes("small")
    pod = web(node)
    assert node.becomes("balanced", "failed")["reason"] == "DrainRequired"
    node.history.forget()
    node.wait(lambda: node.status["attempt"] >= 3 and node.state == "failed", "two retries")
    assert f"ml/{pod}" in node.status["message"]
    assert not node.history.touched
    node.cluster.store.delete(DEPLOYMENTS, NAMESPACE, "web")
    node.wait(lambda: node.state == "success", "the retry after the pod has gone")


def test_a_journal_that_nobody_can_read_is_told_of_with_the_cordon_that_may_be_its(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.patch_node(annotations={JOURNAL: '{"startedAt": "x"}'}, unschedulable=True)
    node.start(**QUICK)
    node.becomes("all-disabled")
    node.wait_event("JournalUnreadable", "The cordon may be from that run: take it off by hand.")
    assert JOURNAL not in node.annotations


def test_a_driver_that_is_loaded_anew_in_the_middle_of_the_apply_only_delays_the_run(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start(**QUICK | {"MIG_MANAGER_RETRY_FIRST": "0.3", "MIG_MANAGER_RESOURCES_TIMEOUT": "4"})
    deploy_labels = node.deploy_labels
    node.becomes("all-disabled")
    with amid_the_apply(node, "small", nth=2):
        node.cluster.gpus.unload_driver(force=True)
    status = node.ended("small")
    assert (status["reason"], status["state"], node.cordoned) == ("NvmlError", "failed", True)
    node.cluster.gpus.load_driver()
    node.wait(lambda: node.state == "success", "the driver to be found")
    assert node.instances == [SMALL, SMALL]
    assert node.deploy_labels == deploy_labels
    assert not node.cordoned
    assert JOURNAL not in node.annotations


def test_a_gpu_that_is_lost_between_runs_is_no_success_any_more(make_node: MakeNode) -> None:
    node = make_node()
    node.start(**QUICK, MIG_MANAGER_DRIFT_INTERVAL="0.2", MIG_MANAGER_DRIVER_RETRY="0.2")
    node.becomes("small")
    node.cluster.gpus.lose(1)
    node.wait_event("Drifted", "they cannot be read: NVML: opening GPU number 1 in NVML's order failed")
    assert (node.state, node.status["reason"]) == ("failed", "Drifted")
    assert "GPU is lost" in node.status["message"]
