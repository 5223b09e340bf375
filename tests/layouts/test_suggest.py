from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mig_manager.layouts.models import same_model
from mig_manager.layouts.suggest import edit_distance, guess_profile, nearest

A100_80 = ["7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb", "1g.10gb+me"]
NAMES = [f"all-{name.replace('+', '.')}" for name in A100_80] + [
    "all-disabled",
    "all-enabled",
    "all-balanced",
    "custom",
]

KEYS = ["devices", "device-filter", "gpu-model", "mig-enabled", "mig-devices"]


@pytest.mark.parametrize(
    ("word", "choices", "expected"),
    [
        ("2g.10gb", A100_80, "2g.20gb"),
        ("1g.5gb", A100_80, "1g.10gb"),
        ("7g.79gb", A100_80, "7g.80gb"),
        ("1g.20gb+me", A100_80, "1g.10gb+me"),
        ("2g.20gb+me", A100_80, "2g.20gb"),
        ("3c.3g.20gb", A100_80, "3g.40gb"),
        ("all-1g.10bg", NAMES, "all-1g.10gb"),
        ("all-2g.10gb", NAMES, "all-2g.20gb"),
        ("1g.10gb+me", NAMES, "all-1g.10gb.me"),
        ("nvidia.com/mig-3g.40gb", NAMES, "all-3g.40gb"),
        ("balanced", NAMES, "all-balanced"),
        ("all-blanced", NAMES, "all-balanced"),
        ("ALL-DISABLED", NAMES, "all-disabled"),
        ("cutsom", NAMES, "custom"),
        ("mig-device", KEYS, "mig-devices"),
        ("mig_enabled", KEYS, "mig-enabled"),
        ("migDevices", KEYS, "mig-devices"),
        ("device", KEYS, "devices"),
    ],
)
def test_the_nearest_choice_is_what_was_meant(word: str, choices: list[str], expected: str) -> None:
    assert nearest(word, choices)[0] == expected


@pytest.mark.parametrize("word", ["", "nope", "x", "production-layout", "5g.999gb", "é" * 10_000])
def test_what_resembles_nothing_gets_no_suggestion(word: str) -> None:
    assert nearest(word, NAMES) == ()


@given(st.text(max_size=200), st.lists(st.text(max_size=100), max_size=20), st.integers(0, 5))
def test_suggestions_are_distinct_choices_and_no_more_than_asked_for(
    word: str, choices: list[str], n: int
) -> None:
    found = nearest(word, choices, n)
    assert len(found) <= n
    assert len(set(found)) == len(found)
    assert set(found) <= set(choices)


@given(st.text("ab1g.", max_size=12), st.text("ab1g.", max_size=12), st.text("ab1g.", max_size=12))
def test_the_edit_distance_is_zero_only_for_equals_symmetric_and_bounded(a: str, b: str, c: str) -> None:
    assert (edit_distance(a, b) == 0) is (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert edit_distance(a + c, b + c) <= edit_distance(a, b)


def test_a_swap_of_neighbours_is_one_edit() -> None:
    assert edit_distance("10bg", "10gb") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1G.10GB", "1g.10gb"),
        ("1g10gb", "1g.10gb"),
        ("1g.10", "1g.10gb"),
        ("mig-1g.10gb", "1g.10gb"),
        ("1c3g.20gb", "1c.3g.20gb"),
        ("1g.24gb.me.all", "1g.24gb+me.all"),
        ("1g.24gb.gfx", "1g.24gb+gfx"),
        ("2g.48gbs-me", "2g.48gb-me"),
        ("1g.10gb", None),
        ("0g.10gb", None),
        ("seven", None),
    ],
)
def test_a_malformed_profile_is_guessed(text: str, expected: str | None) -> None:
    assert guess_profile(text) == expected


@pytest.mark.parametrize(
    ("written", "reported", "same"),
    [
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("a100 sxm4 80gb", "NVIDIA A100-SXM4-80GB", True),
        ("A100SXM480GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe", True),
        ("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3", True),
        ("T4", "Tesla T4", True),
        ("NVIDIA", "NVIDIA A30", False),
        ("A100", "NVIDIA A100-SXM4-80GB", False),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("H100", "NVIDIA H100 NVL", False),
        ("A30", "NVIDIA A300", False),
    ],
)
def test_a_model_name_is_the_same_whatever_its_case_and_separators(
    written: str, reported: str, same: bool
) -> None:
    assert same_model(written, reported) is same
