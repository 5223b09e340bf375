"""What the daemon answers to arguments. It takes none but these: its settings are environment variables."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence

from mig_manager import __version__
from mig_manager.daemon.settings import PREFIX, Settings, environment_name
from mig_manager.layouts.findings import hint
from mig_manager.layouts.suggest import nearest

_HEAD = """\
Usage: nvidia-mig-manager [--help | --version]

The daemon of one GPU node of a Kubernetes cluster. Its settings are environment variables; times are in seconds:
"""


def heed(arguments: Sequence[str]) -> None:
    """Return if there are no arguments; else answer them and end the process.

    Exit code 0 after --help or --version, 2 for anything else.
    """
    if not arguments:
        return
    if arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
    elif arguments[0] == "--version":
        sys.stdout.write(f"mig-manager {__version__}\n")
    else:
        sys.stderr.write(
            f"mig-manager: the daemon takes no argument {arguments[0]!r}: its settings are environment variables; "
            "--help lists them\n"
        )
        sys.exit(2)
    sys.exit(0)


def misspelt(environment: Iterable[str]) -> list[str]:
    """A sentence on each variable that is none of the settings but looks like one of them.

    Others that begin alike are somebody else's: Kubernetes makes MIG_MANAGER_SERVICE_HOST of a Service's name.
    """
    known = {environment_name(field).removeprefix(PREFIX) for field in Settings.model_fields}
    sentences = []
    for name in environment:
        rest = name.upper().removeprefix(PREFIX)
        near = nearest(rest, known, 1) if name.upper() != rest and rest not in known else ()
        if near:
            meant = hint(PREFIX + word for word in near)
            sentences.append(f"the environment variable {name} is no setting and changes nothing{meant}")
    return sentences


def usage() -> str:
    """Every setting, its default, and what it means."""
    lines = [_HEAD]
    for name, field in Settings.model_fields.items():
        default = default_text(name)
        lines.append(f"  {environment_name(name)}{f'={default}' if default else ''}")
        lines += textwrap.wrap(
            field.description or "", 100, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    return "\n".join(lines) + "\n"


def default_text(setting: str) -> str:
    """The default of a setting as it is written in the environment; empty where there is none."""
    value = Settings.model_fields[setting].get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
