"""Nothing changes under somebody's hands: processes are waited for and named, and persistence mode comes back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.daemon.conftest import MakeNode
from tests.daemon.node import OPERATOR, PATIENCE, GpuNode
from tests.daemon.workloads import QUICK, made_as_new, mark_stuck, stick_operand

SMALL = [f"1g.10gb@{start}" for start in range(7)]
JOURNAL = "mig-manager/journal"
LONG = {"MIG_MANAGER_HOLDER_WINDOW": "60"}

KEEPS_SOME = """\
version: v1
mig-configs:
  three:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 3}
  two:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2}
"""


@pytest.fixture
def node(used_node: GpuNode) -> GpuNode:
    """A node with layout `small`."""
    return made_as_new(used_node, QUICK)


def persistence(node: GpuNode) -> list[bool]:
    return [gpu["persistence"] for gpu in node.cluster.gpus.snapshot()["gpus"]]


def waits(node: GpuNode, part: str) -> None:
    """The run has come to the wait for processes, and says who."""
    node.wait(
        lambda: node.status.get("phase") == "FreeingGpus" and part in node.status.get("message", ""),
        f"a wait for {part}",
    )


def changes(node: GpuNode) -> set[str]:
    return {call.function for call in node.cluster.gpus.calls(changes=True)}


def test_a_process_that_is_on_an_instance_is_waited_for_and_named(node: GpuNode) -> None:
    node.kill()
    node.start(**{**QUICK, **LONG})
    job = node.cluster.gpus.add_process(1, 9, 0, pid=9_000_001, name="python train.py")
    node.label("one-gpu")
    waits(node, "pid 9000001 (python train.py) holds 1g.10gb at ")
    assert node.instances == [SMALL, SMALL]
    node.cluster.gpus.remove_process(job)
    assert node.ended("one-gpu")["state"] == "success"
    assert node.instances == [SMALL, ["3g.40gb@0", "3g.40gb@4"]]


def test_a_process_that_does_not_end_fails_the_run_before_a_gpu_is_touched(node: GpuNode) -> None:
    job = node.cluster.gpus.add_process(1, 9, 0, pid=9_000_001, name="python train.py", kind="handle")
    node.kill()
    node.start(**{**QUICK, "MIG_MANAGER_HOLDER_WINDOW": "0.2"})
    node.cluster.gpus.record_calls()
    status = node.becomes("one-gpu", "failed")
    assert (status["reason"], status["phase"]) == ("GpuInUse", "FreeingGpus")
    assert "for 0.2 s: pid 9000001 (python train.py) holds 1g.10gb at" in status["message"]
    assert changes(node) == set()
    assert node.instances == [SMALL, SMALL]
    assert not node.cordoned
    assert node.clients_run
    assert JOURNAL not in node.annotations
    node.cluster.gpus.remove_process(job)


def test_a_pod_whose_process_holds_an_instance_is_named(node: GpuNode) -> None:
    node.kill()
    node.start(**{**QUICK, **LONG})
    name, pod = next(each for each in node.pods(OPERATOR).items() if "validator" in each[0])
    cgroup = f"/kubepods.slice/kubepods-pod{pod['metadata']['uid'].replace('-', '_')}.slice/x.scope"
    job = node.cluster.gpus.add_process(1, 9, 0, pid=9_000_001, name="smi", kind="handle", cgroup=cgroup)
    node.label("one-gpu")
    waits(node, f"pid 9000001 (smi, pod {OPERATOR}/{name}) holds 1g.10gb")
    node.cluster.gpus.remove_process(job)
    assert node.ended("one-gpu")["state"] == "success"


def test_an_instance_that_came_into_use_meanwhile_is_kept_and_an_idle_one_goes(make_node: MakeNode) -> None:
    node = make_node(layouts=KEEPS_SOME)
    node.start(**LONG)
    node.becomes("three")
    going = {"1g.10gb@0", "1g.10gb@1", "1g.10gb@2"}
    node.cluster.gpus.record_calls()
    node.label("two")
    assert node.ended("two")["state"] == "success"
    (first,) = going - set(node.instances[0])
    node.becomes("three")
    busy = next(
        each
        for each in node.cluster.gpus.snapshot()["gpus"][0]["instances"]
        if f"{each['profile']}@{each['start']}" == first
    )
    node.history.forget()
    client = stick_operand(node)
    node.label("two")
    node.wait(lambda: "PausingOperands" in node.history.phases, "the pause")
    node.cluster.gpus.add_process(0, busy["id"], 0, pid=9_000_002, name="python late.py")
    mark_stuck(node, OPERATOR, client, None)
    assert node.ended("two")["state"] == "success"
    assert first in node.instances[0]
    assert len(node.instances[0]) == 2


@pytest.mark.parametrize("killed", [False, True])
def test_persistence_mode_is_on_again_after_a_reset_also_if_the_daemon_was_killed_in_between(
    make_node: MakeNode, killed: bool
) -> None:
    node = make_node(gpu_options={"persistence": True})
    node.start()
    with node.cluster.gpus.hold_calls("nvmlDeviceSetMigMode") as gate:
        node.label("small")
        gate.wait(PATIENCE)
        assert persistence(node) == [False, False]
        if killed:
            node.kill()
    if killed:
        node.start()
    assert node.ended("small")["state"] == "success"
    assert node.instances == [SMALL, SMALL]
    assert persistence(node) == [True, True]
    assert JOURNAL not in node.annotations


def test_nvidia_drm_is_told_before_the_cordon_and_unloaded_for_the_reset_if_that_is_allowed(
    make_node: MakeNode,
) -> None:
    """Also if the daemon was killed in between, it is loaded again."""
    node = make_node(gpu_options={"drm": True})
    gpus = node.cluster.gpus
    node.start(**QUICK)
    status = node.becomes("small", "failed")
    assert (status["reason"], status["phase"]) == ("GpuInUse", "Validating")
    assert "nvidia_drm is loaded (mode setting on)" in status["message"]
    assert "MIG_MANAGER_UNLOAD_DRM=true" in status["message"]
    assert not node.history.touched
    node.kill()
    with gpus.hold_calls("reset") as gate:
        node.start(MIG_MANAGER_UNLOAD_DRM="true")
        gate.wait(PATIENCE)
        assert gpus.option("drm") is False
        node.kill()
    node.start(MIG_MANAGER_UNLOAD_DRM="true")
    assert node.ended("small")["state"] == "success"
    assert gpus.option("drm") is True
    assert JOURNAL not in node.annotations


def test_linked_gpus_are_reset_together_and_only_if_the_others_are_free(make_node: MakeNode) -> None:
    node = make_node(
        gpu_options={"grouped_resets": True},
        layouts="version: v1\nmig-configs:\n  first: [{devices: [0], mig-enabled: true,"
        " mig-devices: {7g.80gb: 1}}]\n",
    )
    node.start(MIG_MANAGER_RETRY_FIRST="600", MIG_MANAGER_HOLDER_WINDOW="0.2")
    job = node.cluster.gpus.add_process(1, pid=9_000_001, name="python train.py")
    status = node.becomes("first", "failed")
    assert status["reason"] == "GpuInUse"
    assert "GPU 1 must be reset too, for they are linked, and are in use: pid 9000001" in status["message"]
    assert node.instances == [["off"], ["off"]]
    node.cluster.gpus.remove_process(job)
    node.label(None)
    node.wait(lambda: node.state is None, "the end of the wish")
    node.becomes("first")
    assert node.instances == [["7g.80gb@0"], ["off"]]


def test_the_cdi_specification_is_made_anew_after_a_change_and_a_failure_keeps_the_layout(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    specification, ready = tmp_path / "cdi/nvidia.yaml", tmp_path / "ready"
    write = (
        "import pathlib, sys\n"
        f"if not pathlib.Path({str(ready)!r}).exists(): sys.exit('no toolkit')\n"
        "pathlib.Path(sys.argv[1]).write_text('kind: ' + sys.argv[2])\n"
    )
    node.start(
        CDI_ENABLED="true",
        NVIDIA_DRIVER_ROOT="/run/nvidia/driver",
        MIG_MANAGER_CDI_SPECIFICATION=str(specification),
        MIG_MANAGER_CDI_COMMANDS=json.dumps([[sys.executable, "-c", write, "{output}", "{driver_root}"]]),
        MIG_MANAGER_RETRY_FIRST="1",
    )
    status = node.becomes("small", "failed")
    assert (status["reason"], status["phase"]) == ("CdiError", "PublishingDevices")
    assert "no toolkit" in status["message"]
    assert "nextRetryAt" in status
    assert node.instances == [SMALL, SMALL]
    assert node.allocatable == {"mig-1g.10gb": 14}
    assert not node.cordoned
    ready.touch()
    node.cluster.gpus.record_calls()
    node.wait(lambda: node.state == "success", "the retry")
    assert specification.read_text() == "kind: /run/nvidia/driver"
    assert changes(node) == set()
