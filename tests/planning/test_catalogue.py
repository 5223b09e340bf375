from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import ceil, floor

import pytest
import yaml

from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.catalogue import GpuModel, catalogue, find_model, model_of, parse_gpus
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement

MIG = [model for model in catalogue() if model.geometry is not None]
every_mig_model = pytest.mark.parametrize("model", MIG, ids=lambda model: model.key)


def geometry(model: GpuModel) -> GpuGeometry:
    assert model.geometry is not None
    return model.geometry


def rows(name: str) -> dict[str, InstanceProfile]:
    return {str(profile.name): profile for profile in geometry(find_model(name)).profiles}


def test_keys_titles_and_names_are_unique() -> None:
    for values in (
        [m.key for m in catalogue()],
        [m.title for m in catalogue()],
        [m.name for m in catalogue()],
    ):
        assert [value for value, count in Counter(values).items() if count > 1] == []


def test_known_numbers_are_as_published() -> None:
    """Values read off NVIDIA's documents and public listings by hand, one a table at least."""
    a30 = rows("A30")
    assert (a30["2g.12gb+me"].profile_id, a30["2g.12gb+me"].enum, a30["2g.12gb+me"].max_instances) == (
        6,
        8,
        1,
    )
    assert [p.start for p in a30["2g.12gb"].placements] == [0, 2]
    a100 = rows("A100-SXM4-80GB")
    assert {name: (p.profile_id, p.max_instances) for name, p in a100.items()} == {
        "1g.10gb": (19, 7),
        "1g.10gb+me": (20, 1),
        "1g.20gb": (15, 4),
        "2g.20gb": (14, 3),
        "3g.40gb": (9, 2),
        "4g.40gb": (5, 1),
        "7g.80gb": (0, 1),
    }
    assert a100["3g.40gb"].placements == (Placement(0, 4), Placement(4, 4))
    assert a100["1g.20gb"].placements == tuple(Placement(start, 2) for start in (0, 2, 4, 6))
    assert (a100["7g.80gb"].engines.decoder, a100["7g.80gb"].multiprocessors) == (5, 98)
    assert rows("H100-80GB-HBM3")["1g.20gb"].multiprocessors == 26
    assert rows("H100 NVL")["3g.47gb"].memory_mb == 47232
    assert rows("H200")["1g.18gb"].memory_mb == 16384
    assert rows("B200")["2g.45gb"].engines.copy == 4
    rtx = rows("RTX PRO 6000 Blackwell Server Edition")
    assert (rtx["1g.24gb+me.all"].profile_id, rtx["2g.48gb-me"].profile_id) == (65, 66)
    assert rtx["1g.24gb"].placements == tuple(Placement(start, 3) for start in (0, 3, 6, 9))


@every_mig_model
def test_profile_ids_enums_and_names_are_unique_in_a_model(model: GpuModel) -> None:
    profiles = geometry(model).profiles
    for values in ([p.profile_id for p in profiles], [p.enum for p in profiles], [p.name for p in profiles]):
        assert len(set(values)) == len(profiles)


@every_mig_model
def test_names_follow_from_the_memory_by_the_rule_of_nvidias_tools(model: GpuModel) -> None:
    """The share of the total is rounded up to eighths, the total to whole GiB, their product half up."""
    for profile in geometry(model).profiles:
        eighths = ceil(profile.memory_mb / model.memory_mb * 8)
        assert floor(eighths / 8 * ceil(model.memory_mb / 1024) + 0.5) == profile.name.memory_gb


@every_mig_model
def test_as_many_instances_as_promised_fit_and_no_more(model: GpuModel) -> None:
    """Except where engines run out first (+me and the like), the placements give the largest count."""
    for profile in geometry(model).profiles:
        apart = 0
        end = 0
        for placement in profile.placements:
            if placement.start >= end:
                apart, end = apart + 1, placement.end
        assert end <= geometry(model).memory_slices
        assert apart == profile.max_instances or (profile.name.attributes and profile.max_instances == 1)


@every_mig_model
def test_instances_never_exceed_the_gpu(model: GpuModel) -> None:
    whole = geometry(model)
    for profile in whole.profiles:
        assert profile.max_instances * profile.name.gpu_slices <= whole.compute_slices
        assert profile.max_instances * profile.memory_mb <= whole.memory_mb
        largest = max(p.multiprocessors or 0 for p in whole.profiles)
        assert profile.max_instances * (profile.multiprocessors or 0) <= largest


@every_mig_model
def test_compute_profiles_fit_their_instance(model: GpuModel) -> None:
    for profile in geometry(model).profiles:
        slices = profile.name.gpu_slices
        assert profile.compute[-1].slices == slices
        assert [c.slices for c in profile.compute] == sorted({c.slices for c in profile.compute})
        for compute in profile.compute:
            assert len(compute.placements) == compute.max_instances
            assert all(p.size == compute.slices and p.end <= slices for p in compute.placements)


def test_only_ampere_needs_a_reset_to_change_its_mode() -> None:
    assert {m.architecture: m.mode_change_needs_reset for m in MIG} == {
        "ampere": True,
        "hopper": False,
        "blackwell": False,
    }
    assert not any(m.mode_change_needs_reset for m in catalogue() if m.geometry is None)


def test_what_was_not_read_for_a_model_is_marked() -> None:
    assert find_model("A30").assumed == {"compute"}
    assert all("placements" in p.assumed for p in geometry(find_model("A100-SXM4-80GB")).profiles)
    b200 = rows("B200")
    assert "memory_mb" in b200["3g.90gb"].assumed
    assert "memory_mb" not in b200["1g.23gb"].assumed
    assert find_model("A800-SXM4-80GB").assumed >= {"memory_mb", "profile_id", "engines"}
    assert find_model("H100 96GB").assumed >= {"names", "memory_mb"}
    for model in MIG:
        assert model.assumed >= frozenset().union(*(p.assumed for p in geometry(model).profiles))


def test_gpus_without_mig_are_known_too() -> None:
    without = {model.name: model.memory_mb for model in catalogue() if model.geometry is None}
    assert (without["Tesla T4"], without["NVIDIA L4"]) == (15360, 23034)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100 sxm4 80gb", "NVIDIA A100-SXM4-80GB"),
        ("H100-80GB-HBM3", "NVIDIA H100 80GB HBM3"),
        ("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe"),
        ("b300", "NVIDIA B300 SXM6 AC"),
        ("RTX PRO 6000 Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("T4", "Tesla T4"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100-sxm", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100", "NVIDIA H100"),
        ("H100 94GB", "NVIDIA H100"),
        ("H200", "NVIDIA H200"),
    ],
)
def test_a_model_is_found_by_its_name_or_a_short_form(name: str, expected: str) -> None:
    assert find_model(name).name == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("A100-SXM4-81GB", "'A100-SXM4-81GB' is not a known GPU model; did you mean A100-SXM4-80GB"),
        ("H1OO-80GB-HBM3", "did you mean H100 80GB HBM3"),
        ("H100-SXM5-80GB", "did you mean H100 80GB HBM3, "),
        ("H100-PCIE-80GB", "did you mean H100 80GB HBM3, H100 PCIe, "),
        ("H200-141GB", "'H200-141GB' is not a known GPU model; did you mean H200, H200 NVL?"),
        ("A30-24GB", "'A30-24GB' is not a known GPU model; did you mean A30?"),
        ("RTXPRO6000", "did you mean RTX PRO 6000 Blackwell Server Edition, "),
        ("x" * 100_000, "'" + "x" * 60 + "...' is not a known GPU model"),
        (
            "A100",
            "'A100' can be any of these GPU models: A100-SXM4-40GB, A100-PCIE-40GB, A100-SXM4-80GB, ",
        ),
        ("Radeon", "'Radeon' is not a known GPU model; known models: A30, "),
        ("", "'' is not a known GPU model"),
    ],
)
def test_an_unknown_or_ambiguous_model_is_answered_with_those_it_may_be(name: str, message: str) -> None:
    with pytest.raises(MigManagerError) as error:
        find_model(name)
    assert message in str(error.value)


def identity(model: str, device_id: int, subsystem_id: int = 0) -> GpuIdentity:
    return GpuIdentity(0, "GPU-0", "00000000:07:00.0", model, device_id, subsystem_id, True)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (identity("NVIDIA A100-SXM4-80GB", 0x20B210DE), "NVIDIA A100-SXM4-80GB"),
        (identity("NVIDIA PG509-210", 0x20B210DE, 0x162510DE), "NVIDIA A100-SXM4-80GB"),
        (identity("NVIDIA A100-PCIE-40GB", 0x20B110DE), "NVIDIA A100-PCIE-40GB"),
        (identity("NVIDIA GH200 120GB", 0x234210DE), "NVIDIA GH200 120GB"),
        (identity("NVIDIA A30", 0x999910DE), "NVIDIA A30"),
        (identity("NVIDIA RTX PRO 5000 Blackwell", 0x2BB310DE, 0x204D10DE), "NVIDIA RTX PRO 5000 Blackwell"),
        (identity("NVIDIA RTX PRO 5000 Blackwell", 0x2BB310DE, 0x204D1028), "NVIDIA RTX PRO 5000 Blackwell"),
        (identity("NVIDIA RTX PRO 5000 72GB Blackwell", 0x2BB310DE, 0x227A10DE), None),
        (identity("NVIDIA Z900", 0x999910DE), None),
    ],
)
def test_the_model_of_a_gpu_goes_by_its_pci_ids_then_by_its_name(
    gpu: GpuIdentity, expected: str | None
) -> None:
    found = model_of(gpu)
    assert (found.name if found else None) == expected


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.key)
def test_every_model_is_recognised_by_what_it_reports(model: GpuModel) -> None:
    for device_id in model.device_ids:
        for subsystem_id in model.subsystem_ids or (0,):
            assert model_of(identity(model.name, device_id, subsystem_id)) is model
    assert find_model(model.title) is model
    assert find_model(model.name.lower()) is model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xA100-SXM4-80GB", ["A100-SXM4-80GB"] * 8),
        ("2xH100-80GB-HBM3,1xA30", ["H100 80GB HBM3"] * 2 + ["A30"]),
        (" 2 X a30 , T4 ", ["A30", "A30", "T4"]),
        ("A30", ["A30"]),
    ],
)
def test_the_gpus_of_a_node_are_written_as_counts_and_models(text: str, expected: list[str]) -> None:
    assert [model.title for model in parse_gpus(text)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' names no GPU; write COUNTxMODEL, such as 8xA100-SXM4-80GB"),
        ("A30,", "'' names no GPU"),
        ("0xA30", "'0xA30' makes 0 GPUs; a node has 1 to 64"),
        ("60xA30,5xT4", "'5xT4' makes 65 GPUs; a node has 1 to 64"),
        ("2xA300", "'A300' is not a known GPU model; did you mean A30"),
        ("9" * 5000 + "xA30", "is not a known GPU model"),
    ],
)
def test_a_node_that_cannot_be_read_names_the_part(text: str, message: str) -> None:
    with pytest.raises(MigManagerError) as error:
        parse_gpus(text)
    assert message in str(error.value)


def test_the_catalogue_loads_fast_enough_for_every_start() -> None:
    """Best of three; it takes about 20 ms."""
    code = (
        "import time; from mig_manager.planning.catalogue import catalogue; "
        "start = time.process_time(); catalogue(); print(time.process_time() - start)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3)]
    limit = 0.3 if hasattr(yaml, "CSafeLoader") else 3
    assert min(float(run.stdout) for run in runs) < limit
