"""Forecasts for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from mig_manager.cli.documents import Document, plan_document, refusal_document
from mig_manager.cli.kubectl.departures import Certainty, Departure
from mig_manager.cli.kubectl.forecast import Forecast, NoForecast
from mig_manager.cli.kubectl.wrapping import clipped
from mig_manager.cli.render import Look
from mig_manager.cli.words import gist, plan_lines
from mig_manager.errors import MigManagerError

_SHOWN_PODS = 30


def forecast_table(found: Sequence[Forecast | NoForecast], columns: int | None) -> list[Text]:
    """A line a node; why a node cannot take the layout is clipped to the columns of the terminal, if there is one."""
    width = max(len("NODE"), *(len(one.node) for one in found))
    lines = [
        Text(f"{'NODE':<{width}}  FITS  GPUS  KEEP  DESTROY  CREATE  RESET  EVICT       HELD UP BY", "bold")
    ]
    for one in found:
        line = Text(f"{one.node:<{width}}  ")
        if isinstance(one, NoForecast):
            line.append(f"{'no':<4}  ", "red")
            line.append(_why(one))
            line = line if columns is None else clipped(line, columns)
        else:
            line.append(f"{'yes':<4}  ", "green")
            line.append(_cells(one))
        lines.append(line)
    return lines


def _cells(one: Forecast) -> str:
    plans = one.choice.plan.gpus
    numbers = (
        sum(plan.changes for plan in plans),
        sum(len(plan.keep) for plan in plans),
        sum(len(plan.destroy) for plan in plans),
        sum(len(plan.create) for plan in plans),
        sum(plan.mig.reset for plan in plans),
    )
    cells = "  ".join(
        f"{number or '-':>{size}}" for number, size in zip(numbers, (4, 4, 7, 6, 5), strict=True)
    )
    certain, possible = len(one.certain), len(one.possible)
    evict = f"{certain or '-'}" + (f" (+{possible}?)" if possible else "")
    held = ", ".join(str(each.pod) for each in one.obstacles[:2])
    more = f" and {len(one.obstacles) - 2} more" if len(one.obstacles) > 2 else ""
    return f"{cells}  {evict:<10}  {held or '-'}{more}"


def _why(one: NoForecast) -> str:
    if isinstance(one.error, MigManagerError):
        return f"{one.error.reason}: {gist(one.error.message)}"
    return gist(str(one.error))


def forecast_lines(one: Forecast, look: Look) -> Iterator[Text]:
    """Everything about one node."""
    yield from (Text(remark, "yellow") for remark in one.remarks)
    yield from plan_lines(one.choice.plan, one.inventory, one.choice.layout, look)
    if not one.choice.plan.changes:
        return
    offer = _offer_words(one)
    if offer:
        yield Text(f"offered to pods: {offer}")
    yield Text()
    if not one.departures:
        yield Text("No pod holds what goes.")
        return
    for certainty, title in (
        (Certainty.CERTAIN, "Pods that have to go"),
        (Certainty.POSSIBLE, "Pods that may have to go, for only the kubelet knows which device each has"),
    ):
        pods = [each for each in one.departures if each.certainty is certainty]
        if pods:
            yield Text(f"{title}:", "bold")
            yield from _pod_lines(pods)
    if one.possible and one.at_least:
        yield Text(f"At least {one.at_least} of the devices that go are in use.")
    if any(each.obstacle for each in one.certain):
        yield Text(
            "What is held up makes the change wait, and fail in the end with nothing evicted.", "yellow"
        )
    elif one.obstacles:
        words = "Should one that is held up have to go, the change waits, and fails in the end with nothing evicted."
        yield Text(words, "yellow")


def _pod_lines(pods: Sequence[Departure]) -> Iterator[Text]:
    width = max(len(str(each.pod)) for each in pods[:_SHOWN_PODS])
    for each in pods[:_SHOWN_PODS]:
        yield Text(f"  {each.pod!s:<{width}}  {'; '.join(filter(None, (each.why, each.note)))}")
        if each.obstacle:
            yield Text(f"  {'':<{width}}  held up: {each.obstacle}", "red")
    if len(pods) > _SHOWN_PODS:
        yield Text(f"  and {len(pods) - _SHOWN_PODS} more")


def _offer_words(one: Forecast) -> str:
    names = sorted({*one.before, *one.after})
    changes = [
        f"{name} {one.before.get(name, 0)} -> {one.after.get(name, 0)}"
        for name in names
        if one.before.get(name, 0) != one.after.get(name, 0)
    ]
    return ", ".join(changes)


def forecast_document(one: Forecast | NoForecast, layout: str) -> Document:
    """For scripts: the document of `mig-manager plan -o json`, and what the cluster adds."""
    if isinstance(one, NoForecast):
        if isinstance(one.error, MigManagerError):
            return {"node": one.node, **refusal_document(layout, one.error)}
        unknown: Document = {"reason": None, "message": str(one.error), "gpus": [], "untouched": []}
        return {"node": one.node, "layout": layout, "feasible": None, **unknown}
    return {
        "node": one.node,
        **plan_document(one.choice.plan, one.inventory),
        "changes": one.choice.plan.changes,
        "resources": {"before": dict(one.before), "after": dict(one.after)},
        "pods": [_departure(each) for each in one.departures],
        "devicesInUseThatGoAtLeast": one.at_least,
        "remarks": list(one.remarks),
        "layoutsFrom": one.layouts_from,
    }


def _departure(one: Departure) -> Document:
    return {
        "namespace": one.pod.namespace,
        "name": one.pod.name,
        "goes": str(one.certainty),
        "why": one.why,
        "heldUpBy": one.obstacle or None,
        "note": one.note or None,
    }
