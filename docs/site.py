"""A hook of MkDocs: pages and files that lie beside docs/ become a part of the site, under the links that they have.

README.md is the home page, CONTRIBUTING.md and CHANGELOG.md are pages. Files that pages link to, such as
../config/operands.yaml, are copied to files/; for folders there is no page, and their names stay without a link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages beside docs/, with their names in the site."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files that pages link to."""
    from mkdocs.structure.files import File

    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = [*(ROOT / source for source in PAGES), *DOCS.glob("*.md")]
    linked = {path for page in pages for path in links(page.read_text(encoding="utf-8"), page.parent)}
    for path in sorted(linked):
        if path.is_file() and path.suffix != ".md" and not path.is_relative_to(DOCS):
            files.append(File.generated(config, _site_path(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where things are in the site."""
    sources: Mapping[str, str] = {name: source for source, name in PAGES.items()}
    source = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_links(markdown, source.parent)


def links(markdown: str, folder: Path) -> list[Path]:
    """The files and folders that a page in that folder links to."""
    found = _LINK.finditer(_CODE.sub("", markdown))
    return [(folder / link["path"]).resolve() for link in found]


def site_links(markdown: str, folder: Path) -> str:
    """A page of that folder with its links as they are in the site."""

    def moved(link: re.Match[str]) -> str:
        target = (folder / link["path"]).resolve()
        if target.is_dir() or (target.suffix == ".md" and not _is_page(target)):
            return link["text"]
        return f"{link['image']}[{link['text']}]({_site_path(target)}{link['anchor'] or ''})"

    return _LINK.sub(moved, markdown)


def _is_page(path: Path) -> bool:
    return path.parent == DOCS or (path.name in PAGES and path.parent == ROOT)


def _site_path(path: Path) -> str:
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    inside = str(path.relative_to(ROOT))
    return PAGES.get(inside, f"files/{inside}")
