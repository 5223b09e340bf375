from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook, content_hash, resolve
from mig_manager.layouts.layout import GpuIdentity, Layout, NodeTarget
from mig_manager.layouts.schema import parse_layouts
from tests.layouts.nodes import node

ON = "mig-enabled: true, mig-devices: {1g.10gb: 7}"
OTHER = "mig-enabled: true, mig-devices: {3g.40gb: 2}"
OFF = "mig-enabled: false"
A100 = "0x20B210DE"
H100 = "0x233010DE"
EIGHT = "8xA100-SXM4-80GB"
NOTHING = "f:3: layout x: no entry selects any GPU of this node; it has"
MIXED = "2xA100-SXM4-80GB,1xT4,1xH100-80GB-HBM3"


def layout(*entries: str) -> Layout:
    """A layout whose n-th entry stands on line 3 + n."""
    lines = "".join(f"    - {{{entry}}}\n" for entry in entries)
    return parse_layouts(f"version: v1\nmig-configs:\n  x:\n{lines}", file="f").layouts["x"]


def wishes(target: NodeTarget) -> dict[int, str]:
    return {t.gpu.index: " ".join(map(str, t.devices)) if t.mig_enabled else "off" for t in target.gpus}


def refusal(gpus: tuple[GpuIdentity, ...], *entries: str) -> list[str]:
    with pytest.raises(MigManagerError) as error:
        resolve(layout(*entries), gpus)
    assert error.value.reason is Reason.INVALID_LAYOUT
    return str(error.value).split("\n")


@pytest.mark.parametrize(
    ("gpus", "entry", "selected"),
    [
        (EIGHT, f"devices: all, {ON}", [0, 1, 2, 3, 4, 5, 6, 7]),
        (EIGHT, f"devices: [5, 1], {ON}", [1, 5]),
        (EIGHT, f"devices: 7, {ON}", [7]),
        (MIXED, f"devices: all, {ON}", [0, 1, 3]),
        (MIXED, f"devices: all, {OFF}", [0, 1, 3]),
        (MIXED, f"devices: [1, 2], {OFF}", [1]),
        (MIXED, f"devices: all, device-filter: {A100}, {ON}", [0, 1]),
        (MIXED, f"devices: all, device-filter: [{H100}, 0x20B710DE], {ON}", [3]),
        (MIXED, f"devices: [0, 3], device-filter: {A100}, {ON}", [0]),
        (MIXED, f"devices: all, device-filter: '{A100}:0x146310DE', {ON}", [0, 1]),
        (MIXED, f"devices: all, device-filter: ['{A100}:0x146410DE', {H100}], {ON}", [3]),
        (MIXED, f"devices: all, gpu-model: a100 sxm4 80gb, {ON}", [0, 1]),
        (MIXED, f"devices: all, gpu-model: [NVIDIA-H100-80GB-HBM3, A30], {ON}", [3]),
        (MIXED, f"devices: all, gpu-model: A100-SXM4-80GB, device-filter: [{A100}, {H100}], {ON}", [0, 1]),
        (MIXED, f"devices: 00000000:08:00.0, {ON}", [1]),
        (MIXED, f"devices: ['0000:0a:00.0', 7:0], {ON}", [0, 3]),
        (MIXED, f"devices: GPU-00000001-AAAA-bbbb-cccc-0123456789ab, {ON}", [1]),
    ],
)
def test_an_entry_selects_gpus(gpus: str, entry: str, selected: list[int]) -> None:
    here = node(gpus)
    target = resolve(layout(entry), here)
    assert [t.gpu.index for t in target.gpus] == selected
    assert target.untouched == tuple(gpu.index for gpu in here if gpu.index not in selected)


def test_a_target_lists_one_profile_a_device_larger_first_with_its_source() -> None:
    target = resolve(
        layout(
            "devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}", f"devices: [0], {OFF}"
        ),
        node("2xA100-SXM4-80GB"),
    )
    assert wishes(target) == {0: "off", 1: "3g.40gb 1g.10gb 1g.10gb"}
    assert [str(t.source) for t in target.gpus] == ["f:5", "f:4"]


def test_the_order_in_which_gpus_are_given_does_not_matter() -> None:
    entries = layout(f"devices: [1], {ON}", f"devices: [0], {OFF}")
    here = node("3xA100-SXM4-80GB")
    assert resolve(entries, here[::-1]) == resolve(entries, here)


@pytest.mark.parametrize("devices", ["all", "[0, 5]", "GPU-aaaaaaaa-aaaa-bbbb-cccc-0123456789ab", "ff:00.0"])
def test_an_entry_whose_filter_no_gpu_passes_speaks_of_other_nodes(devices: str) -> None:
    target = resolve(
        layout(f"devices: {devices}, device-filter: {H100}, {OTHER}", f"devices: all, {ON}"),
        node("1xA100-SXM4-80GB"),
    )
    assert wishes(target) == {0: " ".join(["1g.10gb"] * 7)}


@pytest.mark.parametrize(
    ("gpus", "entries", "expected"),
    [
        (EIGHT, [f"devices: [4, 5, 6, 7], {ON}", f"devices: others, {OFF}"], "off off off off 7 7 7 7"),
        (EIGHT, [f"devices: others, {OFF}", f"devices: [0, 7], {ON}"], "7 off off off off off off 7"),
        (MIXED, [f"devices: [0], {ON}", f"devices: others, {OFF}"], "7 off - off"),
        (MIXED, [f"devices: [0, 2], {OFF}", f"devices: others, {ON}"], "off 7 - 7"),
        (MIXED, [f"devices: [0], {ON}", f"devices: others, device-filter: {A100}, {OFF}"], "7 off - -"),
        (
            MIXED,
            [
                f"devices: [0], {ON}",
                f"devices: others, gpu-model: H100-80GB-HBM3, {ON}",
                f"devices: others, device-filter: {A100}, {OFF}",
            ],
            "7 off - 7",
        ),
        (
            MIXED,
            [f"devices: [5], device-filter: 0x20B710DE, {ON}", f"devices: others, {OFF}"],
            "off off - off",
        ),
        ("2xA30", [f"devices: all, {ON}", f"devices: others, {OFF}"], "7 7"),
        ("1xT4", [f"devices: others, {OFF}"], "-"),
    ],
)
def test_an_entry_for_the_others_means_those_that_no_further_entry_selects(
    gpus: str, entries: list[str], expected: str
) -> None:
    here = node(gpus)
    target = resolve(layout(*entries), here)
    wanted = {t.gpu.index: str(len(t.devices)) if t.mig_enabled else "off" for t in target.gpus}
    assert " ".join(wanted.get(gpu.index, "-") for gpu in here) == expected


def test_two_entries_for_the_others_that_ask_one_gpu_for_different_things_conflict() -> None:
    entries = f"devices: [0], {ON}", f"devices: others, {OFF}", f"devices: others, {OTHER}"
    (line,) = refusal(node("2xA100-SXM4-80GB"), *entries)
    assert line.startswith(
        "f:6: layout x: this entry asks for 2x 3g.40gb on GPU 1, but the one at f:5 asks for MIG off"
    )


@pytest.mark.parametrize(
    "pair",
    [
        (f"devices: all, {ON}", f"devices: [0], {ON}"),
        (f"devices: all, {OFF}", f"devices: 0000:07:00.0, {OFF}"),
        (
            "devices: all, mig-enabled: true, mig-devices: {3g.40gb: 1}",
            "devices: [0], mig-enabled: true, mig-devices: {3c.3g.40gb: 1, 1g.10gb: 0}",
        ),
    ],
)
def test_entries_that_ask_for_the_same_do_not_conflict(pair: tuple[str, str]) -> None:
    target = resolve(layout(*pair), node("1xA100-SXM4-80GB"))
    assert [str(t.source) for t in target.gpus] == ["f:4"]


def test_entries_that_ask_for_different_things_conflict_and_both_lines_are_named() -> None:
    assert refusal(
        node("2xA100-SXM4-80GB"), f"devices: [1], {ON}", f"devices: all, {OFF}", f"devices: [1], {OTHER}"
    ) == [
        "f:5: layout x: this entry asks for MIG off on GPU 1, but the one at f:4 asks for 7x 1g.10gb; "
        "a GPU takes one of them",
        "f:6: layout x: this entry asks for 2x 3g.40gb on GPU 1, but the one at f:4 asks for 7x 1g.10gb; "
        "a GPU takes one of them",
    ]


def test_mig_on_without_devices_conflicts_with_mig_off() -> None:
    (line,) = refusal(
        node("1xA30"), f"devices: all, {OFF}", "devices: all, mig-enabled: true, mig-devices: {}"
    )
    assert "asks for MIG on without devices on GPU 0, but the one at f:4 asks for MIG off" in line


@pytest.mark.parametrize(
    ("gpus", "entries", "expected"),
    [
        (EIGHT, [f"devices: 9, {ON}"], ["f:4: layout x: there is no GPU 9; the GPUs are 0 to 7"]),
        (EIGHT, [f"devices: [0, 8], {OFF}"], ["f:4: layout x: there is no GPU 8; the GPUs are 0 to 7"]),
        ("1xA30", [f"devices: [1], {ON}"], ["f:4: layout x: there is no GPU 1; the only GPU is 0"]),
        (
            "2xA30",
            [f"devices: 0:70:00.0, {ON}", f"devices: GPU-00000001-aaaa-bbbb-cccc-0123456789ff, {ON}"],
            [
                "f:4: layout x: there is no GPU 00000000:70:00.0; the GPUs are 00000000:07:00.0, "
                "00000000:08:00.0; did you mean 00000000:07:00.0?",
                "f:5: layout x: there is no GPU GPU-00000001-aaaa-bbbb-cccc-0123456789ff; the GPUs are "
                "GPU-00000000-aaaa-bbbb-cccc-0123456789ab, GPU-00000001-aaaa-bbbb-cccc-0123456789ab; "
                "did you mean GPU-00000001-aaaa-bbbb-cccc-0123456789ab?",
            ],
        ),
        (MIXED, [f"devices: [2], {ON}"], ["f:4: layout x: GPU 2 (Tesla T4) has no MIG mode to enable"]),
        (
            "2xA100-SXM4-80GB,1xT4",
            [f"devices: all, device-filter: {H100}, {ON}", f"devices: all, gpu-model: A30, {OFF}"],
            [
                f"{NOTHING} NVIDIA A100-SXM4-80GB (0x20B210DE), Tesla T4 (0x1EB810DE, without MIG); "
                f"the layout is for {H100}, A30"
            ],
        ),
        (
            "1xA30,1xA100-SXM4-80GB",
            [f"devices: all, gpu-model: [A100-SXM4-81GB, A3O], device-filter: '{A100}:0x146410DE', {ON}"],
            [
                f"{NOTHING} NVIDIA A30 (0x20B710DE), NVIDIA A100-SXM4-80GB (0x20B210DE); the layout is for "
                f"{A100}:0x146410DE, A100-SXM4-81GB, A3O; did you mean NVIDIA A100-SXM4-80GB or NVIDIA A30?"
            ],
        ),
        (
            "1xT4",
            [f"devices: all, device-filter: [{', '.join(f'0x{n}10DE' for n in range(2000, 2010))}], {ON}"],
            [
                f"{NOTHING} Tesla T4 (0x1EB810DE, without MIG); the layout is for "
                f"{', '.join(f'0x{n}10DE' for n in range(2000, 2008))} and 2 more"
            ],
        ),
        (
            "1xT4",
            [f"devices: all, {ON}"],
            [f"{NOTHING} Tesla T4 (0x1EB810DE, without MIG)"],
        ),
        (
            "1xA30",
            [f"devices: [], {ON}"],
            [f"{NOTHING} NVIDIA A30 (0x20B710DE)"],
        ),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(
    gpus: str, entries: list[str], expected: list[str]
) -> None:
    assert refusal(node(gpus), *entries) == expected


def test_a_node_without_gpus_fits_no_layout() -> None:
    assert refusal((), f"devices: all, {OFF}") == ["f:3: layout x: there is no GPU on this node"]


def test_mig_off_is_what_gpus_without_mig_already_are() -> None:
    target = resolve(layout(f"devices: all, {OFF}"), node("2xT4"))
    assert (target.gpus, target.untouched) == ((), (0, 1))


def test_a_gpu_that_the_catalogue_does_not_know_is_selected_by_its_reported_name() -> None:
    here = tuple(replace(gpu, model="NVIDIA Z900-SXM9-1TB", device_id=0x999910DE) for gpu in node("1xA30"))
    assert len(resolve(layout(f"devices: all, gpu-model: z900 sxm9 1tb, {ON}"), here).gpus) == 1


def test_the_largest_layout_resolves_in_bounded_time() -> None:
    many = layout(*[f"devices: {[*range(64)] * 4}, device-filter: [{A100}, {H100}], {ON}"] * 256)
    start = time.process_time()
    assert len(resolve(many, node("64xA100-SXM4-80GB")).gpus) == 64
    assert time.process_time() - start < 5


HASHED = layout(f"devices: [0], {ON}", f"devices: [1], {OTHER}")


def test_the_content_hash_is_16_hex_digits() -> None:
    digits = content_hash(resolve(HASHED, node(EIGHT)))
    assert len(digits) == 16
    assert int(digits, 16) >= 0


@pytest.mark.parametrize(
    "same",
    [
        layout(f"devices: [1], {OTHER}", f"devices: [0], {ON}"),
        layout(
            f"devices: 7:0, {ON}, gpu-model: A100-SXM4-80GB", f"devices: [1], {OTHER}", f"devices: 1, {OTHER}"
        ),
        layout(
            f"devices: [0], {ON}", f"devices: [1], {OTHER}", f"devices: [0], device-filter: {H100}, {OFF}"
        ),
        replace(HASHED, name="other"),
    ],
)
def test_the_content_hash_does_not_see_how_a_layout_is_written(same: Layout) -> None:
    assert content_hash(resolve(same, node(EIGHT))) == content_hash(resolve(HASHED, node(EIGHT)))


@pytest.mark.parametrize(
    "different",
    [
        layout(f"devices: [1], {ON}", f"devices: [0], {OTHER}"),
        layout(f"devices: [0], {ON}"),
        layout(f"devices: [0], {ON}", f"devices: [1], {OFF}"),
        layout(f"devices: [0], {ON}", "devices: [1], mig-enabled: true, mig-devices: {}"),
        layout(f"devices: [0], {ON}", "devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 1}"),
        layout(f"devices: [0], {ON}", "devices: [1], mig-enabled: true, mig-devices: {1c.3g.40gb: 2}"),
        layout(f"devices: [0], {ON}", f"devices: [1], {OTHER}", f"devices: [2], {OFF}"),
    ],
)
def test_the_content_hash_sees_every_change_of_meaning(different: Layout) -> None:
    assert content_hash(resolve(different, node(EIGHT))) != content_hash(resolve(HASHED, node(EIGHT)))


def book(file: str, **layouts: Layout) -> LayoutBook:
    return LayoutBook({name.replace("_", "-"): found for name, found in layouts.items()}, file)


def test_an_unknown_layout_is_answered_with_the_valid_names_nearest_first() -> None:
    known = book("config.yaml", all_disabled=HASHED, all_balanced=HASHED, custom=HASHED)
    with pytest.raises(MigManagerError) as error:
        known.get("all-balnaced")
    assert error.value.reason is Reason.UNKNOWN_LAYOUT
    assert str(error.value) == (
        "layout all-balnaced is not in config.yaml; did you mean all-balanced? "
        "Valid names: all-balanced, all-disabled, custom"
    )
    with pytest.raises(
        MigManagerError, match=r"layout nope is not in config\.yaml\. Valid names: all-disabled, "
    ):
        known.get("nope")


def test_a_long_list_of_names_is_cut() -> None:
    known = LayoutBook({f"name-{n}": HASHED for n in range(90)}, "f")
    with pytest.raises(MigManagerError, match=r"name-39 and 50 more$"):
        known.get("x")


def test_the_file_wins_over_generated_layouts_which_serve_the_rest() -> None:
    merged = book("config.yaml", a=HASHED).merged_over(
        book("the hardware", a=layout(f"devices: all, {OFF}"), b=HASHED)
    )
    assert merged.get("a") is HASHED
    assert merged.get("b") is HASHED
    with pytest.raises(MigManagerError, match=r"layout c is not in config\.yaml or the hardware"):
        merged.get("c")
