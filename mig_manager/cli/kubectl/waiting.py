"""Waiting until nodes have the layout that they were asked for, or say why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mig_manager.cli.kubectl.asking import Ask, Step
from mig_manager.cli.kubectl.durations import short
from mig_manager.cli.kubectl.following import Following
from mig_manager.cli.kubectl.standing import Standing
from mig_manager.cluster.objects import parse_time
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.status import State, Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it has ended on one node."""

    done: bool
    """Whether it has the layout."""
    words: str


class Display(Protocol):
    """Shows how the nodes stand while they are waited for."""

    def show(self, standings: Mapping[str, Standing], verdicts: Mapping[str, Verdict]) -> None:
        """Called after every change, and once a second."""
        ...


def wait_for(
    asks: Sequence[Ask], following: Following, deadline: Deadline, display: Display
) -> tuple[Mapping[str, Verdict], Mapping[str, Standing]]:
    """Wait until all have ended, or the deadline.

    Gives how each has ended by name (those that have not are missing), and how all of them stand then.
    """
    verdicts: dict[str, Verdict] = {}
    standings: dict[str, Standing] = {}

    def look() -> bool:
        standings.clear()
        standings.update({each.name: each for each in following.now()})
        for ask in asks:
            name = ask.node.name
            if name not in verdicts and (found := verdict(ask, standings.get(name))) is not None:
                verdicts[name] = found
        display.show(standings, verdicts)
        return len(verdicts) == len(asks)

    following.wait(lambda: look() or None, deadline)
    return verdicts, standings


def verdict(ask: Ask, standing: Standing | None) -> Verdict | None:
    """How it has ended on a node that stands like this since it was asked; None while it has not.

    A word about the same layout that the node had said before it was asked counts for nothing.
    """
    if standing is None or standing.node.node.meta.uid != ask.node.node.meta.uid:
        return Verdict(False, "the Node is gone")
    wanted, said = standing.node.wanted, standing.said
    if wanted != ask.layout:
        return Verdict(False, f"it was asked for {wanted} meanwhile" if wanted else "its label is gone")
    if ask.step is Step.NOTHING:
        return Verdict(True, f"has {ask.layout}")
    if said is None or said.layout != ask.layout or standing.under_way or _is_old(said, ask.before):
        return None
    if said.state is State.SUCCESS and said.reason is None and said.message is None:
        return Verdict(True, f"has {ask.layout}{_took(said)}")
    where = f" in phase {said.phase}" if said.state is State.FAILED else ""
    return Verdict(False, f"{said.state}{where}: {standing.message}")


def _is_old(said: Status, before: Status | None) -> bool:
    """Whether that is the very end that the node had told of before."""
    if before is None or before.finishedAt is None:
        return False
    return (said.finishedAt, said.startedAt, said.hash) == (before.finishedAt, before.startedAt, before.hash)


def _took(said: Status) -> str:
    try:
        began, ended = parse_time(said.startedAt), parse_time(said.finishedAt)
    except ValueError:
        return ""
    if began is None or ended is None:
        return ""
    return f" after {short((ended - began).total_seconds())}"
