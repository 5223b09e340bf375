from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import LayoutBook, resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.planning.catalogue import catalogue
from tests.layouts.nodes import generator_input, node

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def generated(gpus: str) -> LayoutBook:
    return generate_layouts(generator_input(gpus))


def counts(book: LayoutBook, name: str, gpus: str) -> dict[int, dict[str, int]]:
    """What a layout asks of each GPU that it selects."""
    target = resolve(book.get(name), node(gpus))
    return {t.gpu.index: {str(p): t.devices.count(p) for p in t.devices} for t in target.gpus}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (
            "1xA100-SXM4-80GB",
            {
                "all-7g.80gb": {"7g.80gb": 1},
                "all-4g.40gb": {"4g.40gb": 1},
                "all-3g.40gb": {"3g.40gb": 2},
                "all-2g.20gb": {"2g.20gb": 3},
                "all-1g.20gb": {"1g.20gb": 4},
                "all-1g.10gb": {"1g.10gb": 7},
                "all-1g.10gb.me": {"1g.10gb+me": 1},
                "all-balanced": {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
            },
        ),
        (
            "1xA30",
            {
                "all-4g.24gb": {"4g.24gb": 1},
                "all-2g.12gb": {"2g.12gb": 2},
                "all-2g.12gb.me": {"2g.12gb+me": 1},
                "all-1g.6gb": {"1g.6gb": 4},
                "all-1g.6gb.me": {"1g.6gb+me": 1},
                "all-balanced": {"2g.12gb": 1, "1g.6gb": 2},
            },
        ),
        (
            "1xRTX PRO 4500 Blackwell",
            {
                "all-2g.32gb": {"2g.32gb": 1},
                "all-2g.32gb.gfx": {"2g.32gb+gfx": 1},
                "all-1g.16gb": {"1g.16gb": 2},
                "all-1g.16gb.gfx": {"1g.16gb+gfx": 2},
                "all-1g.16gb.me.all": {"1g.16gb+me.all": 1},
                "all-1g.16gb-me": {"1g.16gb-me": 2},
            },
        ),
    ],
)
def test_a_model_gets_a_layout_a_profile_and_a_balanced_one(
    gpus: str, expected: dict[str, dict[str, int]]
) -> None:
    book = generated(gpus)
    assert set(book.layouts) == {"all-disabled", "all-enabled", *expected}
    assert {name: counts(book, name, gpus)[0] for name in expected} == expected
    assert all(
        entry.devices == "all" and not entry.gpu_models
        for found in book.layouts.values()
        for entry in found.entries
    )


def test_all_disabled_and_all_enabled_concern_every_gpu_with_mig() -> None:
    gpus = "1xA100-SXM4-80GB,1xT4,1xH100-80GB-HBM3"
    for name, enabled in (("all-disabled", False), ("all-enabled", True)):
        target = resolve(generated(gpus).get(name), node(gpus))
        assert [(t.gpu.index, t.mig_enabled, t.devices) for t in target.gpus] == [
            (0, enabled, ()),
            (2, enabled, ()),
        ]


def test_a_mixed_node_gets_an_entry_a_model() -> None:
    gpus = "1xA30,2xA100-SXM4-40GB,1xA100-SXM4-80GB,1xT4"
    book = generated(gpus)
    assert counts(book, "all-1g.10gb", gpus) == {1: {"1g.10gb": 4}, 2: {"1g.10gb": 4}, 3: {"1g.10gb": 7}}
    assert counts(book, "all-1g.6gb", gpus) == {0: {"1g.6gb": 4}}
    assert counts(book, "all-balanced", gpus) == {
        0: {"2g.12gb": 1, "1g.6gb": 2},
        1: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2},
        2: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2},
        3: {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
    }
    assert [entry.gpu_models for entry in book.get("all-1g.10gb").entries] == [
        ("NVIDIA A100-SXM4-40GB",),
        ("NVIDIA A100-SXM4-80GB",),
    ]


def test_boards_of_one_name_that_offer_different_things_are_told_apart_by_uuid() -> None:
    first, second = generator_input("2xA30")
    book = generate_layouts([first, replace(second, profiles=second.profiles[:1])])
    assert counts(book, "all-2g.12gb", "2xA30") == {0: {"2g.12gb": 2}}
    assert counts(book, "all-1g.6gb", "2xA30") == {0: {"1g.6gb": 4}, 1: {"1g.6gb": 4}}


def test_only_plain_profiles_make_a_balanced_gpu() -> None:
    (a30,) = generator_input("1xA30")
    without = tuple(row for row in a30.profiles if str(row[0]) != "2g.12gb")
    assert "all-balanced" not in generate_layouts([replace(a30, profiles=without)]).layouts


def test_a_node_without_mig_can_only_be_disabled() -> None:
    assert list(generated("2xT4").layouts) == ["all-disabled"]
    assert list(generate_layouts([]).layouts) == ["all-disabled"]


@pytest.mark.parametrize("model", [model.title for model in catalogue() if model.geometry])
def test_every_generated_layout_can_be_set_as_a_label_and_resolves(model: str) -> None:
    book = generated(f"2x{model}")
    for name, found in book.layouts.items():
        assert LABEL_VALUE.fullmatch(name)
        assert found.generated
        assert found.name == name
        assert [t.gpu.index for t in resolve(found, node(f"2x{model}")).gpus] == [0, 1]


def test_an_unknown_name_is_answered_with_the_generated_ones() -> None:
    with pytest.raises(
        MigManagerError, match=r"is not in the layouts generated for this hardware; did you mean all-1g\.6gb"
    ):
        generated("1xA30").get("all-1g.5gb")
