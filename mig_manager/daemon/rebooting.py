"""Reboots of the node, where nothing else makes a MIG mode so: asked for at most once for each wish.

That one was asked for is written down before the command runs, in the journal and in the status, and stays there:
no crash, no restart of the daemon and no failure leads to a second one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from loguru import logger

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node, parse_time
from mig_manager.daemon.hardware import Hardware
from mig_manager.daemon.interrupts import Interrupts
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase, Reboot, State, now
from mig_manager.daemon.wish import Wish
from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.reboot import boot_id, reboot
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.plan import NodePlan

_HELPED = frozenset({Reason.RESET_NOT_SUPPORTED, Reason.REBOOT_REQUIRED})
"""Failures of a reset that a reboot makes good."""
_ONCE = (
    "The node is rebooted once for a layout; to have it tried again, remove the label nvidia.com/mig.config and set"
    " it anew."
)


class Rebooting:
    """The reboot of a run: before it, over it, and after it."""

    def __init__(
        self, site: Site, report: Report, gpus: Hardware, interrupts: Interrupts, *, gently: bool = False
    ) -> None:
        """`gently`: the run takes nothing from anybody, so that it does not reboot."""
        self._site = site
        self._allowed = site.settings.with_reboot and not gently
        self._report = report
        self._gpus = gpus
        self._interrupts = interrupts
        self.begun = report.journal is not None and report.journal.reboot is not None
        """Whether modes wait for a reboot, or have waited for one, since the run began."""

    # Before.

    def needed_for(self, plan: NodePlan) -> MigManagerError | None:
        """Why the plan needs a reboot; None where a reset will do, as far as can be told beforehand.

        Raises:
            MigManagerError: ResetNotSupported, and no reboot may help; RebootRequired: one did not.
        """
        self._refuse_again(plan)
        try:
            self._gpus.clearance.prove(plan)
        except MigManagerError as refusal:
            self.must_help(refusal, plan)
            return refusal
        return None

    def must_help(self, refusal: MigManagerError, plan: NodePlan) -> None:
        """Come back only if the node shall be rebooted because of that failure; else raise it.

        From Hopper on no mode outlives a reboot, so one only helps to switch MIG off; but beside a GPU that waits
        for a reset, such a GPU is switched on by the next boot.
        """
        switches = [gpu.mig for gpu in plan.gpus if gpu.mig.switches]
        helps = any(mig.reset for mig in switches) or not any(mig.target for mig in switches)
        if not self._allowed or refusal.reason not in _HELPED or not (switches and helps):
            raise refusal
        if self._site.permissions.pods_namespace is not None:
            raise MigManagerError(
                refusal.reason,
                f"{refusal.message} The node is not rebooted, for its pods cannot all be listed, and so not drained.",
            )
        asked = self._report.reboot
        if asked is not None:
            raise MigManagerError(
                Reason.REBOOT_REQUIRED,
                f"{refusal.message} A reboot was asked for at {asked.at} already. {_ONCE}",
            )

    def _refuse_again(self, plan: NodePlan) -> None:
        """Raise RebootRequired where the node was rebooted for this plan, or should have been, in vain."""
        asked, said = self._report.reboot, self._report.before.status
        stuck = [gpu for gpu in plan.gpus if gpu.mig.switches and gpu.mig.reset]
        if asked is None or not stuck:
            return
        if self.begun:
            self._report.phase = Phase.REBOOTING
            mode = "on" if stuck[0].mig.current else "off"
            raise MigManagerError(
                Reason.REBOOT_REQUIRED,
                f"MIG mode of {gpu_numbers([gpu.gpu.index for gpu in stuck])} is still {mode}, although the node was"
                f" rebooted for it (asked for at {asked.at}). {_ONCE}",
            )
        if said is not None and said.reason is Reason.REBOOT_REQUIRED and said.message:
            self._report.phase = said.phase
            raise MigManagerError(Reason.REBOOT_REQUIRED, said.message)

    # Over it.

    def carry_out(self) -> NoReturn:
        """Let the modes of the plan wait for a reboot, and reboot; the next boot goes on.

        Raises:
            MigManagerError: RebootRequired; the command failed, or the node is still up at the deadline.
            StoppingError: the daemon is to end, as it is when the node goes down.
        """
        boot = boot_id(self._site.settings.proc_root)
        journal = self._report.journal
        assert journal is not None
        # A reset that was tried and refused has left instances that were built anew.
        self._gpus.read()
        self._gpus.plan(self._report.wish.must())
        self._interrupts.check()
        self.begun = True
        try:
            self._gpus.leave_pending(journal)
        except MigManagerError as error:
            if error.reason is Reason.INTERRUPTED:
                self._interrupts.check()
            raise
        self._interrupts.check()
        wish = self._report.wish
        asked = Reboot(wish.layout, wish.hash, boot, now())
        self._note(asked)
        settings = self._site.settings
        self._report.event("Rebooting", f"{wish.layout}: the node is rebooted for its MIG modes")
        logger.info("rebooting the node: {}", " ".join(settings.reboot_command))
        try:
            reboot(settings.reboot_command, host=settings.host_root_mount, timeout_s=settings.reboot_timeout)
        except MigManagerError as failure:
            self._interrupts.check()
            raise MigManagerError(failure.reason, f"{failure.message}. {_ONCE}") from failure
        self._wait(asked, "the reboot command, which ended well")

    def _note(self, asked: Reboot) -> None:
        """Write down that a reboot is asked for; from here on it is the only one."""

        def noted(node: Node) -> NodeChange:
            journal = self._report.journal_on(node)
            assert journal is not None
            return self._report.cordon(node, replace(journal, reboot=asked))

        try:
            self._report.change(Phase.REBOOTING, noted, state=State.REBOOTING)
        except MigManagerError:
            assert self._report.journal is not None
            self._report.journal = replace(self._report.journal, reboot=None)
            raise

    def _wait(self, asked: Reboot, what: str) -> NoReturn:
        """Wait for the end, which the node brings us; or for the deadline, and say that none has come after `what`."""
        self._report.phase = Phase.REBOOTING
        longest = self._site.settings.reboot_timeout
        began = parse_time(asked.at)
        spent = (datetime.now(UTC) - began).total_seconds() if began is not None else 0.0
        self._site.signal.pause(min(max(longest - spent, 0.0), longest))
        raise MigManagerError(
            Reason.REBOOT_REQUIRED,
            f"The node is still up {longest:g} s after {what}. {_ONCE}",
        )

    # After it.

    def await_boot(self) -> None:
        """Come back only once a reboot that an earlier process has asked for is over, if there is one.

        Raises:
            MigManagerError: RebootRequired; the node is still up at the deadline. The GPUs have been read.
            StoppingError: the daemon is to end.
        """
        journal = self._report.journal
        asked = journal.reboot if journal is not None else None
        if asked is None:
            return
        if boot_id(self._site.settings.proc_root) != asked.boot:
            logger.info("the node was rebooted for layout {}: going on", asked.layout)
            return
        logger.info("a reboot was asked for at {}: waiting for it", asked.at)
        try:
            self._wait(asked, f"a reboot was asked for at {asked.at} by a daemon that has ended since")
        except MigManagerError:
            self._gpus.read()
            self._report.wish = Wish(asked.layout, asked.hash)
            self._report.phase = Phase.REBOOTING
            raise

    def bring_back_others(self) -> None:
        """Give the GPUs that the layout does not name back what the reboot took from them."""
        journal = self._report.journal
        if journal is not None and journal.reboot is not None:
            self._gpus.bring_back_others(journal)
