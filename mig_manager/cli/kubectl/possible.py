"""The layouts that a node can take now, and what each gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.meaning import Meaning
from mig_manager.cli.kubectl.wrapping import comma_lines
from mig_manager.daemon.advertised import expected_resources, shapes_wanted
from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import resolve
from mig_manager.layouts.layout import NodeTarget
from mig_manager.planning.explain import gpu_numbers

_GAP = "   "
_GIVES = 2
"""The column that may take several lines on a narrow terminal."""
_LEAST_GIVES = 20


@dataclass(frozen=True, slots=True)
class Possible:
    """A layout on a node."""

    name: str
    source: str
    """Who defines it: `ConfigMap`, `hardware`, or in words who may."""
    resources: Mapping[str, int] | None
    """What the device plugin would offer; None where that cannot be told."""
    target: NodeTarget | None
    remark: str = ""
    """Why something cannot be told, or what stands in the way."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What one node can take."""

    node: GpuNode
    layouts: tuple[Possible, ...]
    remark: str
    """Where the layouts are from, or why nothing can be said."""


def choices(node: GpuNode, meaning: Meaning | None, remark: str) -> Choices:
    """What a node can take, by its own word; `meaning` None, with a remark why, where only the names are known."""
    if meaning is None:
        return Choices(node, tuple(Possible(name, "", None, None) for name in node.layouts), remark)
    return Choices(node, tuple(_possible(name, meaning) for name in node.layouts), remark)


def _possible(name: str, meaning: Meaning) -> Possible:
    if meaning.is_written(name):
        source = "ConfigMap"
    else:
        source = f"{meaning.written.unread} or hardware" if meaning.written.unread else "hardware"
    try:
        target = resolve(meaning.book.get(name), [state.gpu for state in meaning.inventory.gpus])
    except MigManagerError as error:
        unread = meaning.written.unread
        if name not in meaning.book.layouts:
            where = unread or "what its daemon has read"
            return Possible(
                name, unread, None, None, f"it is defined by {where}, which cannot be read from here"
            )
        return Possible(name, source, None, None, " ".join(error.message.split()))
    try:
        shapes = shapes_wanted(target, meaning.inventory)
        return Possible(name, source, expected_resources(shapes, meaning.strategy), target)
    except MigManagerError as error:
        return Possible(name, source, None, target, f"{error.reason}: {' '.join(error.message.split())}")


def target_in_words(target: NodeTarget) -> str:
    """`GPUs 0-3: 7 x 1g.10gb; GPUs 4-7: MIG off; GPU 8 untouched`."""
    groups: dict[str, list[int]] = {}
    for gpu in target.gpus:
        counts = Counter(gpu.devices)
        held = " + ".join(f"{counts[profile]} x {profile}" for profile in sorted(counts)) or "no instances"
        groups.setdefault(held if gpu.mig_enabled else "MIG off", []).append(gpu.gpu.index)
    words = [f"{gpu_numbers(indices)}: {held}" for held, indices in groups.items()]
    if target.untouched:
        words.append(f"{gpu_numbers(target.untouched)} untouched")
    return "; ".join(words)


def resources_in_words(resources: Mapping[str, int]) -> str:
    """`14 x mig-1g.10gb, 2 x gpu`."""
    found = (f"{count} x {name.removeprefix('nvidia.com/')}" for name, count in sorted(resources.items()))
    return ", ".join(found) or "nothing"


def choice_lines(found: Sequence[Choices], *, wide: bool, width: int | None = None) -> list[Text]:
    """For people; nodes that can take the same share a table. `width`: columns of the terminal, if there is one."""
    groups: dict[object, list[Choices]] = {}
    for each in found:
        remarks = (*(layout.remark for layout in each.layouts), each.remark)
        groups.setdefault((_rows(each, wide=wide), remarks), []).append(each)
    lines: list[Text] = []
    for alike in groups.values():
        lines += [Text()] if lines else []
        lines.append(Text(", ".join(each.node.name for each in alike), "bold"))
        if rows := _rows(alike[0], wide=wide):
            lines += _table(("", "LAYOUT", "GIVES", "FROM", *(("GPUS",) if wide else ())), rows, width)
        lines += [Text(f"{one.name}: {one.remark}", "yellow") for one in alike[0].layouts if one.remark]
        lines.append(Text(alike[0].remark, "dim"))
    return lines


def _rows(each: Choices, *, wide: bool) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            "*" if layout.name == each.node.wanted else "",
            layout.name,
            "?" if layout.resources is None else resources_in_words(layout.resources),
            layout.source or "-",
            *((target_in_words(layout.target) if layout.target is not None else "-",) if wide else ()),
        )
        for layout in each.layouts
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> list[Text]:
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if width is not None and (over := sum(widths) + len(_GAP) * (len(widths) - 1) - width) > 0:
        widths[_GIVES] = max(_LEAST_GIVES, widths[_GIVES] - over)
    lines = []
    for row in table:
        parts = comma_lines(row[_GIVES], widths[_GIVES])
        for number, part in enumerate(parts):
            cells = [cell if number == 0 else "" for cell in row]
            cells[_GIVES] = part
            padded = (f"{cell:<{room}}" for cell, room in zip(cells, widths, strict=True))
            lines.append(Text(_GAP.join(padded).rstrip()))
    return lines


def choice_document(each: Choices) -> dict[str, Any]:
    """For scripts."""
    return {
        "name": each.node.name,
        "layout": each.node.wanted or None,
        "remark": each.remark,
        "layouts": [
            {
                "name": layout.name,
                "from": layout.source or None,
                "resources": None if layout.resources is None else dict(layout.resources),
                "gpus": _gpus(layout.target),
                "remark": layout.remark or None,
            }
            for layout in each.layouts
        ],
    }


def _gpus(target: NodeTarget | None) -> list[dict[str, Any]] | None:
    if target is None:
        return None
    return [
        {
            "index": gpu.gpu.index,
            "mig": gpu.mig_enabled,
            "devices": {str(profile): count for profile, count in sorted(Counter(gpu.devices).items())},
        }
        for gpu in target.gpus
    ]
