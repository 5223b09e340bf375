"""Waiting until the kubelet advertises what the GPUs really are.

The kubelet itself knows which devices it can give away, by their UUIDs. Where it cannot be asked, the numbers on
the Node have to do. They are old for a while, so that numbers which merely look right prove nothing: they count
only when they were seen to change, or were written after the new device plugin became ready.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from mig_manager.cluster.objects import Node, Pod
from mig_manager.cluster.operands import Operand, new_ready_pod
from mig_manager.cluster.podresources import PodResources, PodResourcesError, plain_ids
from mig_manager.cluster.resources import (
    advertised,
    labelled_replicas,
    not_fresh,
    wrong_counts,
    wrong_devices,
    wrong_offer,
)
from mig_manager.cluster.wait import Deadline
from mig_manager.cluster.watch import ObjectWatch, watch_node
from mig_manager.daemon.site import Site
from mig_manager.errors import Reason

_NONE = "The device plugin has come back without any resource: look at its log."
_OLD = "These are the resources from before the change: the device plugin has not published new ones."
_LOOK_AGAIN = 1.0
"""Seconds between two questions to the kubelet, which tells nobody when a plugin has registered."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a device plugin has to offer."""

    counts: Mapping[str, int]
    """Devices by the resource names that NVIDIA's plugin gives them; zeros do not count."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """How often each device was offered before, by the same names, as far as it is known."""
    devices: Collection[str] | None = None
    """Their UUIDs; None where they are not known, or do not matter."""
    exact: bool = False
    """Whether `counts` are what is shown in the end, replicas and all."""


class Advertised:
    """Follows the GPU resources of our Node from before its device plugin goes until the new ones are there."""

    def __init__(
        self,
        site: Site,
        pods: ObjectWatch[Pod],
        kubelet: PodResources,
        plugins: Sequence[Operand],
        before: Node,
    ) -> None:
        self._signal = site.signal
        self._patterns = site.settings.gpu_resources
        self._pods = pods
        self._kubelet = kubelet
        self._plugins = plugins
        self._before = advertised(before, self._patterns)
        self._old = frozenset(
            uid for uid, pod in pods.objects.items() if any(each.owns(pod) for each in plugins)
        )
        self._changed = False
        self._watch = watch_node(
            site.api, site.node.name, site.signal, site.watching, observe=self._observe, known=before
        )

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._watch.stop()

    @property
    def node(self) -> Node | None:
        """The Node as last seen; None while that is not known."""
        return self._watch.sole

    def wait(self, offer: Callable[[Node], Offer | None], deadline: Deadline, *, fresh: bool) -> None:
        """Wait until exactly what `offer` gives for the Node as it is now is advertised; None: nothing is to be.

        With `fresh`, only what a plugin pod has published that was not there at first counts.

        Raises:
            MigManagerError: ResourcesNotAdvertised; the message has both sets of numbers.
        """
        self._signal.wait_for(
            lambda: self._obstacle(offer, fresh) is None,
            deadline,
            lambda: self._in_words(self._obstacle(offer, fresh)),
            reason=Reason.RESOURCES_NOT_ADVERTISED,
            every=_LOOK_AGAIN,
        )

    def seen(self, offer: Callable[[Node], Offer | None], deadline: Deadline) -> bool:
        """As `wait` for fresh resources, but says whether they came in time instead of raising."""
        found = self._signal.wait(lambda: self._obstacle(offer, True) is None, deadline, every=_LOOK_AGAIN)
        return bool(found)

    def _observe(self, node: Node) -> None:
        if advertised(node, self._patterns) != self._before:
            self._changed = True

    def _in_words(self, obstacle: str | None) -> str:
        """Why it failed; and what a plugin did that is there, but has published nothing, or nothing new."""
        words = f"The GPUs are not advertised as they are: {obstacle}."
        node = self._watch.sole
        if node is None or self._new_plugin() is None:
            return words
        return f"{words} {none_or_old(advertised(node, self._patterns), self._before)}".rstrip()

    def _new_plugin(self) -> Pod | None:
        return new_ready_pod(self._pods.objects.values(), self._plugins, self._old)

    def _obstacle(self, offer: Callable[[Node], Offer | None], fresh: bool) -> str | None:
        node = self._watch.sole
        if node is None:
            return self._watch.problem or "the Node has not been read yet"
        wanted = offer(node)
        if wanted is None:
            return None
        plugin = self._new_plugin()
        if fresh and plugin is None:
            return "no new device plugin pod is Ready yet"
        offered = self._offered() if fresh and wanted.devices is not None else None
        if offered is not None:
            wrong = wrong_devices(plain_ids(offered), wanted.devices or ())
            return wrong or wrong_offer(node, offered, self._patterns)
        wrong = wrong_counts(advertised(node, self._patterns), wanted.counts, _replicas(wanted, node))
        if wrong is not None or not fresh:
            return wrong
        return not_fresh(node, changed=self._changed, plugin_ready=plugin.ready_since if plugin else None)

    def _offered(self) -> Mapping[str, tuple[str, ...]] | None:
        try:
            return self._kubelet.offered(self._patterns)
        except PodResourcesError:
            return None


def none_or_old(shown: Mapping[str, int], before: Mapping[str, int]) -> str:
    """What a device plugin has done that is there, but not seen to offer what it should; empty for neither."""
    if not shown:
        return _NONE
    return _OLD if shown == before else ""


def _replicas(offer: Offer, node: Node) -> Mapping[str, set[int]]:
    """How often each device may be offered: as before, or as GPU feature discovery says now."""
    if offer.exact:
        return {name: {1} for name in offer.counts}
    found = {name: {factor} for name, factor in offer.replicas.items()}
    for name, factor in labelled_replicas(node.meta.labels, offer.counts).items():
        found.setdefault(name, set()).add(factor)
    return found
