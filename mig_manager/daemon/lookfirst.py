"""Retries that look before they disturb: after users were in the way, nobody is cordoned or paused in vain again."""

from __future__ import annotations

from collections.abc import Sequence

from mig_manager.cluster.drain import obstacles
from mig_manager.daemon.report import Report
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import Phase
from mig_manager.daemon.tenants import Tenants, drain_options
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.clearance import Clearance
from mig_manager.gpu.holders import Holder, in_words
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

_UNTOUCHED = "Looked without a cordon; nothing was touched."


def refuse_if_still_hindered(
    site: Site,
    report: Report,
    tenants: Tenants,
    clearance: Clearance,
    plan: NodePlan,
    inventory: Inventory,
    *,
    everyone: bool = False,
) -> None:
    """Ask each eviction in a dry run, and look for processes that neither drain nor pause would end.

    `everyone`: all pods that can be evicted have to go, for the node is rebooted, and no process is in the way of that.

    Raises:
        MigManagerError: EvictionBlocked, DrainTimeout or GpuInUse; who is in the way still.
    """
    report.phase = Phase.DRAINING
    victims = tenants.in_the_way(plan, inventory, everyone=everyone)
    ending = [pod for pod in victims if pod.deleted is not None]
    if ending:
        names = ", ".join(map(str, ending))
        raise MigManagerError(
            Reason.DRAIN_TIMEOUT, f"These pods were told to end and are still there: {names}. {_UNTOUCHED}"
        )
    found = obstacles(site.api, victims, drain_options(site))
    if found:
        raise MigManagerError(Reason.EVICTION_BLOCKED, f"{'; '.join(found)}. {_UNTOUCHED}")
    report.phase = Phase.FREEING_GPUS
    holders = () if everyone else clearance.holders(plan)
    strangers = _strangers(holders, tenants, {pod.uid for pod in victims})
    if strangers:
        raise MigManagerError(Reason.GPU_IN_USE, f"{in_words(strangers)} {_UNTOUCHED}")
    report.phase = Phase.VALIDATING


def _strangers(holders: Sequence[Holder], tenants: Tenants, leaving: set[str]) -> Sequence[Holder]:
    """Those that no step before the apply makes go."""
    return [
        each
        for each in holders
        if each.owner.pod_uid is None
        or not (each.owner.pod_uid in leaving or tenants.is_client(each.owner.pod_uid))
    ]
