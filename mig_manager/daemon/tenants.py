"""The pods that use this node's GPUs: arriving before the cordon, and leaving before a change."""

from __future__ import annotations

from collections.abc import Sequence

from mig_manager.cluster.drain import DrainMode, DrainOptions, drain
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.pods import gpu_pods, name_pods, unknown_to_kubelet
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.site import Site
from mig_manager.errors import Reason


class Tenants:
    """The GPU pods of this node during one run."""

    def __init__(self, site: Site, pods: ObjectWatch[Pod]) -> None:
        self._site = site
        self._pods = pods

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

    def leave(self) -> Sequence[Pod]:
        """Make them go as the settings say; gives those that are gone. Raises what `drain` raises."""
        settings = self._site.settings
        options = DrainOptions(
            mode=DrainMode(settings.drain_mode),
            bare_pods=settings.evict_bare_pods,
            timeout_s=settings.drain_timeout,
            margin_s=settings.drain_margin,
        )
        return drain(self._site.api, self._pods, self._present, options, self._site.signal).gone

    def _present(self) -> Sequence[Pod]:
        return gpu_pods(self._pods.objects.values(), self._site.settings.gpu_resources)
