"""The GPUs of a Node by the labels of GPU feature discovery, for Nodes of which the daemon has told nothing yet."""

from __future__ import annotations

from mig_manager.cluster.objects import Node
from mig_manager.cluster.resources import GPU_RESOURCE, MIG_PREFIX
from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.catalogue import find_model
from mig_manager.planning.state import GpuState, Inventory

_MOST_GPUS = 64


def inventory_from_labels(node: Node) -> Inventory | None:
    """GPUs of one known model, all with MIG off; None where the labels say anything else, or nothing."""
    labels = node.meta.labels
    product, count = labels.get(f"{GPU_RESOURCE}.product", ""), labels.get(f"{GPU_RESOURCE}.count", "")
    advertises_mig = any(count for name, count in node.allocatable.items() if name.startswith(MIG_PREFIX))
    cut = "-MIG-" in product or advertises_mig
    if cut or not count.isdecimal() or not 0 < int(count) <= _MOST_GPUS:
        return None
    try:
        model = find_model(product.removesuffix("-SHARED"))
    except MigManagerError:
        return None
    return Inventory(
        "",
        tuple(
            GpuState(
                GpuIdentity(
                    index,
                    f"GPU-{index}",
                    f"00000000:{index:02X}:00.0",
                    model.name,
                    model.device_ids[0],
                    model.subsystem_ids[0] if model.subsystem_ids else 0,
                    model.geometry is not None,
                ),
                False,
                False,
                model.mode_change_needs_reset,
                model.geometry,
            )
            for index in range(int(count))
        ),
    )
