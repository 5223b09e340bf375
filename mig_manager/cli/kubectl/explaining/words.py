"""A diagnosis as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from mig_manager.cli.kubectl.explaining.diagnosis import Diagnosis
from mig_manager.cli.kubectl.explaining.scene import Scene, listed
from mig_manager.cli.kubectl.explaining.serving import Remedy
from mig_manager.cli.kubectl.wrapping import hanging
from mig_manager.planning.explain import gpu_numbers

_SHOWN_REMEDIES = 3


def diagnosis_lines(
    scene: Scene, diagnosis: Diagnosis, *, wide: bool = False, width: int | None = None
) -> Iterator[Text]:
    """For a terminal: with the first few of the nodes that could serve, or with all.

    `width`: its columns, if there is one; commands are not broken.
    """
    shown = len(diagnosis.remedies) if wide else _SHOWN_REMEDIES
    yield Text(diagnosis.verdict, "bold")
    if scene.scheduler:
        yield Text(f"The scheduler says: {scene.scheduler}", "dim")
    findings = [each for each in diagnosis.findings if each.text != diagnosis.verdict or each.todo]
    if findings:
        yield Text()
    for finding in findings:
        if finding.text != diagnosis.verdict:
            doubt = "" if finding.certain else " (not certain)"
            yield from hanging(Text("- "), f"{finding.text}{doubt}", width)
        if finding.todo:
            yield Text(f"    -> {finding.todo}", "green")
    if diagnosis.remedies:
        yield Text()
        yield Text("What would serve it:", "bold")
    for remedy in diagnosis.remedies[:shown]:
        yield from hanging(Text("- "), f"{remedy.node} with layout {remedy.layout}: {_price(remedy)}", width)
        for command in remedy.commands:
            yield Text(f"    {command}", "green")
    if diagnosis.unserved:
        yield Text()
        yield Text(diagnosis.unserved)
    more = len(diagnosis.remedies) - shown
    if more > 0:
        yield Text(f"  and {more} more node{'s' if more > 1 else ''} (with -o wide)", "dim")


def _price(remedy: Remedy) -> str:
    parts = [f"{_instances(remedy.kept)} kept, {remedy.destroyed} destroyed, {remedy.created} created"]
    if remedy.switched:
        reset = ", with a reset" if remedy.reset else ""
        parts.append(f"MIG mode of {gpu_numbers(remedy.switched)} changes{reset}")
    if remedy.parts:
        parts.append("MIG devices are what is then advertised as nvidia.com/gpu")
    parts.append(_evicted(remedy))
    parts += [f"not certain: {doubt}" for doubt in remedy.doubts]
    return "; ".join(parts)


def _instances(count: int) -> str:
    return f"{count} instance{'' if count == 1 else 's'}"


def _evicted(remedy: Remedy) -> str:
    if remedy.leaving is None:
        return "whom it evicts cannot be told, since you may not list pods of all namespaces"
    parts = [f"evicts {listed(remedy.evicts)}"] if remedy.evicts else []
    if remedy.may_evict:
        least = remedy.at_least - len(remedy.evicts)
        number = f" (at least {least} of these)" if least > 0 else ""
        parts.append(f"may evict {listed(remedy.may_evict)}{number}")
    if remedy.held_up_by:
        parts.append(f"held up by {listed(remedy.held_up_by)}")
    return "; ".join(parts) or "evicts nobody"


def diagnosis_document(scene: Scene, diagnosis: Diagnosis) -> dict[str, Any]:
    """For programs."""
    return {
        "pod": scene.title,
        "phase": scene.status.get("phase") or "Pending",
        "wants": dict(scene.wants),
        "claims": [claim.name or claim.entry for claim in scene.claims],
        "verdict": diagnosis.verdict,
        "scheduler": scene.scheduler or None,
        "findings": [
            {
                "cause": str(each.cause),
                "certain": each.certain,
                "text": each.text,
                "nodes": list(each.nodes),
                "todo": each.todo or None,
            }
            for each in diagnosis.findings
        ],
        "unserved": diagnosis.unserved or None,
        "remedies": [_remedy_document(each) for each in diagnosis.remedies],
    }


def _remedy_document(remedy: Remedy) -> dict[str, Any]:
    return {
        "node": remedy.node,
        "layout": remedy.layout,
        "gives": dict(remedy.gives),
        "kept": remedy.kept,
        "destroyed": remedy.destroyed,
        "created": remedy.created,
        "switched": list(remedy.switched),
        "reset": list(remedy.reset),
        "evicts": None if remedy.leaving is None else list(remedy.evicts),
        "mayEvict": None if remedy.leaving is None else list(remedy.may_evict),
        "heldUpBy": list(remedy.held_up_by),
        "doubts": list(remedy.doubts),
        "command": remedy.commands[0],
    }
