"""The GPUs of a Node as its annotation tells them."""

from __future__ import annotations

from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.resources import GPU_RESOURCE, MIG_PREFIX, advertised
from mig_manager.daemon.gpus import AnnotationError, Reading, inventory_from_annotation
from mig_manager.daemon.status import GPUS_ANNOTATION, strategy_of
from mig_manager.planning.state import Inventory


def gpus_of(node: GpuNode) -> Reading:
    """The GPUs, and what the annotation does not tell of them.

    Raises:
        InputError: there is no annotation, or none that can be read.
    """
    text = node.node.meta.annotations.get(GPUS_ANNOTATION)
    if text is None:
        raise InputError(
            f"Node {node.name!r} has no annotation {GPUS_ANNOTATION}: mig-manager has not told what GPUs it has. "
            "Does it run there? It tells once the Node has a layout, or after its first look at the GPUs."
        )
    try:
        return inventory_from_annotation(text)
    except AnnotationError as error:
        raise InputError(
            f"the annotation {GPUS_ANNOTATION} of Node {node.name!r} cannot be read: {error}"
        ) from error


def plugin_strategy(node: GpuNode, inventory: Inventory) -> str:
    """The device plugin's MIG strategy there: by the label, else by what the Node offers."""
    offered = advertised(node.node)
    devices = sum(len(instance.compute) for state in inventory.gpus for instance in state.instances)
    whole = sum(count for name, count in offered.items() if not name.startswith(MIG_PREFIX))
    if any(name.startswith(MIG_PREFIX) for name in offered) or GPU_RESOURCE not in offered:
        likely = "mixed"
    else:
        likely = "single" if devices and whole == devices != len(inventory.gpus) else "none"
    return strategy_of(node.node.meta.labels, likely)
