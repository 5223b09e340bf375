"""The run that is under way: its phase, its plan, and how long everything takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from mig_manager.daemon.counts import Counts
from mig_manager.daemon.measures import PHASE_SECONDS, RUN_SECONDS, RUNS
from mig_manager.daemon.status import Outcome, Phase, State
from mig_manager.planning.plan import NodePlan


class Progress:
    """What can be seen of runs from outside, by other threads too."""

    def __init__(self, counts: Counts, beat: Callable[[], None]) -> None:
        """`beat` is called whenever a run gets on."""
        self._counts = counts
        self._beat = beat
        self._began = self._entered = 0.0
        self.phase: Phase | None = None
        """None between runs."""
        self.plan: NodePlan | None = None
        """As last made by the run under way; None before it is."""
        self.applied = ""
        """The layout that was last applied with success by this process; empty for none."""

    def begin(self) -> None:
        """A run begins."""
        self._began = self._entered = time.monotonic()
        self.phase, self.plan = Phase.VALIDATING, None

    def enter(self, phase: Phase) -> None:
        """The run enters a phase; nothing happens where it is in that phase."""
        self._beat()
        if self.phase is not None and phase is not self.phase:
            self._leave(self.phase)
            self.phase = phase

    def planned(self, plan: NodePlan) -> None:
        """The run has made a plan, for the first time or anew."""
        self._beat()
        self.plan = plan

    def end(self, outcome: Outcome | None, layout: str) -> None:
        """The run is over; None: it goes on after a start of the daemon."""
        if self.phase is not None:
            self._leave(self.phase)
        self.phase = self.plan = None
        if outcome is None:
            return
        self._counts.add(RUNS, outcome.state, outcome.reason or "")
        self._counts.observe(RUN_SECONDS, time.monotonic() - self._began, outcome.state)
        if outcome.state is State.SUCCESS:
            self.applied = layout

    def _leave(self, phase: Phase) -> None:
        now = time.monotonic()
        self._counts.observe(PHASE_SECONDS, now - self._entered, phase)
        self._entered = now
