"""The pods that use this node's GPUs: arriving before the cordon, and leaving before a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loguru import logger

from mig_manager.cluster.drain import DrainMode, DrainOptions, drain
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.podresources import PodDevices, PodResources, PodResourcesError
from mig_manager.cluster.pods import gpu_pods, name_pods, unknown_to_kubelet
from mig_manager.cluster.scope import affected, held_devices
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.site import Site
from mig_manager.errors import Reason
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory


class Tenants:
    """The GPU pods of this node during one run."""

    def __init__(self, site: Site, pods: ObjectWatch[Pod], kubelet: PodResources) -> None:
        self._site = site
        self._pods = pods
        self._kubelet = kubelet
        self._asked: frozenset[tuple[str, bool]] | None = None
        self._answer: tuple[PodDevices, ...] | None = None

    def settle(self) -> None:
        """Wait until every GPU pod that is bound to the node is known to its kubelet, or gone.

        Raises:
            MigManagerError: DrainTimeout, naming the pods.
        """
        self._site.signal.wait_for(
            lambda: not unknown_to_kubelet(self._present()),
            Deadline.after(self._site.settings.settle_timeout),
            lambda: (
                "The kubelet has taken no notice of pods bound to this node: "
                f"{name_pods(unknown_to_kubelet(self._present()))}."
            ),
            reason=Reason.DRAIN_TIMEOUT,
        )

    def held(self) -> frozenset[str]:
        """UUIDs of the devices that a pod holds, whether it uses them or not; empty where nobody knows."""
        return held_devices(self._allocations() or ())

    def in_the_way(self, plan: NodePlan, inventory: Inventory) -> Sequence[Pod]:
        """Those that the plan takes something from; all, where that cannot be told."""
        present = self._present()
        if self._site.settings.drain_scope == "all":
            return present
        held = self._allocations()
        if held is None:
            return present
        patterns = self._site.settings.gpu_resources
        return affected(self._pods.objects.values(), held, plan.devices_lost, inventory.uuids, patterns)

    def name_of(self, uid: str) -> str | None:
        """Namespace and name of a pod of this node; None where there is none with that UID."""
        pod = self._pods.objects.get(uid)
        return None if pod is None else str(pod)

    def leave(self, plan: NodePlan, inventory: Inventory, hindered: Callable[[str], None]) -> Sequence[Pod]:
        """Make those go that are in the way; gives those that are gone. Raises what `drain` raises."""
        settings = self._site.settings
        options = DrainOptions(
            mode=DrainMode(settings.drain_mode),
            bare_pods=settings.evict_bare_pods,
            timeout_s=settings.drain_timeout,
            margin_s=settings.drain_margin,
        )
        return drain(
            self._site.api,
            self._pods,
            lambda: self.in_the_way(plan, inventory),
            options,
            self._site.signal,
            hindered=hindered,
        ).gone

    def _allocations(self) -> tuple[PodDevices, ...] | None:
        """Who holds what, by the kubelet; None where it cannot be asked.

        What a pod holds is settled when the kubelet takes it up, so it is asked again only for other pods.
        """
        known = frozenset((pod.uid, pod.started) for pod in self._present())
        if not known:
            return ()
        if known != self._asked:
            try:
                self._answer = self._kubelet.allocations()
            except PodResourcesError as error:
                logger.warning("{} Every GPU pod counts as in the way.", error.message)
                self._answer = None
            self._asked = known
        return self._answer

    def _present(self) -> Sequence[Pod]:
        return gpu_pods(self._pods.objects.values(), self._site.settings.gpu_resources)
