"""Waiting until the kubelet advertises what the GPUs really are.

The kubelet itself knows which devices it can give away, by their UUIDs. Where it cannot be asked, the numbers on
the Node have to do. They are old for a while, so that numbers which merely look right prove nothing: they count
only when they were seen to change, or were written after the new device plugin became ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Self

from mig_manager.cluster.objects import Node, Pod
from mig_manager.cluster.operands import Operand, new_ready_pod
from mig_manager.cluster.podresources import PodResources, PodResourcesError
from mig_manager.cluster.resources import advertised, not_fresh, wrong_devices
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch, watch_node
from mig_manager.daemon.site import Site
from mig_manager.errors import Reason

_LOOK_AGAIN = 1.0
"""Seconds between two questions to the kubelet, which tells nobody when a plugin has registered."""


class Advertised:
    """Follows the GPU resources of our Node from before its device plugin goes until the new ones are there."""

    def __init__(
        self, site: Site, pods: ObjectWatch[Pod], kubelet: PodResources, plugin: Operand, before: Node
    ) -> None:
        self._signal = site.signal
        self._patterns = site.settings.gpu_resources
        self._pods = pods
        self._kubelet = kubelet
        self._plugin = plugin
        self._before = advertised(before, self._patterns)
        self._old = frozenset(uid for uid, pod in pods.objects.items() if plugin.owns(pod))
        self._changed = False
        self._watch = watch_node(site.api, site.node.name, site.signal, site.watching, observe=self._observe)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._watch.stop()

    @property
    def shown(self) -> Mapping[str, int]:
        """What is advertised at this moment, as far as is known."""
        node = self._watch.sole
        return self._before if node is None else advertised(node, self._patterns)

    def wait(
        self,
        wanted: Callable[[], Mapping[str, int]],
        deadline: Deadline,
        *,
        fresh: bool,
        devices: frozenset[str] | None = None,
    ) -> None:
        """Wait until exactly what `wanted` gives is advertised (counts by resource name; zeros do not count).

        With `fresh`, only what a plugin pod has published that was not there at first counts; `devices` are
        the UUIDs that it must have published, where they are known.

        Raises:
            MigManagerError: ResourcesNotAdvertised; the message has both sets of numbers.
        """
        self._signal.wait_for(
            lambda: self._obstacle(wanted(), fresh, devices) is None,
            deadline,
            lambda: f"The GPUs are not advertised as they are: {self._obstacle(wanted(), fresh, devices)}.",
            reason=Reason.RESOURCES_NOT_ADVERTISED,
            every=_LOOK_AGAIN,
        )

    def _observe(self, node: Node) -> None:
        if advertised(node, self._patterns) != self._before:
            self._changed = True

    def _obstacle(self, wanted: Mapping[str, int], fresh: bool, devices: frozenset[str] | None) -> str | None:
        node = self._watch.sole
        if node is None:
            return self._watch.problem or "the Node has not been read yet"
        if not fresh:
            return not_fresh(node, wanted, changed=True, plugin_ready=None, patterns=self._patterns)
        plugin = new_ready_pod(self._pods.objects.values(), self._plugin, self._old)
        if plugin is None:
            return "no new device plugin pod is Ready yet"
        listed = self._listed() if devices is not None else None
        if devices is not None and listed is not None:
            wrong = wrong_devices(listed, devices)
            return wrong or not_fresh(node, wanted, changed=True, plugin_ready=None, patterns=self._patterns)
        ready: datetime | None = plugin.ready_since
        return not_fresh(node, wanted, changed=self._changed, plugin_ready=ready, patterns=self._patterns)

    def _listed(self) -> frozenset[str] | None:
        try:
            return self._kubelet.allocatable(self._patterns)
        except PodResourcesError:
            return None
