"""The layout file to start from loads, and fits the nodes that it speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.cli.main import command_line

EXAMPLE = Path(__file__).parents[2] / "config" / "layouts.yaml"


@pytest.mark.parametrize(
    ("gpus", "layout"),
    [
        ("2xA30", "notebooks"),
        ("4xA100-SXM4-80GB", "notebooks"),
        ("8xH100-80GB-HBM3", "notebooks"),
        ("4xA100-SXM4-80GB", "one-for-notebooks"),
        ("1xH200", "all-disabled"),
    ],
)
def test_the_example_layouts_fit_their_nodes(gpus: str, layout: str) -> None:
    assert command_line(["plan", "--simulate", gpus, "-f", str(EXAMPLE), "-c", layout, "-o", "json"]) == 0
