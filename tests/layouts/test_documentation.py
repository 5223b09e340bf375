"""What docs/layouts.md shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mig_manager.layouts.schema import LayoutFileError, parse_layouts

TEXT = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
(MESSAGES,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)


def test_the_good_examples_load() -> None:
    *good, _ = EXAMPLES
    assert [list(parse_layouts(text, file="config.yaml").layouts) for text in good] == [
        ["half-and-half"],
        ["mixed-node", "inference", "one-board"],
    ]


def test_the_bad_example_is_refused_as_shown() -> None:
    with pytest.raises(LayoutFileError) as error:
        parse_layouts(EXAMPLES[-1], file="config.yaml")
    assert f"{error.value}\n" == MESSAGES
