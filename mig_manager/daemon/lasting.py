"""GPU clients that cannot be kept away from a GPU that has to be reset."""

from __future__ import annotations

from collections.abc import Mapping

from mig_manager.cluster.client import collection_path
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operands import operand_pods, unlabelled
from mig_manager.cluster.pods import name_pods
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.site import Site
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.plan import NodePlan

_PATIENCE = 15.0
"""Seconds that the question for the pods of the node is tried again."""


def refuse_lasting_clients(site: Site, labels: Mapping[str, str], plan: NodePlan) -> None:
    """Refuse a plan that resets GPUs while clients run that keep them open and that no label of the Node stops.

    Such a client would come back at once if its pod were deleted. Pods are only asked for where GPUs are reset.

    Raises:
        MigManagerError: GpuInUse, with what to do; ApiError.
    """
    resets = [gpu.gpu.index for gpu in plan.gpus if gpu.mig.switches and gpu.mig.reset]
    lasting = [one for one in unlabelled(labels, site.operands) if one.holds_gpus]
    if not resets or not lasting:
        return
    stopped = [one for one in site.operands if one not in lasting]
    query = {"fieldSelector": f"spec.nodeName={site.node.name}"}
    answer = site.api.get(
        collection_path("pods", namespace=site.permissions.pods_namespace),
        query,
        deadline=Deadline.after(_PATIENCE),
    )
    pods = [Pod.from_json(item) for item in answer.get("items") or ()]
    held = [pod for pod in operand_pods(pods, lasting) if not any(one.stops(pod) for one in stopped)]
    if not held:
        return
    wanted = sorted({one.label for one in lasting if one.label and any(one.owns(pod) for pod in held)})
    raise MigManagerError(
        Reason.GPU_IN_USE,
        f"The change of the MIG mode takes a reset of GPU {' and '.join(map(str, resets))}, and these GPU clients "
        f"keep GPUs open and cannot be stopped for it: {name_pods(held)}. Give their DaemonSets a node selector "
        f'{", ".join(wanted) or "nvidia.com/gpu.deploy.client"}: "true" and the Node that label, or take them off '
        "this node for the change.",
    )
