"""Asking nodes for a layout: whether they can take it, and what is to be written on each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.meaning import Meaning, takes_no_layout
from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.status import (
    AGAIN_ANNOTATION,
    CONFIG_LABEL,
    LAYOUTS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    State,
    Status,
)
from mig_manager.errors import Reason
from mig_manager.layouts.findings import hint
from mig_manager.layouts.suggest import nearest

_LABEL_VALUE = re.compile("[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MOST_NAMES = 500
"""The daemon lists no more."""
_SHOWN = 8


class Step(StrEnum):
    """What asking comes to on a node."""

    LABEL = "label"
    """The label is set."""
    AGAIN = "again"
    """The node says that it has dealt with this layout: it is told to do so once more."""
    JOIN = "join"
    """It was asked for this already, and is working on it."""
    NOTHING = "nothing"
    """It has this layout."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be done on one node."""

    node: GpuNode
    layout: str
    step: Step
    before: Status | None
    """What the node said before."""

    def change(self, token: str) -> NodeChange:
        """What to write; `token` is any text that has not been used there before."""
        label = {CONFIG_LABEL: self.layout}
        match self.step:
            case Step.LABEL:
                return NodeChange(labels=label)
            case Step.AGAIN:
                # Without its former word the daemon judges the label as if it were new.
                said: Mapping[str, str | None] = {STATUS_ANNOTATION: None, AGAIN_ANNOTATION: token}
                return NodeChange(labels={**label, STATE_LABEL: None}, annotations=said)
        return NodeChange()

    def in_words(self, *, dry_run: bool = False) -> str:
        """What was done, or would be."""
        node, verb = f"node/{self.node.name}", "would be " if dry_run else ""
        before = self.node.wanted or "no layout"
        match self.step:
            case Step.LABEL:
                return f"{node} {verb}asked for {self.layout} (before: {before})"
            case Step.AGAIN:
                return f"{node} {verb}asked for {self.layout} again: {_why_again(self.before)}"
            case Step.JOIN:
                return f"{node} has been asked for {self.layout} already, and is working on it"
            case Step.NOTHING:
                return f"{node} has {self.layout} already"


def ask_for(layout: str, node: GpuNode, expected: str | None = None) -> Ask:
    """What to do so that a node gets a layout; `expected`: hash of what it means there, where that is known."""
    said = node.status
    edited = said is not None and expected not in (None, said.hash)
    about_it = said is not None and said.layout == layout
    ended = said is not None and said.state in (State.SUCCESS, State.FAILED)
    if node.wanted == layout and not (about_it and ended):
        step = Step.JOIN
    elif node.wanted == layout and all_is_well(node):
        # The daemon sees an edit by itself, and has only not got to it.
        step = Step.JOIN if edited else Step.NOTHING
    else:
        step = Step.AGAIN if about_it and ended else Step.LABEL
    return Ask(node, layout, step, said)


def all_is_well(node: GpuNode) -> bool:
    """Whether a node has what it says, and has nothing to add to that, such as an edit that is held back."""
    said = node.status
    clean = said is not None and said.state is State.SUCCESS and said.message is None and said.reason is None
    return clean and node.state == State.SUCCESS


def problems(layout: str, nodes: Sequence[GpuNode], meanings: Mapping[str, Meaning]) -> list[str]:
    """Why nodes cannot be asked for that layout, in sentences; those that share a reason are named together.

    `meanings`: by name of the Node, what layouts mean there; a Node of which that is not known is missing.
    """
    if not _LABEL_VALUE.fullmatch(layout):
        return [f"{layout!r} is no name that a label can hold: up to 63 letters, digits, '-', '_' and '.'"]
    reasons: dict[str, list[str]] = {}
    for node in nodes:
        if (reason := _problem(layout, node, meanings.get(node.name))) is not None:
            reasons.setdefault(reason, []).append(node.name)
    return [f"{_names(names)}: {reason}" for reason, names in reasons.items()]


def not_lightly(asks: Iterable[Ask]) -> list[str]:
    """Why nodes should not be told to try again without being looked at, in sentences; empty as a rule."""
    found = []
    for ask in asks:
        said = ask.before
        if ask.step is not Step.AGAIN or said is None or said.state is not State.FAILED:
            continue
        if said.reason is Reason.ROLLBACK_FAILED:
            found.append(f"{ask.node.name}: RollbackFailed is never tried again by itself: {said.message}")
        elif said.reboot is not None:
            found.append(f"{ask.node.name}: it has been rebooted for this layout, and may be once more")
    return found


def strangers(nodes: Iterable[GpuNode]) -> str | None:
    """What to say of nodes on which nothing of mig-manager stands, so that nothing could be checked; None: no such."""
    names = [
        node.name
        for node in nodes
        if LAYOUTS_ANNOTATION not in node.node.meta.annotations and node.status is None
    ]
    if not names:
        return None
    return (
        f"{_names(names)}: mig-manager has said nothing there yet, so the layout could not be checked; "
        "if it does not run there, nothing will happen"
    )


def _problem(layout: str, node: GpuNode, meaning: Meaning | None) -> str | None:
    listed = node.node.meta.annotations.get(LAYOUTS_ANNOTATION)
    names = node.layouts
    if listed is None or layout in names or len(names) >= _MOST_NAMES:
        return None
    if meaning is not None and meaning.is_written(layout):
        # It may have been written a moment ago, so that the node has not listed it yet.
        return meaning.refusal(layout)
    if not names:
        return takes_no_layout("" if meaning is None else meaning.written.words)
    near = nearest(layout, names)
    shown = hint(near) if near else f"; there are: {_names(names)}"
    return f"layout {layout!r} is not possible there now{shown} (see kubectl mig layouts)"


def _why_again(said: Status | None) -> str:
    if said is None or said.state is State.SUCCESS:
        return "what it says of it is not all well"
    return f"it failed with {said.reason}" if said.reason is not None else "it failed"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
