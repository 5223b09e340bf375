"""The pods that use this node's GPUs: arriving before the cordon, and leaving before a change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from loguru import logger

from mig_manager.cluster.claims import GPU_DRIVER, Claims, by_hardware
from mig_manager.cluster.drain import DrainReport, drain
from mig_manager.cluster.drainrules import DrainMode, DrainOptions
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operands import CLIENT_LABEL, Role
from mig_manager.cluster.podresources import PodDevices, PodResources, PodResourcesError, find_socket
from mig_manager.cluster.pods import name_pods, stays, unknown_to_kubelet, uses_gpu
from mig_manager.cluster.scope import affected, held_devices, known_to_kubelet
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.measures import EVICTION_RETRIES, PODS_EVICTED
from mig_manager.daemon.site import Site
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.state import Inventory

_LOOK_AGAIN = 0.5
"""Seconds between two looks at processes, of which nobody tells."""

Holders = Callable[[NodePlan], Collection[str]]
"""Gives the uids of the pods whose processes hold what a plan changes, requested or not."""


def nobody(plan: NodePlan) -> Collection[str]:
    """No process is looked at."""
    return ()


def pod_resources(site: Site) -> PodResources:
    """The kubelet's list of who holds which device; nothing is asked yet."""
    settings = site.settings
    return PodResources(settings.pod_resources_socket or find_socket(settings.host_root_mount))


def drain_options(site: Site) -> DrainOptions:
    """How to drain, by the settings."""
    settings, permissions = site.settings, site.permissions
    return DrainOptions(
        mode=DrainMode(permissions.drain_mode),
        off_because=permissions.drain_obstacle or "draining is off",
        bare_pods=settings.evict_bare_pods,
        empty_dirs=settings.evict_empty_dir_pods,
        grace_s=settings.drain_grace_period,
        timeout_s=settings.drain_timeout,
        margin_s=settings.drain_margin,
        cap_s=settings.drain_longest,
    )


class Tenants:
    """The GPU pods of this node during one run."""

    def __init__(
        self,
        site: Site,
        pods: ObjectWatch[Pod],
        kubelet: PodResources,
        claims: Claims,
        holders: Holders = nobody,
    ) -> None:
        """`holders` is asked when a plan's pods are looked for, and again when the pods of the node change."""
        self._site = site
        self._pods = pods
        self._kubelet = kubelet
        self._claims = claims
        self._holders = holders
        self._asked: frozenset[object] | None = None
        self._answer: tuple[PodDevices, ...] | None = None
        self._held_for: tuple[NodePlan, frozenset[str]] | None = None
        self._held_by: Collection[str] = ()
        self._empty: set[str] = set()
        """Uids of pods that do not end, but hold nothing any more."""

    def settle(self) -> None:
        """Wait until every GPU pod that is bound to the node is known to its kubelet, or gone.

        Raises:
            MigManagerError: DrainTimeout, naming the pods.
        """
        self._site.signal.wait_for(
            lambda: not self._unknown(),
            Deadline.after(self._site.settings.settle_timeout),
            lambda: (
                f"The kubelet has taken no notice of pods bound to this node: {name_pods(self._unknown())}."
            ),
            reason=Reason.DRAIN_TIMEOUT,
        )

    def held(self) -> frozenset[str]:
        """UUIDs of the devices that a pod holds, whether it uses them or not; empty where nobody knows."""
        return held_devices(self._allocations() or ())

    def in_the_way(self, plan: NodePlan, inventory: Inventory, *, everyone: bool = False) -> Sequence[Pod]:
        """Those that the plan takes something from; all on the GPUs, where that cannot be told.

        `everyone`: and all others that can be made to go, for the node is rebooted.
        """
        if everyone:
            found = {pod.uid: pod for pod in (*self._movable(), *self.in_the_way(plan, inventory))}
            return sorted(found.values(), key=str)
        if self._site.settings.drain_scope == "all":
            return self._together(self._on_gpus(), plan)
        return self._losing(plan, inventory)

    def devices_of(self, pod: Pod) -> frozenset[str]:
        """UUIDs of what the pod holds; empty where nobody knows."""
        allocations = self._allocations() or ()
        return held_devices(
            one for one in allocations if (one.namespace, one.name) == (pod.namespace, pod.name)
        )

    def name_of(self, uid: str) -> str | None:
        """Namespace and name of a pod of this node; None where there is none with that UID."""
        pod = self._pods.objects.get(uid)
        return None if pod is None else str(pod)

    def leave(
        self,
        plan: NodePlan,
        inventory: Inventory,
        hindered: Callable[[str], None],
        evicted: Callable[[Pod], None],
        *,
        everyone: bool = False,
    ) -> DrainReport:
        """Make those go that are in the way.

        Of `everyone`, who comes later is not meant, unless the plan takes something from it: there are pods that
        tolerate every cordon, and would come again and again.

        Raises what `drain` raises, and DrainRequired before anybody has to go: it names the pods that lose
        something, and that no drain can move.
        """
        self.refuse_immovable(plan, inventory)
        there = frozenset(self._pods.objects) if everyone else frozenset()

        def victims() -> Sequence[Pod]:
            found = {pod.uid: pod for pod in self._movable() if pod.uid in there}
            found |= {pod.uid: pod for pod in self.in_the_way(plan, inventory)}
            return sorted(found.values(), key=str)

        report = drain(
            self._site.api,
            self._pods,
            victims,
            drain_options(self._site),
            self._site.signal,
            hindered=hindered,
            evicted=evicted,
            released=lambda pod: self._released(pod, plan),
            answered=lambda goes: self._site.counts.add(PODS_EVICTED if goes else EVICTION_RETRIES),
        )
        self.refuse_immovable(plan, inventory)
        return report

    def _movable(self) -> Sequence[Pod]:
        """All that a drain can make go."""
        return [
            p for p in self._unfinished() if not (stays(p) or p.uid in self._empty or self._is_operand(p))
        ]

    def refuse_immovable(self, plan: NodePlan, inventory: Inventory) -> None:
        """Raise DrainRequired where pods lose something that no drain can move."""

        def immovable() -> list[Pod]:
            return [pod for pod in self._losing(plan, inventory) if stays(pod)]

        def let_go() -> bool:
            self.look_anew()
            return not immovable()

        found = immovable()
        if found and all(pod.uid in self._held_by for pod in found):
            # A monitor may open a GPU for a moment only.
            window = Deadline.after(self._site.settings.holder_window)
            self._site.signal.wait(let_go, window, every=_LOOK_AGAIN)
            found = immovable()
        if found:
            raise MigManagerError(
                Reason.DRAIN_REQUIRED,
                "These pods hold what has to change, and belong to a DaemonSet or to the kubelet itself, which would "
                f"bring them back at once: {name_pods(found)}. Have them stopped for a change by a node selector "
                f"{CLIENT_LABEL} (and that label on the Node), or take them off this node.",
            )

    def look_anew(self) -> None:
        """Have holders asked again, whose handles come and go while the pods stay the same."""
        self._held_for = None

    def _losing(self, plan: NodePlan, inventory: Inventory) -> Sequence[Pod]:
        """Those that lose something, or may."""
        allocations = self._allocations()
        if allocations is None:
            return self._together(self._on_gpus(), plan)
        patterns = self._site.settings.gpu_resources
        lost, known = plan.devices_lost, inventory.uuids
        return self._together(affected(self._unfinished(), allocations, lost, known, patterns), plan)

    def _together(self, pods: Sequence[Pod], plan: NodePlan) -> Sequence[Pod]:
        """With the pods that hold something without having asked for it; without the GPU clients that are paused."""
        holding = self._holding(plan)
        found = {pod.uid: pod for pod in pods}
        for pod in self._unfinished():
            if pod.uid in holding or (plan.changes and self._is_a_client(pod)):
                found[pod.uid] = pod
        kept = (p for p in found.values() if p.uid not in self._empty and not self._is_operand(p))
        return tuple(sorted(kept, key=str))

    def is_client(self, uid: str) -> bool:
        """Whether a pod of this node is a GPU client that the pause takes away, or the restart after the change."""
        pod = self._pods.objects.get(uid)
        return pod is not None and self._is_operand(pod)

    def _is_operand(self, pod: Pod) -> bool:
        """Whether it is not for a drain to move, but for the pause, or for a restart after the change."""
        return any(one.stops(pod) for one in self._site.operands)

    def _is_a_client(self, pod: Pod) -> bool:
        """Whether it names a deploy label in its node selector, but no DaemonSet takes it away with the label."""
        labels = {one.label for one in self._site.operands if one.role is not Role.VALIDATOR}
        return not stays(pod) and not labels.isdisjoint(pod.node_keys)

    def _holding(self, plan: NodePlan) -> Collection[str]:
        key = (plan, frozenset(self._pods.objects))
        if key != self._held_for:
            self._held_by = self._holders(plan)
            self._held_for = key
        return self._held_by

    def _released(self, pod: Pod, plan: NodePlan) -> bool:
        """Whether a pod that does not end holds nothing any more, by the kubelet and by the processes."""
        try:
            allocations = self._kubelet.allocations()
        except PodResourcesError:
            return False
        listed = any((one.namespace, one.name) == (pod.namespace, pod.name) for one in allocations)
        if listed or pod.uid in self._holders(plan):
            return False
        self._empty.add(pod.uid)
        return True

    def _allocations(self) -> tuple[PodDevices, ...] | None:
        """Who holds what, by kubelet and claims; None where the kubelet cannot be asked.

        What a pod holds is settled when the kubelet takes it up, so it is asked again only for other pods.
        """
        candidates = self._candidates()
        known = frozenset((pod.uid, pod.started, pod.claims) for pod in candidates)
        if not known:
            return ()
        if known != self._asked:
            try:
                listed = self._kubelet.allocations()
                told = {(one.namespace, one.name) for one in listed if "/" not in one.resource}
                claimed = self._claims.allocations(candidates, told)
                self._answer = by_hardware((*listed, *claimed), self._claims.hardware)
            except PodResourcesError as error:
                logger.warning("{} Every GPU pod counts as in the way.", error.message)
                self._answer = None
            self._asked = known
        return self._answer

    def _on_gpus(self) -> Sequence[Pod]:
        """All that use a GPU: by their requests, by their claims, or as the kubelet says."""
        patterns = self._site.settings.gpu_resources
        allocations = self._allocations()
        if allocations is None:
            allocations = self._claims.allocations(self._candidates())
        holding = {(one.namespace, one.name) for one in allocations if one.resource == GPU_DRIVER}
        return [
            pod
            for pod in self._candidates()
            if uses_gpu(pod, patterns) or (pod.namespace, pod.name) in holding
        ]

    def _unknown(self) -> Sequence[Pod]:
        patterns = self._site.settings.gpu_resources
        return unknown_to_kubelet(p for p in self._candidates() if uses_gpu(p, patterns) or p.claims)

    def _candidates(self) -> Sequence[Pod]:
        """Those that were given devices of any kind, or will be."""
        return [pod for pod in self._unfinished() if pod.resources or pod.claims]

    def _unfinished(self) -> Sequence[Pod]:
        return [pod for pod in (*self._pods.objects.values(), *self._unseen()) if not pod.finished]

    def _unseen(self) -> Sequence[Pod]:
        """Pods of other namespaces, as the kubelet knows them, where those of one alone may be listed."""
        namespace = self._site.permissions.pods_namespace
        if namespace is None:
            return ()
        try:
            return known_to_kubelet(self._kubelet.allocations(), beside=namespace)
        except PodResourcesError as error:
            logger.warning("{} Pods outside namespace {} are not known.", error.message, namespace)
            return ()
