"""Checks as people and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from mig_manager.cli.kubectl.checking.snapshot import CLUSTER, Check, Verdict
from mig_manager.cli.kubectl.wrapping import hanging

_STYLES = {
    Verdict.OK: "green",
    Verdict.UNKNOWN: "dim",
    Verdict.WARNING: "yellow",
    Verdict.PROBLEM: "bold red",
}


def check_lines(checks: Sequence[Check], *, wide: bool = False, width: int | None = None) -> Iterator[Text]:
    """For a terminal: a block for the cluster and for each Node, then the sum.

    Of several Nodes those that are in order are only named, unless it is to be wide: nobody finds one problem below
    90 blocks of `ok`. `width`: columns of the terminal, if there is one; commands are not broken.
    """
    names = max((len(each.name) for each in checks), default=0)
    verdicts = max(len(verdict) for verdict in Verdict)
    quiet = () if wide else _in_order(checks)
    where = None
    for check in checks:
        if check.where in quiet:
            continue
        if check.where != where:
            if where is not None:
                yield Text()
            where = check.where
            yield Text(where, "bold")
        line = Text("  ")
        line.append(f"{check.verdict:<{verdicts}}", _STYLES[check.verdict])
        line.append(f"  {check.name:<{names}}  ")
        yield from hanging(line, check.found, width)
        if check.todo and check.verdict is not Verdict.OK:
            yield Text(f"  {'':<{verdicts}}  {'':<{names}}  -> {check.todo}", "green")
    if quiet:
        yield Text()
        yield Text("in order", "bold")
        yield from (Text(f"  {node}") for node in quiet)
    yield Text()
    yield Text(summary(checks), "bold")


def _in_order(checks: Sequence[Check]) -> tuple[str, ...]:
    """Names of Nodes all of whose checks are well, if there are several Nodes."""
    found: dict[str, bool] = {}
    for check in checks:
        if check.where != CLUSTER:
            found[check.where] = found.get(check.where, True) and check.verdict is Verdict.OK
    return tuple(name for name, well in found.items() if well) if len(found) > 1 else ()


def troubled(checks: Sequence[Check]) -> tuple[str, ...]:
    """Names of Nodes that have a problem."""
    found = (each.where for each in checks if each.verdict is Verdict.PROBLEM and each.where != CLUSTER)
    return tuple(dict.fromkeys(found))


def summary(checks: Sequence[Check]) -> str:
    """`12 checks: 10 ok, 1 unknown, 1 problem`."""
    counts = Counter(each.verdict for each in checks)
    parts = [
        f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in Verdict if counts[verdict]
    ]
    return f"{len(checks)} checks: {', '.join(parts)}"


def _plural(verdict: Verdict, count: int) -> str:
    return f"{verdict}s" if count != 1 and verdict in (Verdict.WARNING, Verdict.PROBLEM) else str(verdict)


def check_documents(checks: Sequence[Check]) -> dict[str, Any]:
    """For programs."""
    counts = Counter(str(each.verdict) for each in checks)
    return {
        "summary": {str(verdict): counts[verdict] for verdict in Verdict},
        "checks": [
            {
                "name": each.name,
                "where": each.where,
                "verdict": str(each.verdict),
                "found": each.found,
                "todo": each.todo or None,
            }
            for each in checks
        ],
    }
