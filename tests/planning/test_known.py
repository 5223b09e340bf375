"""Entries held against the GPU models of the catalogue."""

from __future__ import annotations

import pytest

from mig_manager.errors import Reason
from mig_manager.layouts.layout import LayoutEntry
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.known import no_known_gpu, unknown_models
from tests.planning import published


def entry(devices: str, filters: str = "") -> LayoutEntry:
    text = f"{{devices: all, {filters}mig-enabled: true, mig-devices: {{{devices}}}}}"
    return parse_layouts(f"version: v1\nmig-configs: {{x: [{text}]}}\n", file="f").layouts["x"].entries[0]


@pytest.mark.parametrize("model", published.models())
def test_whatever_is_published_for_a_model_is_known(model: str) -> None:
    for layout in published.layouts(model):
        counts = {name: layout.count(name) for name in layout}
        assert no_known_gpu(entry(", ".join(f"{name}: {n}" for name, n in counts.items()))) is None, layout


@pytest.mark.parametrize(
    ("devices", "filters"),
    [
        ("", ""),
        ("1g.5gb: 7", ""),
        ("7g.79gb: 1", ""),
        ("1c.3g.40gb: 3", ""),
        ("1g.10gb: 7", "device-filter: 0x20B210DE, "),
        ("1g.10gb: 4", "device-filter: 0x20B010DE, "),
        ("1g.10gb: 4", "gpu-model: [A100-SXM4-80GB, A100-SXM4-40GB, L4], "),
        ("9g.999gb: 1", "gpu-model: X9000, "),
        ("9g.999gb: 1", "device-filter: 0x4FFE10DE, "),
        ("3g.95gb: 2", ""),
        ("1g.24gb: 2", "device-filter: '0x2BB310DE:0x204D10DE', "),
    ],
)
def test_what_some_known_or_unknown_model_may_take_is_let_pass(devices: str, filters: str) -> None:
    assert no_known_gpu(entry(devices, filters)) is None


@pytest.mark.parametrize(
    ("devices", "filters", "reason", "says"),
    [
        (
            "2g.11gb: 1",
            "",
            Reason.UNSUPPORTED_PROFILE,
            "no known GPU model has a profile 2g.11gb; did you mean 2g.12gb or 2g.10gb?",
        ),
        (
            "2g.10gb: 3",
            "device-filter: 0x20B210DE, ",
            Reason.UNSUPPORTED_PROFILE,
            "NVIDIA A100-SXM4-80GB has no profile 2g.10gb; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, "
            "4g.40gb, 7g.80gb. Did you mean 2g.20gb?",
        ),
        (
            "1g.5gb: 7",
            "gpu-model: [A100-SXM4-40GB, A100-SXM4-80GB], ",
            Reason.UNSUPPORTED_PROFILE,
            "NVIDIA A100-SXM4-80GB has no profile 1g.5gb; it has 1g.10gb",
        ),
        (
            "3g.40gb: 1, 1g.5gb: 1",
            "",
            Reason.UNSUPPORTED_PROFILE,
            "no known GPU model has all of 3g.40gb, 1g.5gb",
        ),
        (
            "1g.6gb: 5",
            "",
            Reason.IMPOSSIBLE_LAYOUT,
            "no GPU model that has these profiles can hold them; for one, NVIDIA A30 can't hold 5x1g.6gb",
        ),
        ("1g.6gb: 5", "gpu-model: A30, ", Reason.IMPOSSIBLE_LAYOUT, "NVIDIA A30 can't hold 5x1g.6gb: "),
        ("1g.6gb: 4", "gpu-model: L40S, ", Reason.INVALID_LAYOUT, "NVIDIA L40S has no MIG"),
        ("1g.6gb: 4", "gpu-model: [L40S, L4], ", Reason.INVALID_LAYOUT, "NVIDIA L4 has no MIG"),
        (
            "1g.10gb: 7",
            "device-filter: [0x20B510DE, 0x20B010DE], ",
            Reason.IMPOSSIBLE_LAYOUT,
            "NVIDIA A100-SXM4-40GB can't hold 7x1g.10gb; ",
        ),
    ],
)
def test_what_no_model_can_be_is_refused_with_the_nearest(
    devices: str, filters: str, reason: Reason, says: str
) -> None:
    error = no_known_gpu(entry(devices, filters))
    assert error is not None
    assert (error.reason, error.message[: len(says)]) == (reason, says)


def test_model_names_that_nobody_knows_are_told_with_the_nearest() -> None:
    found = unknown_models(entry("1g.6gb: 1", "gpu-model: [A30, A1000-SXM4-80GB, Nonsense], "))
    assert found == (
        ("A1000-SXM4-80GB", "; did you mean NVIDIA A100-SXM4-80GB or NVIDIA A100-SXM4-40GB?"),
        ("Nonsense", ""),
    )
