"""Properties of the layout file parser over random books and random damage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.layouts.layout import Layout, LayoutEntry, PciFilter, Source
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.schema import LayoutFileError, parse_layouts

NOWHERE = Source("f", 1)

profiles = st.builds(
    lambda gpu, missing, memory, suffix: MigProfile.parse(
        f"{max(1, gpu - missing)}c.{gpu}g.{memory}gb{suffix}"
    ),
    st.integers(1, 8),
    st.integers(0, 7),
    st.integers(1, 300),
    st.sampled_from(["", "+me", "+gfx", "+me.all", "-me", "+gfx,me"]),
)
devices: st.SearchStrategy[Literal["all"] | tuple[int | str, ...]] = st.one_of(
    st.just("all"),
    st.lists(
        st.one_of(
            st.integers(0, 99),
            st.uuids().map(lambda uuid: f"GPU-{uuid}"),
            st.builds("{:08X}:{:02X}:{:02X}.{}".format, *map(st.integers, [0] * 4, [65535, 255, 31, 7])),
        ),
        unique=True,
        max_size=4,
    ).map(tuple),
)
filters = st.builds(
    lambda device, subsystem: PciFilter(device << 16 | 0x10DE, subsystem),
    st.integers(1, 0xFFFF),
    st.none() | st.integers(1, 0xFFFFFFFF),
)
model_names = st.text("abcXYZ019 -", min_size=1, max_size=20).filter(
    lambda name: re.search(r"\w", name) is not None
)


@st.composite
def layout_entries(draw: st.DrawFn) -> LayoutEntry:
    enabled = draw(st.booleans())
    counts = draw(st.dictionaries(profiles, st.integers(1, 20), max_size=4)) if enabled else {}
    return LayoutEntry(
        devices=draw(devices),
        device_filter=tuple(draw(st.lists(filters, unique=True, max_size=3))),
        gpu_models=tuple(draw(st.lists(model_names, unique=True, max_size=2))),
        mig_enabled=enabled,
        mig_devices=tuple(sorted(counts.items())),
        source=NOWHERE,
    )


names = st.one_of(
    st.sampled_from(
        ["on", "off", "y", "no", "1", "0x1F", "null", "~", "<<", "=", "1e3", "2001-01-01", "a: b", "- x"]
    ),
    st.text(
        st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn"]),
        min_size=1,
        max_size=40,
    ),
    st.from_regex(r"all-[1-7]g\.[0-9]{1,3}gb(\.me)?", fullmatch=True),
)
books = st.dictionaries(names, st.lists(layout_entries(), min_size=1, max_size=3), min_size=1, max_size=4)


def as_data(book: Mapping[str, list[LayoutEntry]]) -> dict[str, Any]:
    return {
        "version": "v1",
        "mig-configs": {name: [written(e) for e in found] for name, found in book.items()},
    }


def written(entry: LayoutEntry) -> dict[str, Any]:
    data: dict[str, Any] = {"devices": entry.devices if entry.devices == "all" else list(entry.devices)}
    if entry.device_filter:
        data["device-filter"] = [
            f"0x{wanted.device_id:08x}" + (f":0x{wanted.subsystem_id:X}" if wanted.subsystem_id else "")
            for wanted in entry.device_filter
        ]
    if entry.gpu_models:
        data["gpu-model"] = list(entry.gpu_models)
    data["mig-enabled"] = entry.mig_enabled
    if entry.mig_enabled:
        data["mig-devices"] = {str(profile): count for profile, count in entry.mig_devices}
    return data


def without_lines(layout: Layout) -> list[LayoutEntry]:
    return [replace(entry, source=NOWHERE) for entry in layout.entries]


@given(books, st.sampled_from([True, False, None]), st.booleans(), st.sampled_from([20, 80, 1000]))
@settings(max_examples=100)
def test_a_book_written_as_yaml_reads_as_the_same_book(
    book: dict[str, list[LayoutEntry]], flow: bool | None, sort: bool, width: int
) -> None:
    text = yaml.safe_dump(
        as_data(book), default_flow_style=flow, sort_keys=sort, width=width, allow_unicode=True
    )
    read = parse_layouts(text, file="f")
    assert {name: without_lines(layout) for name, layout in read.layouts.items()} == book
    assert all(name == layout.name for name, layout in read.layouts.items())


@given(books, st.data())
@settings(max_examples=50)
def test_a_wrong_value_is_found_on_its_line(book: dict[str, list[LayoutEntry]], data: st.DataObject) -> None:
    lines = yaml.safe_dump(as_data(book), default_flow_style=False, allow_unicode=True, width=1000).split(
        "\n"
    )
    places = [at for at, line in enumerate(lines) if re.match(r"^    mig-enabled: (true|false)$", line)]
    at = data.draw(st.sampled_from(places))
    lines[at] = "    mig-enabled: perhaps"
    error = refusal("\n".join(lines))
    assert error is not None
    (finding,) = error.findings
    assert finding.source.line == at + 1
    assert finding.path.endswith(".mig-enabled")
    assert finding.text == "found perhaps; allowed: true, false"


PIECES = [
    "\n",
    "  ",
    "\t",
    "-",
    ":",
    ": ",
    "- ",
    "?",
    "|",
    ">",
    "%",
    "@",
    "`",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "!x ",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "#",
    "---\n",
    "...\n",
    "null",
    "~",
    "true",
    "-1",
    "1.5",
    "1e9",
    "0x10",
    "\\",
    "\x00",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ud800",
    "\U0010ffff",
    "all",
    "devices",
    "mig-devices: {1g.5gb: 1}",
    "1g.10gb",
    "9" * 5000,
]


@st.composite
def damage(draw: st.DrawFn) -> str:
    book = draw(books)
    flow = draw(st.sampled_from([True, False, None]))
    text = yaml.safe_dump(as_data(book), default_flow_style=flow, allow_unicode=True)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        kind = draw(st.sampled_from(["insert", "delete", "repeat", "swap"]))
        if kind == "insert":
            text = text[:start] + draw(st.sampled_from(PIECES)) + text[start:]
        elif kind == "delete":
            text = text[:start] + text[end:]
        elif kind == "repeat":
            text = text[:end] + text[start:]
        else:
            lines = text.split("\n")
            one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines)
    return text


def refusal(text: str) -> LayoutFileError | None:
    try:
        parse_layouts(text, file="f")
    except LayoutFileError as error:
        return error
    return None


@given(damage() | st.text(max_size=300))
@settings(max_examples=200)
def test_damaged_text_is_read_or_refused_with_line_numbers(text: str) -> None:
    error = refusal(text)
    if error is not None:
        last = len(re.split("\r\n|[\n\r\x85\u2028\u2029]", text)) + 1
        assert error.findings
        assert all(1 <= finding.source.line <= last for finding in error.findings)
        assert all(
            re.match(r"f:\d+: \S", line) for line in str(error).split("\n") if line != "there may be more"
        )
        str(error).encode()
