"""The end of a run, in one log line and one Event."""

from __future__ import annotations

from typing import Protocol

from loguru import logger

from mig_manager.daemon.status import CONFIG_LABEL, Outcome
from mig_manager.daemon.words import span


class TellNode(Protocol):
    """Records an Event on the Node."""

    def __call__(self, reason: str, message: str, *, warning: bool = False) -> None:
        """`reason` is one word, `message` for people."""


def tell_end(
    event: TellNode,
    layout: str,
    outcome: Outcome,
    *,
    held_back: bool,
    let_go: bool,
    changed: bool,
    uncordoned: bool,
    after_s: float,
    retry: str | None,
) -> None:
    """Tell how a run ended.

    Args:
        event: how the Node is told.
        layout: what the run was about.
        outcome: as it stands on the Node.
        held_back: whether an edit was not applied, and `outcome` says why.
        let_go: whether nobody asked for a layout any more.
        changed: whether something had to change.
        uncordoned: whether the cordon was ours, and was taken off.
        after_s: how long the run took, seconds.
        retry: when the next attempt comes, RFC 3339; None for never.
    """
    words = f"{layout}: {outcome.message}"
    if held_back:
        logger.warning("{}", words)
        event("EditNotApplied", words, warning=True)
    elif outcome.reason is None:
        done = "applied" if changed else "nothing had to change"
        cordon = ", and the node uncordoned" if uncordoned else ""
        logger.success("{}: {}{}, after {}", layout, done, cordon, span(after_s))
        event("Applied", f"{layout}: the GPUs are as the layout says")
    elif let_go:
        words = f"The label {CONFIG_LABEL} is gone; everything was put back."
        logger.info("{}", words)
        event("LabelRemoved", words)
    else:
        if retry is not None:
            words += f" Next attempt at {retry}."
        cordon = " The node is uncordoned." if uncordoned else ""
        # Every run's end is told, also where many end alike.
        logger.bind(fold=False).error("{} in phase {}: {}{}", outcome.reason, outcome.phase, words, cordon)
        event(outcome.reason, words, warning=True)
