from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mig_manager.layouts.layout import LayoutEntry, PciFilter, Source
from mig_manager.layouts.schema import LayoutFileError, parse_layouts, read_layouts

HEAD = "version: v1\nmig-configs:\n"
OFF = "{devices: all, mig-enabled: false}"
FILTERS = (
    "a PCI device id such as 0x20B010DE, or 0x20B010DE:0x134F10DE with a subsystem id, or a list of them"
)


def entries(text: str, name: str = "x") -> tuple[LayoutEntry, ...]:
    return parse_layouts(HEAD + text, file="config.yaml").layouts[name].entries


def entry(*lines: str) -> LayoutEntry:
    """The only entry of a layout, from its keys; the first stands on line 4."""
    (only,) = entries("  x:\n    - " + "\n      ".join(lines) + "\n")
    return only


def counts(found: LayoutEntry) -> dict[str, int]:
    return {str(profile): count for profile, count in found.mig_devices}


def test_a_file_as_nvidia_publishes_them_means_what_it_says() -> None:
    book = parse_layouts(
        """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}

  # one entry a model
  all-balanced:
    - device-filter: ["0x233010DE", "0x20b210de"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
        "3g.40gb": 1
    - device-filter: "0x20B710DE"
      devices: [0,1]
      mig-enabled: true
      mig-devices:
        "1g.6gb+me": 1
""",
        file="config.yaml",
    )
    assert list(book.layouts) == ["all-disabled", "all-enabled", "all-balanced"]
    assert book.layouts["all-balanced"].source == Source("config.yaml", 13)
    assert book.layouts["all-disabled"].entries == (
        LayoutEntry("all", (), (), False, (), Source("config.yaml", 4)),
    )
    assert book.layouts["all-enabled"].entries == (
        LayoutEntry("all", (), (), True, (), Source("config.yaml", 8)),
    )
    first, second = book.layouts["all-balanced"].entries
    assert first.device_filter == (PciFilter(0x233010DE), PciFilter(0x20B210DE))
    assert [(str(profile), count) for profile, count in first.mig_devices] == [
        ("3g.40gb", 1),
        ("2g.20gb", 1),
        ("1g.10gb", 2),
    ]
    assert (second.devices, second.device_filter) == ((0, 1), (PciFilter(0x20B710DE),))
    assert counts(second) == {"1g.6gb+me": 1}
    assert second.source == Source("config.yaml", 21)


@pytest.mark.parametrize(
    "name", ["on", "off", "y", "n", "no", "1", "1.5", "0x10", "null", "~", "2024-01-01", "é"]
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_layout_names_are_text_whatever_yaml_takes_them_for(name: str, quote: str) -> None:
    book = parse_layouts(f"{HEAD}  {quote}{name}{quote}: [{OFF}]\n", file="config.yaml")
    assert list(book.layouts) == [name]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0x20B010DE", (PciFilter(0x20B010DE),)),
        ("'0x20b010de'", (PciFilter(0x20B010DE),)),
        ("0X20B010De", (PciFilter(0x20B010DE),)),
        ("548409566", (PciFilter(0x20B010DE),)),
        ("'0x20B010DE:0x134F10DE'", (PciFilter(0x20B010DE, 0x134F10DE),)),
        ("0x20B010DE:0x134f1028", (PciFilter(0x20B010DE, 0x134F1028),)),
        ("[0x20B010DE, '0x20B110DE', 0x20b010de]", (PciFilter(0x20B010DE), PciFilter(0x20B110DE))),
        ("[]", ()),
        ("''", ()),
        ("", ()),
    ],
)
def test_a_device_filter_is_an_id_or_a_list_of_ids(written: str, expected: tuple[PciFilter, ...]) -> None:
    assert entry(f"device-filter: {written}", "devices: all", "mig-enabled: no").device_filter == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("all", "all"),
        ("'all'", "all"),
        ("3", (3,)),
        ("[0, 2, 2]", (0, 2)),
        ("[]", ()),
        ("0000:07:00.0", ("00000000:07:00.0",)),
        ("['00000000:0a:00.0', 1:b:0, 7:00]", ("00000000:0A:00.0", "00000001:0B:00.0", "00000000:07:00.0")),
        (
            "[GPU-AAAAAAAA-bbbb-cccc-dddd-0123456789AB, 1]",
            ("GPU-aaaaaaaa-bbbb-cccc-dddd-0123456789ab", 1),
        ),
    ],
)
def test_devices_are_all_or_indices_or_uuids_or_bus_ids(written: str, expected: object) -> None:
    assert entry(f"devices: {written}", "mig-enabled: false").devices == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("A100-SXM4-80GB", ("A100-SXM4-80GB",)),
        ("[NVIDIA A30, 'H100 PCIe']", ("NVIDIA A30", "H100 PCIe")),
        ("100", ("100",)),
    ],
)
def test_a_gpu_model_is_a_name_or_a_list_of_names(written: str, expected: tuple[str, ...]) -> None:
    assert entry(f"gpu-model: {written}", "devices: all", "mig-enabled: false").gpu_models == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [(word, True) for word in ("true", "True", "yes", "on", "y", "ON")]
    + [(word, False) for word in ("false", "FALSE", "no", "off", "N")],
)
def test_mig_enabled_is_any_truth_of_yaml_1_1(written: str, expected: bool) -> None:
    assert entry("devices: all", f"mig-enabled: {written}", "mig-devices: {}").mig_enabled is expected


def test_profiles_keep_their_attributes_and_zero_counts_are_dropped() -> None:
    read = entry(
        "devices: all",
        "mig-enabled: true",
        "mig-devices: {1g.10gb: 0, 1g.10gb+me: 1, 1g.24gb-me: 2, 1g.24gb+me.all: 1, 1c.3g.20gb: 3,",
        "  3c.3g.40gb: 1}",
    )
    assert counts(read) == {
        "3g.40gb": 1,
        "1c.3g.20gb": 3,
        "1g.24gb+me.all": 1,
        "1g.24gb-me": 2,
        "1g.10gb+me": 1,
    }
    assert entry("devices: all", "mig-enabled: false", "mig-devices: {1g.5gb: 0}").mig_devices == ()
    assert entry("devices: all", "mig-enabled: false", "mig-devices:").mig_devices == ()


def test_anchors_aliases_and_merge_keys_work_as_yaml_says() -> None:
    text = """\
  base: &base
    - &off {devices: all, mig-enabled: false}
  same: *base
  merged:
    - <<: *off
      devices: [1]
    - <<: [{devices: [2]}, *off, {mig-enabled: true, gpu-model: A30}]
"""
    assert entries(text, "same") == entries(text, "base")
    first, second = entries(text, "merged")
    assert (first.devices, first.mig_enabled, first.source.line) == ((1,), False, 7)
    assert (second.devices, second.mig_enabled, second.gpu_models) == ((2,), False, ("A30",))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"version: v1\nmig-configs: \xff\n", ":2: not UTF-8 text: byte 0xFF cannot stand here"),
        ("version: v1".encode("utf-16"), ":1: not UTF-8 text: byte 0xFF cannot stand here"),
        (
            b"\x7fELF\x02\x01\x01\x00",
            ":1: column 1: the character U+007F cannot stand in YAML; is this text?",
        ),
        (b"", ":1: the file is empty; a layout file has version: v1 and mig-configs"),
    ],
)
def test_a_file_that_is_no_layout_file_is_named(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(LayoutFileError) as error:
        read_layouts(path)
    assert str(error.value) == f"{path}{expected}"


@pytest.mark.parametrize(
    ("name", "why"), [("missing.yaml", "No such file or directory"), (".", "Is a directory")]
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(LayoutFileError) as error:
        read_layouts(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: cannot be read: {why}"


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEAD}  x:\n    - {OFF}\n".replace("\n", "\r\n").encode())
    (only,) = read_layouts(path).layouts["x"].entries
    assert only.source == Source(str(path), 4)


def test_a_layout_file_error_survives_pickling() -> None:
    with pytest.raises(LayoutFileError) as error:
        parse_layouts(HEAD, file="config.yaml")
    copy = pickle.loads(pickle.dumps(error.value))
    assert (type(copy), str(copy), copy.findings) == (LayoutFileError, str(error.value), error.value.findings)
