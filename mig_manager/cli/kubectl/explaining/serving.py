"""Which Node and which layout would serve a pod, the one that costs the least first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mig_manager.cli.kubectl.departures import Certainty, Departure, at_least, departures
from mig_manager.cli.kubectl.explaining.scene import Place
from mig_manager.cli.kubectl.use import NodeUse, node_use, with_use
from mig_manager.daemon.advertised import expected_resources, shapes_wanted
from mig_manager.daemon.status import CONFIG_LABEL
from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import LayoutBook, resolve
from mig_manager.layouts.layout import Layout
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Remedy:
    """A layout of a Node that gives the pod what it wants, beside all that others hold."""

    node: str
    layout: str
    gives: Mapping[str, int]
    """How many devices of each wanted resource are free afterwards, at least."""
    kept: int
    """GPU instances of the node; likewise destroyed and created."""
    destroyed: int
    created: int
    switched: tuple[int, ...]
    """Indices of the GPUs whose MIG mode changes, so that everything on them has to go."""
    reset: tuple[int, ...]
    parts: bool
    """Whether what is advertised as whole GPUs are MIG devices then: the device plugin's strategy `single`."""
    leaving: tuple[Departure, ...] | None
    """The pods that have to go, or may have to; None where the pods may not be listed."""
    at_least: int
    """How many devices in use go at least, whoever has them."""
    doubts: tuple[str, ...]
    """What is assumed, in words; empty where it is certain."""

    @property
    def commands(self) -> tuple[str, str]:
        """To set it, by the plugin and by kubectl alone."""
        label = f"kubectl label node {self.node} {CONFIG_LABEL}={self.layout} --overwrite"
        return f"kubectl mig set {self.node} {self.layout}", label

    @property
    def evicts(self) -> tuple[str, ...]:
        """Pods that have to go."""
        return tuple(str(one.pod) for one in self.leaving or () if one.certainty is Certainty.CERTAIN)

    @property
    def may_evict(self) -> tuple[str, ...]:
        """Pods that may have to."""
        return tuple(str(one.pod) for one in self.leaving or () if one.certainty is not Certainty.CERTAIN)

    @property
    def held_up_by(self) -> tuple[str, ...]:
        """Those of both that would not go by an eviction, so that the change would wait and then fail."""
        return tuple(f"{one.pod} ({one.obstacle})" for one in self.leaving or () if one.obstacle)

    @property
    def cost(self) -> tuple[object, ...]:
        """The smaller the better: pods first, then what changes on the GPUs."""
        pods = len(self.held_up_by), len(self.evicts) + len(self.may_evict), self.at_least
        sizes = len(self.reset), len(self.switched), self.destroyed, self.created
        return *pods, bool(self.doubts), self.parts, *sizes


def remedies(wants: Mapping[str, int], places: Sequence[Place], *, usage_known: bool) -> tuple[Remedy, ...]:
    """The best layout of each Node, the best Node first. Only these Nodes are looked at."""
    best = []
    for place in places:
        found = sorted(_of_node(wants, place), key=lambda remedy: remedy.cost)
        best.extend(found[:1] if usage_known else [replace(each, leaving=None) for each in found[:1]])
    return tuple(sorted(best, key=lambda remedy: (*remedy.cost, remedy.node)))


def gives(book: LayoutBook | None, name: str, place: Place, wants: Mapping[str, int]) -> bool | None:
    """Whether a Node has the wanted devices at all once it has that layout; None where that cannot be told."""
    layout = book.layouts.get(name) if book is not None else None
    if layout is None or place.inventory is None:
        return None
    try:
        target = resolve(layout, [state.gpu for state in place.inventory.gpus])
        offered = expected_resources(shapes_wanted(target, place.inventory), place.strategy)
    except MigManagerError:
        return False
    return all(offered.get(resource, 0) >= count for resource, count in wants.items())


def _of_node(wants: Mapping[str, int], place: Place) -> Iterator[Remedy]:
    inventory, book = place.inventory, place.book
    if inventory is None or book is None:
        return
    use = node_use(inventory, place.strategy, place.offered, place.tenants)
    if any(kind.shared for kind in use.kinds):  # Counts of resources are none of devices then.
        return
    inventory = with_use(inventory, place.strategy, use)
    listed = set(place.node.layouts) or set(book.layouts)
    for name, layout in book.layouts.items():
        if name in listed:
            remedy = _try(wants, place, inventory, use, layout)
            if remedy is not None:
                yield remedy


def _try(
    wants: Mapping[str, int], place: Place, inventory: Inventory, use: NodeUse, layout: Layout
) -> Remedy | None:
    """What a layout does there; None where it is not possible, changes nothing or does not serve."""
    try:
        target = resolve(layout, [state.gpu for state in inventory.gpus])
        plan = plan_node(target, inventory)
        after = expected_resources(shapes_wanted(target, inventory), place.strategy)
    except MigManagerError:
        return None
    # Whoever is evicted comes back and wants the same again.
    left = {resource: after.get(resource, 0) - place.used(resource) for resource in wants}
    if not plan.changes or any(left[resource] < count for resource, count in wants.items()):
        return None
    destroyed = sum(len(gpu.destroy) for gpu in plan.gpus)
    return Remedy(
        node=place.name,
        layout=layout.name,
        gives=left,
        kept=sum(len(state.instances) for state in inventory.gpus) - destroyed,
        destroyed=destroyed,
        created=sum(len(gpu.create) for gpu in plan.gpus),
        switched=tuple(gpu.gpu.index for gpu in plan.gpus if gpu.mig.switches),
        reset=tuple(gpu.gpu.index for gpu in plan.gpus if gpu.mig.reset),
        parts=place.strategy == "single" and any(gpu.mig_enabled for gpu in target.gpus),
        leaving=departures(plan, inventory, place.strategy, use, ()),
        at_least=at_least(plan, inventory, place.strategy, use),
        doubts=place.doubts,
    )
