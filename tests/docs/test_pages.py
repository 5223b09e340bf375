"""The pages say what is true of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mig_manager.errors import Reason

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]


def test_every_reason_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert sections == list(Reason)


def test_the_table_of_retries_is_the_one_that_the_daemon_follows() -> None:
    row = next(
        line for line in (DOCS / "troubleshooting.md").read_text().splitlines() if "| UnknownLayout" in line
    )
    transient, lasting = (re.findall(r"\w+", cell) for cell in row.strip("|").split("|"))
    assert transient == [reason for reason in Reason if reason.transient]
    assert lasting == [reason for reason in Reason if not reason.transient]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
