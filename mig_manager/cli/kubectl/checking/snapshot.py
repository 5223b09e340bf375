"""What the API shows at one moment of all that mig-manager has to do with, and what a check says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mig_manager.cli.kubectl.checking.daemonpods import Account, DaemonPod, daemon_pods
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.objects import JsonObject
from mig_manager.daemon.permissions import Need
from mig_manager.planning.state import Inventory

CLUSTER = "cluster"
"""The place of a check that is about no single Node."""


class Verdict(StrEnum):
    """How a check ends, the best first."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It cannot be told, as a rule because something may not be read."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    where: str
    """A Node, or `CLUSTER`."""
    verdict: Verdict
    found: str
    """What was seen; one or two sentences without the last full stop."""
    todo: str = ""
    """A command, or a few words."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the checks go by. What could not be read is None, and `unread` says why."""

    now: datetime
    version: str
    """Of this program."""
    kubernetes: str = ""
    """`v1.34.1`; empty where the API server does not tell."""
    nodes: tuple[GpuNode, ...] = ()
    """The Nodes to check."""
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    """By Node: its GPUs as mig-manager has noted them, where that can be read."""
    pods: tuple[JsonObject, ...] | None = ()
    """Those of all namespaces that have not finished."""
    slices: tuple[JsonObject, ...] | None = ()
    """ResourceSlices of NVIDIA's DRA driver."""
    policies: tuple[JsonObject, ...] | None = ()
    """ValidatingAdmissionPolicies."""
    bindings: tuple[JsonObject, ...] | None = ()
    missing: Mapping[Account, tuple[Need, ...]] | None = field(default_factory=dict)
    """What the daemons' service accounts may not do and should."""
    complaints: tuple[str, ...] = ()
    """What daemons have said in Events about permissions that they lack."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By the name of a field: why it is None."""

    @property
    def daemons(self) -> tuple[DaemonPod, ...]:
        """The daemon's pods, on all Nodes; empty also where pods may not be read."""
        return daemon_pods(self.pods or ())

    def daemons_on(self, node: str) -> tuple[DaemonPod, ...]:
        """Those of one Node."""
        return tuple(each for each in self.daemons if each.node == node)

    def daemon_runs(self, node: str) -> bool | None:
        """Whether a daemon works on a Node; None where that cannot be told: it may run without a pod."""
        if not self.daemons:
            return None
        return any(each.ready for each in self.daemons_on(node))

    def pods_on(self, node: str) -> tuple[JsonObject, ...]:
        """The pods of one Node that have not finished."""
        return tuple(each for each in self.pods or () if (each.get("spec") or {}).get("nodeName") == node)


ClusterCheck = Callable[[Snapshot], Iterator[Check]]
NodeCheck = Callable[[Snapshot, GpuNode], Iterator[Check]]
