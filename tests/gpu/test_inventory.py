"""What the worker reads from NVML, on every model of the catalogue and from drivers of several ages."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.worker import GpuWorker
from mig_manager.planning.catalogue import catalogue, find_model
from mig_manager.planning.geometry import GpuGeometry
from mig_manager.planning.resized import resized
from mig_manager.planning.state import GpuState
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, shape
from tests.gpu.strange import integrated_model, later_model

NOT_SUPPORTED, INVALID_ARGUMENT = 3, 2
MIG_MODELS = tuple(model for model in catalogue() if model.geometry is not None)


def known(geometry: GpuGeometry | None) -> tuple[object, ...]:
    """What a device must tell as the catalogue does. Numbers that the catalogue lacks are left out."""
    assert geometry is not None
    rows = [
        (p.name, p.profile_id, p.enum, p.memory_mb, p.max_instances, p.placements, p.compute)
        for p in sorted(geometry.profiles, key=lambda p: p.enum)
    ]
    return (geometry.memory_slices, geometry.compute_slices, geometry.memory_mb, rows)


def all_on(node: Node) -> tuple[GpuState, ...]:
    count = len(node.worker.inventory().gpus)
    return node.apply(*[""] * count).gpus


def test_every_model_reads_from_the_device_as_it_stands_in_the_catalogue(make_node: MakeNode) -> None:
    node = make_node(MIG_MODELS)
    for state, model in zip(all_on(node), MIG_MODELS, strict=True):
        assert state.geometry is not None
        assert state.geometry.source == "device"
        assert known(state.geometry) == known(model.geometry), model.title
        assert state.mode_change_needs_reset == model.mode_change_needs_reset
        assert state.gpu.model == model.name


def test_gpus_are_numbered_by_bus_id_whatever_order_nvml_has(make_node: MakeNode) -> None:
    node = make_node("3xA100-SXM4-80GB,1xA30", enumeration=[2, 0, 3, 1])
    gpus = [state.gpu for state in node.worker.inventory().gpus]
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.bus_id for gpu in gpus] == [gpu["bus_id"] for gpu in node.gpus.snapshot()["gpus"]]
    assert gpus[3].model == "NVIDIA A30"


def test_bus_ids_read_alike_in_every_spelling(make_node: MakeNode) -> None:
    node = make_node("3xA30")
    usual = node.worker.inventory()
    told = [gpu.gpu.bus_id for gpu in usual.gpus]
    state = node.path.read_text()
    for long, other in zip(told, (told[0][4:], told[1].lower(), told[2][4:].lower()), strict=True):
        state = state.replace(long, other)
    node.path.write_text(state)
    assert node.worker.inventory() == usual


def test_a_gpu_without_mig_stands_beside_others(make_node: MakeNode) -> None:
    plain, mig = make_node("1xT4,1xH100-80GB-HBM3").worker.inventory().gpus
    assert (plain.gpu.mig_capable, plain.geometry, plain.mig_current) == (False, None, False)
    assert mig.gpu.mig_capable
    assert mig.geometry is not None


def test_gpu_instances_without_compute_instances_are_found(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.apply("3g.40gb 1g.10gb")
    node.gpus.fail("nvmlGpuInstanceCreateComputeInstance", 999, times=None)
    node.gpus.fail("nvmlGpuInstanceDestroy", 999, times=None)
    with pytest.raises(MigManagerError):
        node.apply("3g.40gb 1g.10gb 1g.10gb")
    (state,) = node.worker.inventory().gpus
    assert shape(state) == "3g.40gb@0 1g.10gb@4 1g.10gb@5[]"


def test_jobs_make_their_instances_busy_and_no_others(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-40GB")
    before = node.apply("1c.3g.20gb 1c.3g.20gb 3g.20gb", "off").gpus[0]
    split = next(i for i in before.instances if len(i.compute) == 2)
    node.gpus.add_process(0, split.id, split.compute[1].id, pid=11, name="train")
    node.gpus.add_process(1, pid=12, name="train")
    first, second = node.worker.inventory().gpus
    assert [(i.busy, [c.busy for c in i.compute]) for i in first.instances if i.id == split.id] == [
        (True, [False, True])
    ]
    assert [i.busy for i in first.instances if i.id != split.id] == [False]
    assert (first.busy, second.busy) == (False, True)


def test_mig_devices_have_the_uuids_that_nvml_lists(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-40GB", mig_uuids="fresh")
    (state,) = node.apply("3g.20gb 2g.10gb 1c.2g.10gb 1c.2g.10gb").gpus
    listed = {
        (gi["id"], ci["id"]): ci["uuid"]
        for gi in node.gpus.snapshot()["gpus"][0]["instances"]
        for ci in gi["compute"]
    }
    assert {(i.id, c.id): c.uuid for i in state.instances for c in i.compute} == listed
    assert len(set(listed.values())) == 4


def test_wrong_instance_counts_of_a30_do_not_hide_instances(make_node: MakeNode) -> None:
    node = make_node("1xA30", instance_counts={"1g.6gb": 1, "2g.12gb": 1})
    (state,) = node.apply("1g.6gb 1g.6gb 1g.6gb 1g.6gb").gpus
    assert shape(state) == "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3"


def test_an_older_driver_is_helped_out_by_the_catalogue_until_mig_is_on(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-40GB,1xA30", query_without_mig=False)
    off = node.worker.inventory().gpus
    assert [state.geometry.source for state in off if state.geometry] == ["catalogue", "catalogue"]
    on = node.apply("3g.20gb 3g.20gb", "off").gpus
    assert [state.geometry.source for state in on if state.geometry] == ["device", "catalogue"]
    assert shape(on[0]) == "3g.20gb@0 3g.20gb@4"


def test_a_card_of_another_size_has_the_cuts_of_its_model_under_names_of_its_own(make_node: MakeNode) -> None:
    """Where an older driver lists no profiles until MIG is on, and then others than the catalogue's."""
    usual = find_model("B200")
    assert usual.geometry is not None
    larger = replace(usual, memory_mb=192 * 1024, geometry=resized(usual.geometry, 192 * 1024))
    node = make_node([larger], query_without_mig=False)
    (off,) = node.worker.inventory().gpus
    assert off.geometry is not None
    names = "1g.24gb 1g.24gb+me 1g.48gb 2g.48gb 3g.96gb 4g.96gb 7g.192gb"
    assert sorted(str(profile.name) for profile in off.geometry.profiles) == sorted(names.split())
    (on,) = node.apply("3g.96gb 2g.48gb 1g.24gb").gpus
    assert shape(on) == "3g.96gb@0 2g.48gb@4 1g.24gb@6"


def test_a_driver_without_the_second_version_of_the_profile_calls_serves(make_node: MakeNode) -> None:
    node = make_node(
        "1xA100-SXM4-80GB",
        missing=["nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV"],
    )
    (state,) = node.apply("1g.10gb+me 2c.3g.40gb 1c.3g.40gb").gpus
    assert shape(state) == "3g.40gb@0[2c@0,1c@2] 1g.10gb+me@4"


def test_a_driver_without_process_lists_or_architecture_serves(make_node: MakeNode) -> None:
    lacking = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics")]
    node = make_node("1xA30,1xH100-80GB-HBM3", missing=[*lacking, "nvmlDeviceGetArchitecture"])
    assert [state.mode_change_needs_reset for state in node.worker.inventory().gpus] == [True, False]


def test_models_and_profiles_that_nobody_knows_work_from_nvml_alone(make_node: MakeNode) -> None:
    node = make_node([later_model(), integrated_model()])
    first, second = node.apply("2g.32gb+ray 2g.32gb", "2g.0gb 1c.2g.0gb 1c.2g.0gb").gpus
    assert shape(first) == "2g.32gb@0 2g.32gb+ray@2"
    assert shape(second) == "2g.0gb@0 2g.0gb@2[1c@0,1c@1]"
    first, second = node.apply("4g.64gb", "3g.0gb+gfx").gpus
    assert (shape(first), shape(second)) == ("4g.64gb@0", "3g.0gb+gfx@0")


@pytest.mark.parametrize("model", ["H100-80GB-HBM3", "RTX PRO 6000 Blackwell Server Edition"])
def test_a_driver_that_calls_lacking_profiles_invalid_lists_those_behind_them_too(
    make_node: MakeNode, model: str
) -> None:
    node = make_node(f"1x{model}", holes="invalid")
    (state,) = all_on(node)
    assert known(state.geometry) == known(find_model(model).geometry)


NO_PLACEMENTS = (
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
)


def test_a_driver_that_lists_no_placements_is_helped_out_by_the_catalogue(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", missing=NO_PLACEMENTS)
    (state,) = node.apply("1g.10gb+me 2c.3g.40gb 1c.3g.40gb").gpus
    assert shape(state) == "3g.40gb@0[2c@0,1c@2] 1g.10gb+me@4"
    (state,) = node.apply("1g.10gb+me 3g.40gb").gpus
    assert shape(state) == "3g.40gb@0 1g.10gb+me@4"


def test_a_profile_without_any_known_placement_is_not_offered_and_what_is_there_is_seen(
    make_node: MakeNode,
) -> None:
    node = make_node([later_model()])
    node.apply("2g.32gb")
    node.gpus.fail("nvmlDeviceGetGpuInstancePossiblePlacements_v2", NOT_SUPPORTED, times=None)
    (state,) = node.worker.inventory().gpus
    assert shape(state) == "2g.32gb@0"
    with pytest.raises(MigManagerError, match=r"no profile 4g\.64gb: the driver lists none at all"):
        node.apply("4g.64gb")
    assert node.apply("off").gpus[0].mig_current is False


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda gpus: gpus.unload_driver(), "kernel modules are not loaded"),
        (lambda gpus: gpus.replace_library("999.1"), "Reload the modules or reboot"),
        (lambda gpus: gpus.change_options(permission="none"), "privileged container that has .*nvidia-cap1"),
        (lambda gpus: gpus.lose(1), r"GPU number 1.*GPU is lost \(15\).*reboot"),
    ],
)
def test_a_driver_that_does_not_serve_is_told_with_what_to_do(
    make_node: MakeNode, break_it: object, words: str
) -> None:
    assert callable(break_it)
    node = make_node("2xH100-80GB-HBM3")
    break_it(node.gpus)
    with pytest.raises(MigManagerError, match=words) as told:
        node.worker.inventory()
    assert told.value.reason is Reason.NVML_ERROR
    assert "\n" not in told.value.message


@pytest.mark.parametrize("library", [Path("/no/such/libnvidia-ml.so.1"), Path("/etc/passwd")])
def test_a_missing_or_broken_library_is_told_with_what_to_do(library: Path) -> None:
    with (
        GpuWorker(NvmlSource(library=library)) as worker,
        pytest.raises(MigManagerError, match=r"cannot be loaded.*DRIVER_ROOT_CTR_PATH") as told,
    ):
        worker.inventory()
    assert str(library) in told.value.message


STUBS = (
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlSystemGetProcessName",
)
"""What a library may export without having it: it answers NOT_SUPPORTED, always."""


def test_a_library_with_functions_that_are_only_stubs_serves_by_what_else_it_has(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB,1xH100-80GB-HBM3")
    for function in STUBS:
        node.gpus.fail(function, NOT_SUPPORTED, times=None)
    first, second, third = node.apply_cleared("1g.10gb+me 2c.3g.40gb 1c.3g.40gb", None, "7g.80gb").gpus
    assert [shape(state) for state in (first, second, third)] == [
        "3g.40gb@0[2c@0,1c@2] 1g.10gb+me@4",
        "off",
        "7g.80gb@0",
    ]
    assert [state.mode_change_needs_reset for state in (first, third)] == [True, True]


DENIED = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
"""What a GPU may lack, so that it is told by an error."""


def test_one_denial_is_no_evidence_that_there_is_none(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3")
    node.run(0, node.apply("3g.40gb 1g.10gb").gpus[0].instances[0])
    expected = node.worker.inventory()
    for function, code in product(DENIED, (NOT_SUPPORTED, INVALID_ARGUMENT)):
        node.gpus.fail(function, code)
        assert node.worker.inventory() == expected, (function, code)


def test_mig_devices_that_go_while_they_are_asked_are_passed_over(make_node: MakeNode) -> None:
    """And so are libraries that take no MIG device's handle for a process list: the GPU has told of its processes."""
    node = make_node("1xH100-80GB-HBM3")
    node.run(0, node.apply("3g.40gb 1g.10gb").gpus[0].instances[0])
    expected = node.worker.usage()
    # The GPU itself is asked first, in two calls, and then each of its two devices, twice.
    node.gpus.fail("nvmlDeviceGetComputeRunningProcesses_v3", INVALID_ARGUMENT, nth=3, times=4)
    assert node.worker.usage() == expected


def test_instances_that_cannot_be_listed_are_not_taken_for_none(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB")
    node.apply("1g.10gb")
    for version in ("", "V"):
        node.gpus.fail(f"nvmlDeviceGetGpuInstanceProfileInfo{version}", NOT_SUPPORTED, times=None)
    with pytest.raises(MigManagerError, match="listing any profile with MIG on failed"):
        node.worker.inventory()


def test_a_driver_that_cannot_create_at_a_place_is_asked_for_nothing_new(make_node: MakeNode) -> None:
    node = make_node("1xA100-SXM4-80GB", missing=["nvmlDeviceCreateGpuInstanceWithPlacement"])
    node.apply("")
    with pytest.raises(MigManagerError, match=r"no profile 1g\.10gb"):
        node.apply("1g.10gb")
    assert node.apply("off").gpus[0].mig_current is False
