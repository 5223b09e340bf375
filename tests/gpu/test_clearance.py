"""Resets: what is dealt with before them, what is put back after them, and what is refused in words that help."""

from __future__ import annotations

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.clearance import Clearance, put_persistence_back
from mig_manager.gpu.repartition import RepartitionError
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.planner import plan_node
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, bare, shape

SEVEN = "1g.10gb " * 7
NOT_SUPPORTED, UNKNOWN = 3, 999


def persistence(node: Node) -> list[bool | None]:
    return [each.persistence for each in node.worker.usage()]


def changes(node: Node) -> set[str]:
    return {call.function for call in node.gpus.calls(changes=True)}


def test_persistence_mode_is_off_around_a_reset_and_on_again_after_it(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", host_files=True, persistence=True)
    during: list[list[bool | None]] = []
    node.before_reset = lambda: during.append(persistence(node))
    monitor = node.gpus.hold(pid=9_000_001, name="monitor")
    with pytest.raises(MigManagerError, match=r"pid 9000001 \(monitor\) holds GPU 1") as refused:
        node.apply_cleared(None, "3g.40gb")
    assert refused.value.reason is Reason.GPU_IN_USE
    assert persistence(node) == [True, True], "a refusal puts it back too"
    node.gpus.remove_process(monitor)
    # Something opens the GPU between the look and the change, so that the driver cannot reset it by itself.
    node.gpus.fail("nvmlDeviceSetMigMode", 19, acts=True)
    node.gpus.change_options(grouped_resets=True)
    after = node.apply_cleared(None, "3g.40gb")
    assert [shape(state) for state in after.gpus] == ["off", "3g.40gb@0"]
    assert during == [[True, False]]
    assert node.resets == [(1,)]
    assert persistence(node) == [True, True]


def test_the_gpus_whose_persistence_mode_is_taken_are_noted_first(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB", host_files=True, persistence=True)
    before = node.worker.inventory()
    plan = plan_node(node.target("7g.80gb", None, "off", inventory=before), before)
    noted: list[int] = []

    def note(gpus: tuple[GpuIdentity, ...]) -> None:
        noted.extend(gpu.index for gpu in gpus)
        assert persistence(node) == [True, True, True]
        raise KeyboardInterrupt

    clearance = Clearance(node.worker, node.files, note=note)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), clearance:
        clearance.obtain(plan, 0)
    assert noted == [0]
    node.worker.set_persistence([(before.gpus[0].gpu, False)])
    node.worker.stop_after_call()
    put_persistence_back(node.worker, [before.gpus[0].gpu])
    assert persistence(node) == [True, True, True]


def test_persistence_mode_that_cannot_be_switched_back_is_told_and_undoes_nothing(
    make_node: MakeNode,
) -> None:
    node = make_node("1xA100-SXM4-80GB", host_files=True, persistence=True)
    before = node.worker.inventory()
    plan = plan_node(node.target("7g.80gb", inventory=before), before)
    node.gpus.fail("nvmlDeviceSetPersistenceMode", UNKNOWN, nth=2)
    with Clearance(node.worker, node.files) as clearance:
        clearance.obtain(plan, 0)
    (problem,) = clearance.problems
    assert "could not be switched on again: GPU 0: nvmlDeviceSetPersistenceMode" in problem


@pytest.mark.parametrize("code", [UNKNOWN, 0])
def test_persistence_mode_that_stays_on_stops_the_run_before_anything_goes(
    make_node: MakeNode, code: int
) -> None:
    node = make_node("1xA100-SXM4-80GB", host_files=True, persistence=True)
    node.gpus.fail("nvmlDeviceSetPersistenceMode", code, times=None)
    node.gpus.record_calls()
    with pytest.raises(MigManagerError, match=r"GPU 0: .*ersistence") as refused:
        node.apply_cleared("7g.80gb")
    assert refused.value.reason is Reason.NVML_ERROR
    assert changes(node) == {"nvmlDeviceSetPersistenceMode"}


def test_a_persistence_daemon_that_keeps_its_handle_is_named_with_advice(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", host_files=True, persistence=True)
    unit = "/system.slice/nvidia-persistenced.service"
    name = "/usr/bin/nvidia-persistenced --verbose"
    node.gpus.add_process(0, pid=9_000_001, name=name, kind="handle", cgroup=unit)
    node.gpus.record_calls()
    with pytest.raises(MigManagerError) as refused:
        node.apply_cleared("7g.80gb")
    assert refused.value.reason is Reason.GPU_IN_USE
    assert "nvidia-persistenced --verbose, nvidia-persistenced.service) holds GPU 0" in refused.value.message
    assert "/run/nvidia-persistenced" in refused.value.message
    assert "nvmlDeviceSetMigMode" not in changes(node)


def test_hopper_keeps_its_persistence_mode(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3", host_files=True, persistence=True)
    node.gpus.record_calls()
    assert shape(node.apply_cleared("7g.80gb").gpus[0]) == "7g.80gb@0"
    assert "nvmlDeviceSetPersistenceMode" not in changes(node)


def test_nvidia_drm_is_named_where_it_is_what_refuses_the_reset(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", host_files=True)
    before = node.apply(SEVEN, "off")
    node.gpus.change_options(drm=True)
    with pytest.raises(RepartitionError) as refused:
        node.apply_cleared("off", "7g.80gb")
    assert refused.value.reason is Reason.GPU_IN_USE
    assert refused.value.restored
    assert "nvidia_drm is loaded (mode setting on)" in refused.value.message
    assert "modprobe -r nvidia_drm" in refused.value.message
    assert bare(node.worker.inventory()) == bare(before)
    assert len(node.resets) == 1
    node.gpus.change_options(drm=False)
    assert [shape(each) for each in node.apply_cleared("off", "7g.80gb").gpus] == ["off", "7g.80gb@0"]


def test_a_machine_that_cannot_reset_is_found_before_anything_is_touched(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", host_files=True, passthrough=True)
    node.gpus.record_calls()
    with pytest.raises(MigManagerError) as refused:
        node.apply_cleared("off", "7g.80gb")
    assert refused.value.reason is Reason.RESET_NOT_SUPPORTED
    assert "GPU 1 cannot change MIG mode" in refused.value.message
    assert "by hand (nvidia-smi -mig) and reboot" in refused.value.message
    assert changes(node) == set()
    device = node.files.sys / "bus/pci/devices/0000:0f:00.0"
    (device / "reset").touch()
    with pytest.raises(RepartitionError, match="lets nobody reset the GPU") as tried:
        node.apply_cleared("off", "7g.80gb")
    assert tried.value.reason is Reason.RESET_NOT_SUPPORTED
    assert tried.value.restored


def test_a_kernel_that_knows_no_reset_does_not_speak_for_the_driver_on_bare_metal(
    make_node: MakeNode,
) -> None:
    node = make_node("1xA100-SXM4-80GB", host_files=True)
    (node.files.sys / "bus/pci/devices/0000:07:00.0/reset").unlink()
    assert shape(node.apply_cleared("7g.80gb").gpus[0]) == "7g.80gb@0"


def test_linked_gpus_that_are_free_are_reset_as_one_group(make_node: MakeNode) -> None:
    node = make_node("4xA100-SXM4-80GB", host_files=True, grouped_resets=True, persistence=True)
    node.gpus.record_calls()
    after = node.apply_cleared(None, "7g.80gb", "3g.40gb", None)
    assert [shape(each) for each in after.gpus] == ["off", "7g.80gb@0", "3g.40gb@0", "off"]
    assert [call.gpu for call in node.gpus.calls() if call.function == "reset" and not call.code] == [
        0,
        1,
        2,
        3,
    ]
    assert persistence(node) == [True] * 4


def test_linked_gpus_of_which_one_is_not_free_are_left_alone(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB", host_files=True)
    before = node.apply("off", SEVEN, "off")
    node.gpus.change_options(grouped_resets=True)
    with pytest.raises(RepartitionError, match=r"GPU 1 is linked .* it holds 7 GPU instances") as refused:
        node.apply_cleared("7g.80gb", None, None)
    assert refused.value.reason is Reason.RESET_NOT_SUPPORTED
    assert refused.value.restored
    assert bare(node.worker.inventory()) == bare(before)
    node.apply(None, "", None)
    job = node.gpus.add_process(2, pid=9_000_001, name="train")
    with pytest.raises(RepartitionError, match=r"linked, and are in use: pid 9000001 \(train\)") as refused:
        node.apply_cleared("7g.80gb", None, None)
    assert refused.value.reason is Reason.GPU_IN_USE
    node.gpus.remove_process(job)
    now = node.worker.inventory()
    node.worker.release(plan_node(node.target(None, None, "7g.80gb", inventory=now), now))
    with pytest.raises(RepartitionError, match=r"GPU 2 is linked .* its MIG mode is pending"):
        node.apply_cleared("7g.80gb", None, None)
    now = node.worker.inventory()
    node.worker.release(plan_node(node.target(None, None, "off", inventory=now), now))
    assert shape(node.apply_cleared("7g.80gb", None, None).gpus[0]) == "7g.80gb@0"


def test_a_handle_that_appears_during_the_change_is_named_by_the_failure(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", host_files=True)
    before = node.apply("3g.40gb")
    target = node.target("off", inventory=before)
    leak = {"pid": 9_000_001, "name": "dcgm", "kind": "handle"}
    node.gpus.change_options(resets="refused")
    node.before_reset = lambda: node.gpus.add_process(0, **leak)  # type: ignore[arg-type]
    with pytest.raises(RepartitionError) as refused:
        node.apply_cleared("off")
    assert "pid 9000001 (dcgm) holds GPU 0" in refused.value.message
    assert "The previous layout is back." in refused.value.message
    assert plan_node(target, before).changes
