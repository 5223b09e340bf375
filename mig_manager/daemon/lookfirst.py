"""Retries that look before they disturb: after users were in the way, nobody is cordoned or paused in vain again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mig_manager.cluster.drainrules import obstacles, refuse_if_off
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase
from mig_manager.daemon.tenants import Tenants, drain_options
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.cgroups import Owner
from mig_manager.gpu.clearance import Clearance
from mig_manager.gpu.holders import in_words
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

_UNTOUCHED = "Looked without a cordon; nothing was touched."


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Who is still in the way of a wish."""

    site: Site
    report: Report
    tenants: Tenants
    clearance: Clearance

    def refuse(
        self, plan: NodePlan, inventory: Inventory, *, everyone: bool, stopping: Collection[str]
    ) -> None:
        """Ask each eviction in a dry run, and look for processes that no step before the apply would end.

        Args:
            plan: what shall be done.
            inventory: what it was made from.
            everyone: all pods that can be evicted have to go, for the node is rebooted, and no process is in the way
                of that.
            stopping: names of the host units that are stopped for the change.

        Raises:
            MigManagerError: EvictionBlocked, DrainTimeout, DrainRequired or GpuInUse, naming who is in the way.
        """
        self.report.phase = Phase.DRAINING
        self.tenants.refuse_immovable(plan, inventory)
        victims = self.tenants.in_the_way(plan, inventory, everyone=everyone)
        options = drain_options(self.site)
        refuse_if_off(victims, options)
        ending = [pod for pod in victims if pod.deleted is not None]
        if ending:
            names = ", ".join(map(str, ending))
            raise MigManagerError(
                Reason.DRAIN_TIMEOUT,
                f"These pods were told to end and are still there: {names}. {_UNTOUCHED}",
            )
        if found := obstacles(self.site.api, victims, options):
            parts = (f"{'; '.join(found)}.", _UNTOUCHED, options.remedy(victims))
            raise MigManagerError(Reason.EVICTION_BLOCKED, " ".join(filter(None, parts)))
        self.report.phase = Phase.FREEING_GPUS
        leaving = {pod.uid for pod in victims}
        holders = () if everyone else self.clearance.holders(plan)
        strangers = [each for each in holders if not self._goes(each.owner, leaving, stopping)]
        if strangers:
            raise MigManagerError(Reason.GPU_IN_USE, f"{in_words(strangers)} {_UNTOUCHED}")
        self.report.phase = Phase.VALIDATING

    def _goes(self, owner: Owner, leaving: Collection[str], stopping: Collection[str]) -> bool:
        """Whether a process of theirs ends by the drain, the pause of GPU clients, or that of host units."""
        uid = owner.pod_uid
        return owner.service in stopping or (
            uid is not None and (uid in leaving or self.tenants.is_client(uid))
        )
