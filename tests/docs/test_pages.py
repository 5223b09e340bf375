"""The pages say what is true of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from docs.site import PAGES as PAGES_BESIDE
from docs.site import links, site_links
from mig_manager.daemon.settings import PREFIX, Settings, environment_name, load_settings
from mig_manager.errors import Reason
from tests.security.bed import REAL

DOCS = Path(__file__).parents[2] / "docs"
OF_THE_TESTS = ("MIG_MANAGER_REQUIRE", "MIG_MANAGER_EXHAUSTIVE", REAL)
"""Variables that only the tests go by."""
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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text).strip()) for text in words}


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)", without_code(page)):
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            assert anchor[1:] in anchors(there), f"{target}{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_are_shown_with_values_that_they_take(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(map(environment_name, Settings.model_fields))
    for name, value in re.findall(r"(?:^|`)([A-Z][A-Z_]+)=([^`\n]+)", page.read_text(), re.MULTILINE):
        if name in known:
            monkeypatch.setenv(name, value)
        else:
            assert not name.startswith(PREFIX) or name in OF_THE_TESTS, name
    load_settings(node_name="gpu-1")


def site() -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())
    return found


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"[\w-]+\.md", str(site()["nav"])))
    assert listed == {*PAGES_BESIDE.values(), *(page.name for page in DOCS.glob("*.md"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_in_the_site(page: Path) -> None:
    """Pages and pictures to their files below docs/, other files to copies; none leads out of the site."""
    names = {DOCS.parent / name: new for name, new in PAGES_BESIDE.items()}
    there = {page.name for page in DOCS.glob("*.md")} | set(names.values())
    linked = {path for each in PAGES for path in links(each.read_text(), each.parent)}
    copied = {f"files/{path.relative_to(DOCS.parent)}" for path in linked if path.is_file()}
    pictures = {f"screens/{path.name}" for path in (DOCS / "screens").glob("*.svg")}
    moved = re.sub(r"```.*?```", "", site_links(page.read_text(), page.parent), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", moved):
        assert target in there | copied | pictures, target


def test_every_picture_is_shown_somewhere() -> None:
    linked = {path for page in PAGES for path in links(page.read_text(), page.parent)}
    assert set((DOCS / "screens").iterdir()) == {path for path in linked if path.suffix == ".svg"}


def test_the_map_of_the_rooms_is_that_of_the_code() -> None:
    page = (DOCS / "architecture.md").read_text()
    package = DOCS.parent / "mig_manager"
    rooms = re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    found = sorted(init.parent.relative_to(package).as_posix() for init in package.glob("*/**/__init__.py"))
    assert sorted(name.replace(".", "/") for name, _ in rooms) == found
    for name, files in rooms:
        for file in re.findall(r"`([\w.]+\.py)`", files):
            assert (package / name.replace(".", "/") / file).is_file(), f"{name}: {file}"
    (layers,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    enforced = [layer.replace("mig_manager.", "") for layer in contracts[0]["layers"]]
    assert layers.split("\n")[:-1] == enforced
