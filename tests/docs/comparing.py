"""What a page shows below a command, against what the command prints."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.cli.conftest import Ended
from tests.docs.examples import Example

_TIME = r"\d+(?:\.\d+)?(?: m?s|[smhd](?:\d+[smhd])?)"
_VARIES = re.compile(
    rf"(?P<anything>\.\.\.)|\b{_TIME}\b(?P<pad> *)|(?P<uuid>GPU-[0-9a-f-]+)|(?P<port>(?<=127\.0\.0\.1:)\d+)"
)


def assert_shown(example: Example, ended: Ended) -> None:
    """What is shown below a command is what it has printed; nothing is asked where nothing is shown."""
    printed = "".join(f"{line.rstrip()}\n" for line in (ended.out + ended.err).strip("\n").splitlines())
    if example.shown.startswith("{"):
        shown = re.sub(r",\s*\.\.\.(?=\s*\])", ', "..."', example.shown)
        assert_holds(
            json.loads(printed), json.loads(re.sub(r",\s*\.\.\.(?=\s*\})", "", shown)), example.command
        )
    elif example.shown:
        shape = "".join(map(_shape, example.shown.splitlines()))
        assert re.fullmatch(shape, printed), f"{example.command}\nprints\n{printed}"


def _shape(line: str) -> str:
    """A regular expression for a line; `...` alone stands for any lines."""
    if line.strip() == "...":
        return r"(?:.*\n)*"
    shape, end = "", 0
    for found in _VARIES.finditer(line):
        shape += re.escape(line[end : found.start()])
        end = found.end()
        if found["anything"]:
            shape += ".*"
        elif found["uuid"]:
            shape += "GPU-[0-9a-f-]+"
        elif found["port"]:
            shape += r"\d+"
        else:
            shape += _TIME + (" *" if found["pad"] else "")
    return shape + re.escape(line[end:]) + r"\n"


def assert_holds(found: Any, shown: Any, where: str) -> None:
    """JSON has all that is shown."""
    if isinstance(shown, dict):
        assert isinstance(found, dict), where
        for key, value in shown.items():
            assert key in found, f"{where}: {key}"
            assert_holds(found[key], value, f"{where}: {key}")
    elif isinstance(shown, list):
        assert isinstance(found, list), where
        goes_on = shown[-1:] == ["..."] and len(shown) > 1
        shown = shown[:-1] if goes_on else shown
        assert len(found) > len(shown) if goes_on else len(found) == len(shown), where
        for one, other in zip(found, shown, strict=False):
            assert_holds(one, other, where)
    elif isinstance(shown, str):
        shape = ".*".join(map(re.escape, shown.split("...")))
        assert re.fullmatch(shape, found, re.DOTALL), f"{where}: {found}"
    else:
        assert found == shown, where
