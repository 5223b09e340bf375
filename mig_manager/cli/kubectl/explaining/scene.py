"""What a pod waits among: its own object, the Nodes with GPUs and who uses them, and its ResourceClaims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.gpus import plugin_strategy
from mig_manager.cli.kubectl.use import Tenant
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.pods import is_gpu_resource
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.scheduling import extended_requests
from mig_manager.daemon.status import STRATEGY_LABEL
from mig_manager.layouts.book import LayoutBook
from mig_manager.planning.state import Inventory


class Cause(StrEnum):
    """Why a pod waits, or what there is to know about it; each a kind of `Finding`."""

    NOT_PENDING = "NotPending"
    ASSIGNED = "AlreadyAssigned"
    GATED = "SchedulingGated"
    NO_GPU_WANTED = "WantsNoGpu"
    IGNORED_ANNOTATION = "IgnoredAnnotation"
    NODES_UNREADABLE = "NodesUnreadable"
    NO_GPU_NODE = "NoGpuNode"
    NOT_ADVERTISED = "NotAdvertised"
    NO_PROFILE = "NotAProfile"
    OTHER_VARIANT = "OtherVariant"
    OTHER_MEMORY = "OtherMemorySize"
    SHARED_NAME = "SharedName"
    UNSUPPORTED = "UnsupportedProfile"
    STRATEGY = "Strategy"
    MORE_THAN_A_NODE = "MoreThanAnyNode"
    IN_USE = "AllInUse"
    CORDONED = "Cordoned"
    IN_A_RUN = "NodeInARun"
    TAINTED = "Tainted"
    EXCLUDED = "ExcludedBySelector"
    ROOM = "ThereIsRoom"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_WAITS = "ClaimNotAllocated"
    CLAIM_ELSEWHERE = "ClaimOnAnotherNode"
    NO_DRIVER = "NoDraDriver"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that keeps the pod waiting, or that is worth knowing."""

    cause: Cause
    text: str
    """One or two sentences."""
    nodes: tuple[str, ...] = ()
    """The Nodes that it is about."""
    todo: str = ""
    """What helps, where it is no change of layout."""
    certain: bool = True
    """Whether what the API shows proves it; else it is likely."""


@dataclass(frozen=True, slots=True)
class Place:
    """A Node with GPUs."""

    node: GpuNode
    tenants: tuple[Tenant, ...] | None = ()
    """The pods on it that have not finished; None where they may not be read."""
    inventory: Inventory | None = None
    """Its GPUs as mig-manager has noted them; None where that cannot be read."""
    book: LayoutBook | None = None
    """The layouts that serve there, as far as their content is known."""
    doubts: tuple[str, ...] = ()
    """What of that is assumed, in words: not all about the GPUs may be noted, or the layout file not be readable."""

    @property
    def name(self) -> str:
        """The Node's."""
        return self.node.name

    @property
    def offered(self) -> Mapping[str, int]:
        """The GPU resources that it advertises, without zeros."""
        return advertised(self.node.node)

    def users(self, resource: str) -> Mapping[str, int]:
        """The pods that hold some of a resource (`namespace/name`), with how many devices."""
        held = {str(each.pod): each.counts.get(resource, 0) for each in self.tenants or ()}
        return {name: count for name, count in held.items() if count}

    def used(self, resource: str) -> int:
        """How many devices pods hold of a resource."""
        return sum(self.users(resource).values())

    def free(self, resource: str) -> int:
        """How many devices of a resource the Node has left."""
        return self.offered.get(resource, 0) - self.used(resource)

    @property
    def strategy(self) -> str:
        """The device plugin's MIG strategy: `none`, `single`, `mixed`; empty where nothing tells it."""
        if self.inventory is None:
            return self.node.node.meta.labels.get(STRATEGY_LABEL, "")
        return plugin_strategy(self.node, self.inventory)


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim of the pod."""

    entry: str
    """The pod's own name for it."""
    name: str | None
    """The ResourceClaim; None while it has not been made from its template."""
    template: str | None = None
    found: JsonObject | None = None
    """The object; None where there is none."""
    template_exists: bool = True


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is known."""

    pod: JsonObject
    places: tuple[Place, ...] | None = ()
    """All Nodes with GPUs, by name; None where Nodes may not be read."""
    usage_known: bool = True
    """Whether the pods of all namespaces could be read."""
    claims: tuple[Claim, ...] = ()
    dra_pools: Mapping[str, int] = field(default_factory=dict)
    """Devices by Node that NVIDIA's DRA driver offers in its ResourceSlices."""

    @property
    def title(self) -> str:
        """`namespace/name`."""
        return f"{self.pod['metadata'].get('namespace', '')}/{self.pod['metadata']['name']}"

    @property
    def spec(self) -> JsonObject:
        """The pod's."""
        found: JsonObject = self.pod.get("spec") or {}
        return found

    @property
    def status(self) -> JsonObject:
        """The pod's."""
        found: JsonObject = self.pod.get("status") or {}
        return found

    @property
    def wants(self) -> Mapping[str, int]:
        """The GPU resources that the pod asks for."""
        return {name: count for name, count in extended_requests(self.pod).items() if is_gpu_resource(name)}

    @property
    def scheduler(self) -> str:
        """What the scheduler says about it; empty where it says nothing."""
        conditions: Iterable[dict[str, Any]] = self.status.get("conditions") or ()
        scheduled = (each for each in conditions if each.get("type") == "PodScheduled")
        return next(
            (str(each.get("message") or "") for each in scheduled if each.get("status") != "True"), ""
        )


def counted(resources: Mapping[str, int]) -> str:
    """Resources in a sentence: `2 nvidia.com/mig-1g.10gb and 1 nvidia.com/gpu`."""
    return listed([f"{count} {name}" for name, count in sorted(resources.items())])


def listed(words: Iterable[str], longest: int = 6) -> str:
    """Words in a sentence: `a, b and c`, `a, b and 7 more`."""
    found = list(words)
    if len(found) > longest:
        found = [*found[: longest - 1], f"{len(found) - longest + 1} more"]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def users_in_words(users: Mapping[str, int]) -> str:
    """Who holds devices: `ml/a (2), ml/b`."""
    return listed(f"{pod} ({count})" if count > 1 else pod for pod, count in sorted(users.items()))
