"""Pictures of a GPU's memory slices, for people.

A picture is a few rows of boxes over a ruler of slice numbers. It says everything without colour: `=` kept,
`-` destroyed, `+` created, `busy` in use. It is at most 78 columns wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, KeptInstance, NewInstance
from mig_manager.planning.state import GpuInstance, GpuState

_LABEL = 8
_BOXES = 70


class Mark(StrEnum):
    """What happens to an instance, as the sign that stands in its box."""

    NONE = ""
    KEEP = "="
    DESTROY = "-"
    CREATE = "+"


_MARK_STYLE = {Mark.KEEP: "black on green", Mark.DESTROY: "white on red", Mark.CREATE: "black on cyan"}
_SIZE_STYLE = {
    1: "black on cyan",
    2: "black on green",
    3: "black on yellow",
    4: "white on blue",
    7: "white on magenta",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How much the terminal can show: colours, and box drawing beyond ASCII."""

    colour: bool
    unicode: bool


PLAIN = Look(colour=False, unicode=False)


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a row: an instance, or one free slice."""

    placement: Placement
    title: str = ""
    suffix: str = ""
    """Attributes of the profile; they go to a line of their own where the box is narrow."""
    note: str = ""
    mark: Mark = Mark.NONE
    style: str = ""

    def lines(self, width: int) -> list[str]:
        """What stands in the box, from top to bottom."""
        whole = self.title + self.suffix
        head = [whole] if len(whole) <= width else [self.title, self.suffix]
        foot = " ".join(part for part in (str(self.mark), self.note) if part)
        return [line[:width] for line in (*head, foot) if line]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of boxes that covers all memory slices."""

    label: str
    boxes: tuple[Box, ...]
    """Ascending, without gaps."""


def row(label: str, slices: int, boxes: Iterable[Box]) -> Row:
    """Fill the gaps between the boxes with free slices."""
    taken = sorted(boxes, key=lambda box: box.placement)
    filled: list[Box] = []
    position = 0
    for box in taken:
        filled += [Box(Placement(free, 1)) for free in range(position, box.placement.start)]
        filled.append(box)
        position = max(position, box.placement.end)
    filled += [Box(Placement(free, 1)) for free in range(position, slices)]
    return Row(label, tuple(filled))


def picture(slices: int, rows: Sequence[Row], look: Look) -> list[Text]:
    """Draw rows under a ruler of slice numbers; one Text a line."""
    inner = max(3, min(11, _BOXES // slices - 1))
    lines = [_ruler(slices, inner)]
    above: Row | None = None
    for current in rows:
        lines.append(_border(slices, inner, above, current, look))
        lines += _boxes(inner, current, look)
        above = current
    lines.append(_border(slices, inner, above, None, look))
    return lines


def state_row(state: GpuState, label: str = "now") -> Row:
    """A GPU as it is, coloured by the size of the instances."""
    return row(label, _slices(state), _off(state) or [_instance_box(item) for item in state.instances])


def plan_rows(plan: GpuPlan, state: GpuState) -> tuple[Row, ...]:
    """A GPU before and after a plan; only one row where nothing changes."""
    slices = _slices(state)
    kept = [_kept_box(item) for item in plan.keep]
    if not plan.changes:
        return (row("now", slices, _off(state) or kept),)
    gone = [_instance_box(item, Mark.DESTROY) for item in plan.destroy]
    new = [_new_box(item) for item in plan.create]
    before = _off(state) or [*kept, *gone]
    after = [*kept, *new] if plan.mig.target else [_whole(slices, "MIG off")]
    return row("before", slices, before), row("after", slices, after)


def change_rows(before: GpuState, after: GpuState) -> tuple[Row, ...]:
    """A GPU at two moments: what stayed, went and came."""
    slices = _slices(before)
    stays = {_key(item) for item in before.instances} & {_key(item) for item in after.instances}

    def boxes(state: GpuState, otherwise: Mark) -> list[Box]:
        return _off(state) or [
            _instance_box(item, Mark.KEEP if _key(item) in stays else otherwise) for item in state.instances
        ]

    return (
        row("before", slices, boxes(before, Mark.DESTROY)),
        row("after", slices, boxes(after, Mark.CREATE)),
    )


def state_picture(state: GpuState, look: Look, label: str = "now") -> list[Text]:
    """Draw one GPU as it is. Empty for a GPU without MIG."""
    return picture(_slices(state), [state_row(state, label)], look) if state.geometry else []


def plan_picture(plan: GpuPlan, state: GpuState, look: Look) -> list[Text]:
    """Draw one GPU before and after a plan. Empty for a GPU without MIG."""
    return picture(_slices(state), plan_rows(plan, state), look) if state.geometry else []


def change_picture(before: GpuState, after: GpuState, look: Look) -> list[Text]:
    """Draw one GPU at two moments. Empty for a GPU without MIG."""
    return picture(_slices(before), change_rows(before, after), look) if before.geometry else []


def legend(look: Look) -> Text:
    """What the signs mean."""
    text = Text(" " * _LABEL)
    for mark, word in ((Mark.KEEP, "kept"), (Mark.DESTROY, "destroyed"), (Mark.CREATE, "created")):
        text.append(f" {mark} {word} ", _MARK_STYLE[mark] if look.colour else "")
        text.append("" if mark is Mark.CREATE else "  ")
    if not look.colour:
        text.rstrip()
    return text


def _slices(state: GpuState) -> int:
    return state.geometry.memory_slices if state.geometry else 0


def _off(state: GpuState) -> list[Box]:
    return [] if state.mig_current else [_whole(_slices(state), "MIG off")]


def _whole(slices: int, title: str) -> Box:
    return Box(Placement(0, slices), title)


def _key(instance: GpuInstance) -> tuple[object, ...]:
    return (instance.id, str(instance.profile), instance.placement, *(item.uuid for item in instance.compute))


def _instance_box(instance: GpuInstance, mark: Mark = Mark.NONE) -> Box:
    split = _split(instance.profile, [item.slices for item in instance.compute])
    note = " ".join(word for word in ("busy" if instance.busy else "", split) if word)
    profile = instance.profile
    style = _MARK_STYLE[mark] if mark else _SIZE_STYLE.get(profile.gpu_slices, "black on white")
    title = str(profile).removesuffix(profile.suffix)
    return Box(instance.placement, title, profile.suffix, note, mark, style)


def _kept_box(kept: KeptInstance) -> Box:
    box = _instance_box(kept.instance, Mark.KEEP)
    if not (kept.destroy or kept.create):
        return box
    inside = [item.slices for item in kept.stays]
    inside += [item.slices for item in kept.create]
    inner = f"now {_split(kept.instance.profile, inside) or 'whole'}"
    note = " ".join(word for word in ("busy" if kept.instance.busy else "", inner) if word)
    return Box(box.placement, box.title, box.suffix, note, Mark.KEEP, box.style)


def _new_box(new: NewInstance) -> Box:
    note = _split(new.profile, [item.slices for item in new.compute])
    title = str(new.profile).removesuffix(new.profile.suffix)
    return Box(new.placement, title, new.profile.suffix, note, Mark.CREATE, _MARK_STYLE[Mark.CREATE])


def _split(profile: MigProfile, slices: Sequence[int]) -> str:
    """The compute instances as they share an instance; empty where one has it whole."""
    if list(slices) == [profile.gpu_slices]:
        return ""
    return "+".join(f"{count}c" for count in sorted(slices, reverse=True)) or "no compute"


def _ruler(slices: int, inner: int) -> Text:
    numbers = "".join(f" {number:^{inner}}" for number in range(slices))
    return Text(" " * _LABEL + numbers.rstrip(), "dim")


def _boxes(inner: int, current: Row, look: Look) -> list[Text]:
    side = "│" if look.unicode else "|"
    widths = [box.placement.size * (inner + 1) - 1 for box in current.boxes]
    columns = [box.lines(width) for box, width in zip(current.boxes, widths, strict=True)]
    lines = []
    for level in range(max(1, *(len(column) for column in columns))):
        line = Text(f"{current.label if level == 0 else '':<{_LABEL}}")
        for box, width, column in zip(current.boxes, widths, columns, strict=True):
            line.append(side, "dim")
            text = column[level] if level < len(column) else ""
            line.append(f"{text:^{width}}", box.style if look.colour else "")
        line.append(side, "dim")
        lines.append(line)
    return lines


def _border(slices: int, inner: int, above: Row | None, below: Row | None, look: Look) -> Text:
    up, down = _edges(above), _edges(below)
    text = " " * _LABEL
    for position in range(slices + 1):
        text += _joint(position, slices, position in up, position in down, look)
        text += ("─" if look.unicode else "-") * inner if position < slices else ""
    return Text(text, "dim")


def _edges(current: Row | None) -> set[int]:
    return (
        {edge for box in current.boxes for edge in (box.placement.start, box.placement.end)}
        if current
        else set()
    )


def _joint(position: int, slices: int, up: bool, down: bool, look: Look) -> str:
    if not look.unicode:
        return "+" if up or down else "-"
    if position == 0:
        return {(True, True): "├", (True, False): "└"}.get((up, down), "┌")
    if position == slices:
        return {(True, True): "┤", (True, False): "┘"}.get((up, down), "┐")
    return {(True, True): "┼", (True, False): "┴", (False, True): "┬"}.get((up, down), "─")
