"""All checks, one after another."""

from __future__ import annotations

from collections.abc import Iterator

from mig_manager.cli.kubectl.checking.leftovers import leftovers
from mig_manager.cli.kubectl.checking.of_clients import device_plugin, paused, resources
from mig_manager.cli.kubectl.checking.of_cluster import (
    admission_policy,
    daemons,
    kubernetes,
    permissions,
    versions,
)
from mig_manager.cli.kubectl.checking.of_node import daemon, driver, layout, state, without_mig
from mig_manager.cli.kubectl.checking.owners import owners
from mig_manager.cli.kubectl.checking.snapshot import (
    CLUSTER,
    Check,
    ClusterCheck,
    NodeCheck,
    Snapshot,
    Verdict,
)

OF_CLUSTER: tuple[ClusterCheck, ...] = (kubernetes, daemons, versions, permissions, admission_policy)
OF_NODE: tuple[NodeCheck, ...] = (
    daemon,
    driver,
    layout,
    state,
    device_plugin,
    resources,
    paused,
    leftovers,
    owners,
)


def examine(seen: Snapshot) -> Iterator[Check]:
    """The checks of the cluster, then those of each Node."""
    for check in OF_CLUSTER:
        yield from check(seen)
    if not seen.nodes:
        yield Check("nodes", CLUSTER, Verdict.WARNING, "no Node has GPUs that anything tells of")
    for node in seen.nodes:
        if without_mig(node) and not node.in_a_run:
            yield Check("node", node.name, Verdict.OK, "none of its GPUs has MIG, so that it is left alone")
            continue
        for of_node in OF_NODE:
            yield from of_node(seen, node)
