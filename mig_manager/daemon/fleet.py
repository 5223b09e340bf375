"""Leave to change this node: maintenance windows, the slots of the fleet, and edits of a layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import NoReturn, Self

from loguru import logger

from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.queue import Scene
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.slots import SlotRules, Slots
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.interrupts import Interrupts, StoppingError
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.report import Report
from mig_manager.daemon.settingtypes import pool_limits
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase
from mig_manager.daemon.windows import Windows
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory

OVERRIDE_ANNOTATION = "mig-manager/ignore-windows"
"""With the value `true`, the Node may be changed outside of maintenance windows."""

_LOOK_S = 10.0
"""Between two looks at the clock: it may be set, and the annotation may come."""
_NEWS_S = 60.0
"""Between two changes of the message that says who has the slots."""


class HeldBackError(Exception):
    """Only an edit of its layout asks for a change of this node, and edits are not applied here by themselves."""


class Fleet:
    """Whether this node may be changed now. A context manager: its end gives the slot back."""

    def __init__(
        self,
        site: Site,
        report: Report,
        interrupts: Interrupts,
        *,
        node: Callable[[], NodeMeta | None],
        gpus: Callable[[], Inventory],
        rest: Callable[[], None],
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            site: the node.
            report: the run, as it stands on the Node.
            interrupts: what ends a wait.
            node: the Node's metadata as last seen.
            gpus: the GPUs as last read.
            rest: called before the run waits for long: it must hold nothing that others may need.
        """
        self._site = site
        self._report = report
        self._interrupts = interrupts
        self._node = node
        self._gpus = gpus
        self._rest = rest
        self._windows = Windows(site.settings.maintenance_windows, site.settings.maintenance_timezone)
        self._slots: Slots | None = None
        self._left_behind = report.journal is not None
        """Whether an earlier process may have left a slot of this node, and this run has not taken it over."""
        self._waited = False
        self._scene: Scene | None = None
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the slot back, unless the Node still carries the journal, or may do so."""
        unknown = kind is not None and self._report.journal is not None
        keep = unknown or JOURNAL_ANNOTATION in self._report.node.meta.annotations
        if self._slots is not None:
            self._slots.close(keep=keep)
        elif self._left_behind and not keep and (limit := self._limit()):
            with suppress(StoppingError):  # Then it expires.
                self._new_slots(limit).clear()

    def admit(self) -> bool:
        """Come back when the run may begin to change the node. True: it has waited, so all must be read anew.

        Costs no request where there is no limit, no window, and no edit.

        Raises:
            HeldBackError: it may not, and no wait will help.
            MigManagerError: SlotTimeout; ApiError, also where Leases are needed and not permitted.
            WishChangedError, StoppingError: the wait was ended.
        """
        limit = self._limit()
        self._waited = False
        if self._slots is not None and self._slots.held:
            return False
        restores = self._lost_everything()
        if self._edited and self._site.settings.edited_layouts == "report" and not restores:
            self._hold_back("MIG_MANAGER_EDITED_LAYOUTS=report")
        with self._interrupts.free_to_start_over():
            while True:
                closes = Deadline.never() if restores else self._await_window()
                if not limit or self._take(limit, closes):
                    break
        return self._waited

    @property
    def grace_s(self) -> float | None:
        """For how long after `confirm` the slot is surely ours; None where there is none."""
        return self._rules.grace_s if self._slots is not None and self._slots.held else None

    def confirm(self) -> None:
        """Come back only if the slot is still ours. Raises SlotLostError."""
        if self._slots is not None:
            self._slots.confirm()

    def seal(self) -> None:
        """The Node carries the journal: from here on the slot is kept for it. Raises SlotLostError, ApiError."""
        if self._slots is not None:
            self._slots.seal(Deadline.after(self._report.patience))

    def _limit(self) -> int:
        """How many slots there are for this run; 0 for as many as there are nodes."""
        return self._limit_that_is_set or int(self._edited)

    @property
    def _limit_that_is_set(self) -> int:
        settings = self._site.settings
        return pool_limits(settings.pool_limits).get(self._pool, settings.max_parallel_nodes)

    @property
    def _pool(self) -> str:
        label = self._site.settings.pool_label
        return self._report.node.meta.labels.get(label, "") if label else ""

    @property
    def _rules(self) -> SlotRules:
        settings = self._site.settings
        return SlotRules(settings.slot_lease, settings.slot_abandoned, journal=JOURNAL_ANNOTATION)

    # Maintenance windows.

    def _await_window(self) -> Deadline:
        """Wait until a window is open; gives when it closes. A node that is half changed waits for none."""
        if not self._windows or self._report.journal is not None:
            return Deadline.never()
        if not self._open():
            opens = self._windows.opens(datetime.now(UTC)).isoformat(timespec="minutes")
            words = f"waiting for a maintenance window: the next one opens at {opens}"
            self._begin_to_wait(Phase.WAITING_FOR_WINDOW, words)
            self._site.signal.wait(self._open, Deadline.never(), every=_LOOK_S)
        now = datetime.now(UTC)
        closes = self._windows.closes(now)
        return Deadline.never() if closes is None else Deadline.after((closes - now).total_seconds())

    def _open(self) -> bool:
        node = self._node()
        overridden = node is not None and node.annotations.get(OVERRIDE_ANNOTATION) == "true"
        return overridden or self._windows.closes(datetime.now(UTC)) is not None

    # Slots.

    def _take(self, limit: int, closes: Deadline) -> bool:
        """Wait for a slot; False where the window closed meanwhile."""
        settings = self._site.settings
        patience = Deadline.after(settings.slot_timeout) if settings.slot_timeout else Deadline.never()
        if self._slots is None:
            self._slots = self._new_slots(limit)
        self._scene, self._said = None, ""
        try:
            if self._slots.take(Deadline(min(patience.at, closes.at)), self._tell):
                return True
        except ApiError as error:
            if error.status != 403:
                raise
            return self._without_leases(error)
        self._slots.leave_queue()
        if closes.at < patience.at:
            return False
        raise MigManagerError(
            Reason.SLOT_TIMEOUT, f"No fleet slot was free for {settings.slot_timeout:g} s: {self._scene}."
        )

    def _new_slots(self, limit: int) -> Slots:
        return Slots(
            self._site.api,
            self._site.signal,
            self._report.node.meta,
            namespace=self._site.settings.pod_namespace,
            pool=self._pool,
            limit=limit,
            rules=self._rules,
            watching=self._site.watching,
        )

    def _tell(self, scene: Scene) -> None:
        """Say who has the slots: at first, when it turns out that we wait, and then once in a while."""
        first, self._scene = self._scene is None, scene
        waits = scene.own_slot is None and not scene.choice()
        words = f"waiting for a slot: {scene}"
        if waits and not self._said:
            self._begin_to_wait(Phase.WAITING_FOR_SLOT, words)
        elif first:
            self._report.say(Phase.WAITING_FOR_SLOT)
        elif waits and words != self._said and time.monotonic() >= self._said_at + _NEWS_S:
            with suppress(ApiError):
                self._say(Phase.WAITING_FOR_SLOT, words)

    def _begin_to_wait(self, phase: Phase, words: str) -> None:
        logger.info("{}: {}", self._report.wish.layout, words)
        self._waited = True
        self._say(phase, words)
        self._report.event(phase, words)
        self._rest()

    def _say(self, phase: Phase, words: str) -> None:
        self._said, self._said_at = words, time.monotonic()
        self._report.say(phase, words)

    def _without_leases(self, error: ApiError) -> bool:
        """Leases are not permitted. That ends the run where an administrator wants a limit."""
        if self._limit_that_is_set:
            raise MigManagerError(
                Reason.API_ERROR, f"A limit on nodes that change at once needs Leases: {error.message}"
            ) from error
        held_back = self._site.settings.edited_layouts != "always"
        if held_back and not self._lost_everything():
            self._hold_back(f"one node at a time needs Leases, which are not permitted ({error.message})")
        logger.warning("Leases are not permitted: the edited layout is applied without a slot")
        return True

    @property
    def _edited(self) -> bool:
        return self._report.before.edited(self._report.wish)

    def _lost_everything(self) -> bool:
        return self._report.before.lost_everything(self._report.wish, self._gpus())

    def _hold_back(self, why: str) -> NoReturn:
        if not self._report.before.as_granted(self._report.wish, self._gpus()):
            raise MigManagerError(
                Reason.DRIFTED,
                "The layout was edited, and the GPUs are not as it was before either. It is not applied by itself:"
                f" {why}. To apply it, remove the label and set it again.",
            )
        raise HeldBackError(
            f"The layout was edited; the GPUs are as it was before. It is not applied by itself: {why}. "
            "To apply it, remove the label and set it again."
        )
