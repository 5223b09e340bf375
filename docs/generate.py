"""Writes the pages that come from the code; with --check, says whether they are up to date.

Run: python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from mig_manager.daemon.measures import MEASURES
from mig_manager.daemon.settings import Settings, environment_name
from mig_manager.daemon.usage import default_text

DOCS = Path(__file__).parent

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


_METRICS_HEAD = """\
# Metrics

The daemon answers scrapes on `/metrics`, port 9409 of its pod: see [health.md](health.md) for where it listens, and
[install.md](install.md#metrics-dashboard-and-alerts) for monitors, dashboard and alerts. Beside these metrics there are
those of every process: `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds` and so on.

Counters and histograms begin at zero when the daemon starts. What the Node says (state, layouts, drift, GPUs) is read
from the Node as last seen: no request, and no NVML session, is made for a scrape. None of the metrics names the node:
the label `node` comes from the scrape, as the PodMonitor of the chart sets it.

This page is written by `make docs` from `mig_manager/daemon/measures.py`.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
"""


def metrics_page() -> str:
    """Every metric, as Markdown."""
    rows = []
    for each in MEASURES:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |\n")
    return _METRICS_HEAD + "".join(rows)


def settings_page() -> str:
    """Every setting, as Markdown."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = default_text(name)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{environment_name(name)}` | {shown} | {field.description} |\n")
    return _HEAD + "".join(rows)


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for name, page in (("settings.md", settings_page()), ("metrics.md", metrics_page())):
        path = DOCS / name
        if path.is_file() and path.read_text(encoding="utf-8") == page:
            continue
        stale.append(f"docs/{name}")
        if "--check" not in sys.argv[1:]:
            path.write_text(page, encoding="utf-8")
    if "--check" in sys.argv[1:] and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
