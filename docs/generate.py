"""Writes the pages that come from the code; with --check, says whether they are up to date.

Run: python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from mig_manager.daemon.settings import Settings, environment_name
from mig_manager.daemon.usage import default_text

SETTINGS_PAGE = Path(__file__).parent / "settings.md"

_HEAD = """\
# Settings

The daemon reads its settings from environment variables. Names without the prefix `MIG_MANAGER_` are those of
NVIDIA's own mig-manager, with the same meaning. Times are in seconds; lists are JSON, such as `["a", "b"]`.
A value that does not fit ends the daemon at its start with exit code 2 and one line that names the variable.

`mig-manager run --help` prints the same list. This page is written by `make docs` from
`mig_manager/daemon/settings.py`.

| variable | default | meaning |
| --- | --- | --- |
"""


def settings_page() -> str:
    """The page, as Markdown."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = default_text(name)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{environment_name(name)}` | {shown} | {field.description} |\n")
    return _HEAD + "".join(rows)


def main() -> int:
    """Write the page, or compare it."""
    page = settings_page()
    if "--check" not in sys.argv[1:]:
        SETTINGS_PAGE.write_text(page, encoding="utf-8")
        return 0
    if SETTINGS_PAGE.is_file() and SETTINGS_PAGE.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write("docs/settings.md is out of date; run: make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
