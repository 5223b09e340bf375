"""Which resources a device plugin advertises for GPUs of that shape, and whether it can at all.

Source: NVIDIA's k8s-device-plugin, strategies none, single and mixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mig_manager.cluster.resources import GPU_RESOURCE, MIG_PREFIX, SHARED, seen_replicas
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import NodeTarget
from mig_manager.layouts.profile import MigProfile, dotted_profile
from mig_manager.planning.state import GpuState, Inventory


@dataclass(frozen=True, slots=True)
class GpuShape:
    """What of a GPU matters to a device plugin."""

    index: int
    mig: bool
    devices: tuple[MigProfile, ...]
    """One profile a MIG device."""


def shapes_now(inventory: Inventory) -> tuple[GpuShape, ...]:
    """The shapes of the GPUs as read."""
    return tuple(_shape(state) for state in inventory.gpus)


def shapes_wanted(target: NodeTarget, inventory: Inventory) -> tuple[GpuShape, ...]:
    """The shapes once the target holds; GPUs that it does not select stay as they are."""
    wanted = {one.gpu.index: one for one in target.gpus}
    return tuple(
        GpuShape(state.gpu.index, wanted[state.gpu.index].mig_enabled, wanted[state.gpu.index].devices)
        if state.gpu.index in wanted
        else _shape(state)
        for state in inventory.gpus
    )


def _shape(state: GpuState) -> GpuShape:
    devices = tuple(
        instance.profile.split(one.slices) for instance in state.instances for one in instance.compute
    )
    return GpuShape(state.gpu.index, state.mig_current, devices)


def resource_name(profile: MigProfile) -> str:
    """`nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`."""
    return MIG_PREFIX + str(profile).replace("+", ".")


def profile_of(resource: str) -> MigProfile | None:
    """The profile whose devices a resource stands for, shared or not: `1g.10gb+me` for `nvidia.com/mig-1g.10gb.me`.

    None for any other name.
    """
    if not resource.startswith(MIG_PREFIX):
        return None
    return dotted_profile(resource.removeprefix(MIG_PREFIX).removesuffix(SHARED))


def expected_resources(shapes: Iterable[GpuShape], strategy: str) -> Mapping[str, int]:
    """Counts by resource name that the plugin advertises, without time-slicing replicas.

    Raises:
        MigManagerError: StrategyMismatch where the plugin would refuse to start with such GPUs.
    """
    gpus = tuple(shapes)
    if strategy == "mixed":
        return _mixed(gpus)
    if strategy == "single" and any(gpu.mig for gpu in gpus):
        return _single(gpus)
    return {GPU_RESOURCE: len(gpus)} if gpus else {}


def _mixed(gpus: tuple[GpuShape, ...]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for gpu in gpus:
        if not gpu.mig:
            counts[GPU_RESOURCE] += 1
        for device in gpu.devices:
            if not device.whole:
                raise _mismatch(
                    "mixed",
                    f"GPU {gpu.index} would hold {device}, and the device plugin advertises only compute "
                    f"instances that fill their GPU instance, such as {device.gpu_instance}",
                )
            counts[resource_name(device)] += 1
    return counts


def _single(gpus: tuple[GpuShape, ...]) -> Mapping[str, int]:
    plain = [gpu.index for gpu in gpus if not gpu.mig]
    if plain:
        raise _mismatch("single", f"GPU {plain[0]} would have MIG off while others have it on")
    for gpu in gpus:
        if not gpu.devices:
            raise _mismatch("single", f"GPU {gpu.index} would be in MIG mode without any instance")
    kinds = sorted({device for gpu in gpus for device in gpu.devices})
    if len(kinds) > 1:
        raise _mismatch(
            "single", f"the node would hold {', '.join(map(str, kinds))}, and one kind is allowed"
        )
    return {GPU_RESOURCE: sum(len(gpu.devices) for gpu in gpus)}


def _mismatch(strategy: str, what: str) -> MigManagerError:
    other = "" if strategy == "mixed" else "set the strategy to 'mixed', "
    remedies = f"{other}choose a layout that suits it, or set MIG_MANAGER_CHECK_STRATEGY=false"
    return MigManagerError(
        Reason.STRATEGY_MISMATCH,
        f"the device plugin's MIG strategy on this node is {strategy!r}, and the layout does not suit it: {what}. "
        f"What helps: {remedies}",
    )


def replicas_now(inventory: Inventory, strategy: str, shown: Mapping[str, int]) -> dict[str, int]:
    """How often the device plugin offers each device of the GPUs as they are now, as far as that can be told."""
    try:
        return seen_replicas(expected_resources(shapes_now(inventory), strategy), shown)
    except MigManagerError:
        return {}
