"""Drift: GPUs that are not any more what a run has left and `success` has claimed.

Somebody may change them by hand, and no instance outlives a reload of the driver. The GPUs are compared now and
then, in an NVML session that lasts a moment. That the driver was loaded anew is seen sooner, and without NVML: by
a glance at the state of its kernel module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from loguru import logger

from mig_manager.cluster.claims import Claims
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.pods import name_pods
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import watch_pods
from mig_manager.daemon.gpus import facts_in, gpus_annotation
from mig_manager.daemon.site import Site
from mig_manager.daemon.status import (
    GPUS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Granted,
    State,
    Status,
    fitting,
    now,
)
from mig_manager.daemon.tenants import Tenants, pod_resources
from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.module import module_load
from mig_manager.layouts.layout import NodeTarget
from mig_manager.planning.explain import gpu_words
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory
from mig_manager.planning.verify import differences

_MOST_NAMED = 8
_PODS_PATIENCE = 10.0
"""Seconds to see the pods of the node, and so who would lose something."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at the GPUs has found."""

    inventory: Inventory | None
    """None where they could not be read, look after look, although the driver is there."""
    target: NodeTarget
    words: str
    """What is not as the layout says; empty where everything is."""
    gpus: tuple[int, ...]
    """Indices of the GPUs that differ."""
    reloaded: bool
    """Whether the driver was loaded anew since the layout was applied."""


class Drift:
    """Knows when to look at the GPUs again, and looks. Between two looks nothing of NVML is held."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._load: int | None = None
        """The driver's load under which the GPUs were as the layout says; None where it cannot be seen."""
        self._missed: tuple[int | None, str] = (None, "")
        """The load under which the last look failed, and why."""
        self._target: NodeTarget | None = None
        self._next = math.inf
        self.words = ""
        """What the last look found; empty for nothing."""
        self.told = ""
        """What of that stands on the Node, with the reason `Drifted`."""

    def begin(self) -> None:
        """A run begins to read the GPUs: nothing is looked at until `watch`."""
        self.rest()
        self._load = module_load(self._site.settings.sys_root)

    def watch(self, target: NodeTarget | None, told: str | None) -> None:
        """The GPUs are as the target says (None: as nobody can say); see that they stay so.

        `told`: what the run has said of a difference that it left.
        """
        self._target = target
        self.told = told or ""
        self._schedule(self._site.settings.drift_interval or math.inf)

    def rest(self) -> None:
        """There is nothing that the GPUs should be."""
        self._target = None
        self._next = math.inf
        self._missed = (None, "")
        self.words = self.told = ""

    def deadline(self) -> Deadline:
        """When the next look is due; never, if none is planned."""
        return Deadline(self._next)

    @property
    def glance_s(self) -> float:
        """Seconds between two questions whether a look is `due`, for nobody notifies of a reload."""
        watched = self._target is not None and self._load is not None
        return self._site.settings.driver_retry if watched else math.inf

    def due(self) -> bool:
        """Whether to look now."""
        if self._target is None:
            return False
        if time.monotonic() >= self._next:
            return True
        if self._load is None:
            return False
        load = module_load(self._site.settings.sys_root)
        if load is None:
            self._miss(None, "its kernel module is not loaded")
        return load not in (None, self._load, self._missed[0])

    def look(self) -> Finding | None:
        """Compare the GPUs with the layout.

        None: there is nothing to say (yet); also where the driver is not there, which is no failure.
        """
        assert self._target is not None
        self._schedule(self._site.settings.drift_interval or math.inf)
        load = module_load(self._site.settings.sys_root)
        reloaded = self._load is not None and load != self._load
        if reloaded and load is None:
            self._miss(None, "its kernel module is not loaded")
            return None
        try:
            with self._site.new_worker() as worker:
                inventory = worker.inventory()
        except MigManagerError as error:
            again = load is not None and not reloaded and self._missed == (load, error.message)
            self._miss(load, error.message)
            if reloaded:  # It is on its way, as a rule.
                self._schedule(self._site.settings.driver_retry)
            if not again:
                return None
            self.words = f"they cannot be read: {error.message}"
            everywhere = tuple(one.gpu.index for one in self._target.gpus)
            return Finding(None, self._target, self.words, everywhere, reloaded=False)
        finding = _compare(self._target, inventory)
        if self._load is None:
            reloaded = _all_gone(self._target, inventory)
        first = bool(finding.words) and finding.words != self.words
        self._load, self._missed, self.words = load, (None, ""), finding.words
        if first and not reloaded:
            # Somebody may be in the middle of a change: it counts if it is still so a moment later.
            self._schedule(min(self._site.settings.driver_retry, self._site.settings.drift_interval))
            return None
        return replace(finding, reloaded=reloaded)

    def users(self, finding: Finding) -> str:
        """Who would lose something if the layout were applied again, in words; empty: nobody."""
        site = self._site
        assert finding.inventory is not None
        try:
            with (
                pod_resources(site) as kubelet,
                watch_pods(site.api, site.node.name, site.signal, site.watching) as pods,
            ):
                pods.wait_synced(Deadline.after(_PODS_PATIENCE))
                tenants = Tenants(site, pods, kubelet, Claims(site.api, site.node.name))
                inventory = finding.inventory.held(tenants.held())
                plan = plan_node(finding.target, inventory)
                losing = tenants.in_the_way(plan, inventory)
        except MigManagerError as error:
            return f"somebody, perhaps: {error.message}"
        return name_pods(losing) if losing else ", ".join(_busy(plan, inventory))

    def _schedule(self, seconds: float) -> None:
        self._next = time.monotonic() + seconds

    def _miss(self, load: int | None, why: str) -> None:
        """Say once that the GPUs cannot be looked at."""
        if why != self._missed[1]:
            logger.warning("the NVIDIA driver is away, so that the GPUs cannot be looked at: {}", why)
        self._missed = (load, why)


def _compare(target: NodeTarget, inventory: Inventory) -> Finding:
    try:
        plan = plan_node(target, inventory)
    except MigManagerError as error:
        everywhere = tuple(one.gpu.index for one in target.gpus)
        return Finding(inventory, target, error.message, everywhere, reloaded=False)
    found = differences(plan, inventory)
    words = "; ".join(found[:_MOST_NAMED])
    if len(found) > _MOST_NAMED:
        words += f"; and {len(found) - _MOST_NAMED} more"
    gpus = tuple(gpu.gpu.index for gpu in plan.gpus if gpu.changes)
    return Finding(inventory, target, words, gpus, reloaded=False)


def _all_gone(target: NodeTarget, inventory: Inventory) -> bool:
    """Whether no instance is left where the layout has some, as behind a reload of the driver."""
    wanted = {one.gpu.uuid for one in target.gpus if one.devices}
    left = {state.gpu.uuid for state in inventory.gpus if state.instances}
    return bool(wanted) and not wanted & left


def _busy(plan: NodePlan, inventory: Inventory) -> Iterator[str]:
    """What of that which goes is in use, by NVML."""
    states = {state.gpu.uuid: state for state in inventory.gpus}
    for gpu in plan.gpus:
        for instance in gpu.affected:
            if instance.busy:
                yield f"a process on {instance.profile} at {instance.placement.start} of {gpu_words(gpu.gpu)}"
        if gpu.mig.switches and states[gpu.gpu.uuid].busy:
            yield f"a process on {gpu_words(gpu.gpu)}"


def telling(meta: NodeMeta, finding: Finding, left: str, told: str) -> tuple[NodeChange, Status | None]:
    """What has to be said on the Node after a look; an empty change for nothing new.

    The state is `failed` as long as the GPUs differ, for `success` means that they were read and are right.

    Args:
        meta: the Node as last seen.
        finding: of the look.
        left: why the GPUs are left as they are, a sentence. A change of that alone is no news.
        told: the difference that was told last; empty for none.

    Gives the new status too, where that is news.
    """
    before = meta.annotations.get(GPUS_ANNOTATION, "")
    seen = before if finding.inventory is None else gpus_annotation(finding.inventory)
    change = NodeChange()
    if seen != before:
        change |= NodeChange(annotations={GPUS_ANNOTATION: seen})
    said = Status.from_json(meta.annotations.get(STATUS_ANNOTATION))
    if said is None:
        return change, None
    if not finding.words:
        # GPUs that the layout does not name may be others by now.
        granted = said.granted.hash if said.granted else said.hash
        said = replace(said, granted=Granted.of(granted, facts_in(seen)))
    if finding.words == told:
        if change:
            change |= NodeChange(annotations={STATUS_ANNOTATION: said.to_json()})
        return change, None
    message = f"The GPUs are not as the layout says any more: {finding.words}. {left}"
    news = replace(
        said,
        state=State.FAILED if finding.words else State.SUCCESS,
        reason=Reason.DRIFTED if finding.words else None,
        message=fitting(message) if finding.words else None,
        finishedAt=now(),
        gpus=finding.gpus,
    )
    labels = {STATE_LABEL: news.state}
    return change | NodeChange(labels=labels, annotations={STATUS_ANNOTATION: news.to_json()}), news
