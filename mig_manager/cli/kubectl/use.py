"""Which pods use which GPUs and MIG devices of a node, as far as the API tells.

Which device of a type a pod has been given, only the kubelet knows. The API tells the type and the number, and that is
exact where all devices of the type are in use, or none is; and ResourceClaims name their device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from mig_manager.cluster.claims import GPU_DRIVER, SliceDevice
from mig_manager.cluster.objects import JsonObject, Pod
from mig_manager.cluster.pods import is_gpu_resource
from mig_manager.cluster.resources import GPU_RESOURCE, SHARED
from mig_manager.cluster.scheduling import extended_requests
from mig_manager.daemon.advertised import resource_name
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import GpuInstance, GpuState, Inventory

if TYPE_CHECKING:
    from mig_manager.cluster.client import Api


class Use(StrEnum):
    """Whether pods hold a device."""

    USED = "used"
    FREE = "free"
    UNKNOWN = "unknown"
    """Some devices of its type are held, and it may be one of them."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod, and what it asks for."""

    pod: Pod
    counts: Mapping[str, int]
    """GPU resources, above zero."""

    @classmethod
    def from_json(cls, obj: JsonObject) -> Tenant:
        """From a Pod."""
        wanted = extended_requests(obj).items()
        return cls(
            Pod.from_json(obj), {name: count for name, count in wanted if count and is_gpu_resource(name)}
        )


@dataclass(frozen=True, slots=True)
class Device:
    """What a pod can be given: a MIG device, or a GPU as a whole."""

    gpu: int
    """Index."""
    resource: str
    """Under which NVIDIA's device plugin offers it, without `.shared`."""
    placement: Placement | None = None
    """Of the GPU instance that it lies in; None: the GPU as a whole."""
    number: int = 0
    """Of its compute instance there."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod, and how many devices of a type it holds."""

    pod: Pod
    count: int


@dataclass(frozen=True, slots=True)
class Kind:
    """The devices of one type, and who holds some of them."""

    resource: str
    devices: tuple[Device, ...]
    offered: int
    """What the Node has allocatable of it; more than there are devices where they are shared."""
    holdings: tuple[Holding, ...]

    @property
    def held(self) -> int:
        """How much of it pods hold."""
        return sum(holding.count for holding in self.holdings)

    @property
    def shared(self) -> bool:
        """Whether several pods may hold the same device."""
        return self.offered > len(self.devices)

    @property
    def use(self) -> Use:
        """Of each of its devices."""
        if not self.held:
            return Use.FREE
        return Use.USED if self.held >= max(self.offered, len(self.devices)) else Use.UNKNOWN


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What is known of one device."""

    use: Use
    pods: tuple[Pod, ...] = ()
    """Those that hold it for certain."""
    possible: tuple[Pod, ...] = ()
    """Those that hold one of its type, and perhaps this one."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """Who uses what on a node."""

    kinds: tuple[Kind, ...]
    """By resource. Each device is in exactly one."""
    claimed: Mapping[Device, tuple[Pod, ...]]
    """By ResourceClaims."""
    strays: tuple[tuple[Pod, str], ...]
    """Pods that hold something of which it cannot be told what it is, and what that is, in words."""
    known: bool = True
    """Whether the pods are known at all."""

    def of(self, device: Device) -> DeviceUse:
        """What is known of a device."""
        if not self.known:
            return DeviceUse(Use.UNKNOWN)
        by_claim = self.claimed.get(device, ())
        if by_claim:
            return DeviceUse(Use.USED, by_claim)
        kind = next(kind for kind in self.kinds if device in kind.devices)
        pods = tuple(holding.pod for holding in kind.holdings)
        if pods and (len(kind.devices) == 1 or (kind.use is Use.USED and len(pods) == 1)):
            return DeviceUse(Use.USED, pods)
        return DeviceUse(kind.use, (), pods)


def devices_of(state: GpuState, strategy: str) -> tuple[Device, ...]:
    """What pods can be given of a GPU, with that strategy of the device plugin."""
    index = state.gpu.index
    if not state.mig_current or strategy == "none":
        return (Device(index, GPU_RESOURCE),)
    return tuple(
        Device(
            index,
            GPU_RESOURCE if strategy == "single" else resource_name(instance.profile.split(one.slices)),
            instance.placement,
            number,
        )
        for instance in state.instances
        for number, one in enumerate(instance.compute)
    )


def devices_in(instance: GpuInstance, state: GpuState, strategy: str) -> tuple[Device, ...]:
    """The devices that lie in an instance; the whole GPU where it is given away as one."""
    found = devices_of(state, strategy)
    return tuple(each for each in found if each.placement in (None, instance.placement))


def node_use(
    inventory: Inventory,
    strategy: str,
    offered: Mapping[str, int],
    tenants: Iterable[Tenant] | None,
    claims: Mapping[str, Sequence[str]] | None = None,
    slices: Mapping[str, SliceDevice] | None = None,
) -> NodeUse:
    """Who uses what.

    Args:
        inventory: the GPUs.
        strategy: the device plugin's: none, single, mixed.
        offered: allocatable GPU resources of the Node.
        tenants: the pods of the node; finished ones do not count. None: they cannot be read.
        claims: by uid of the pod, what its ResourceClaims hold of NVIDIA's driver: `pool/device`, or other words
            where they cannot be read.
        slices: what the driver offers, by `pool/device`.
    """
    devices = [device for state in inventory.gpus for device in devices_of(state, strategy)]
    held: dict[str, list[Holding]] = {}
    claimed: dict[Device, tuple[Pod, ...]] = {}
    strays: list[tuple[Pod, str]] = []
    for tenant in tenants or ():
        pod = tenant.pod
        if pod.finished:
            continue
        for name, count in tenant.counts.items():
            held.setdefault(name.removesuffix(SHARED), []).append(Holding(pod, count))
        for name in (claims or {}).get(pod.uid, ()):
            device = _device_of((slices or {}).get(name), inventory, devices)
            if device is None:
                strays.append((pod, name))
            else:
                claimed[device] = (*claimed.get(device, ()), pod)
    kinds = []
    for resource in sorted({device.resource for device in devices}):
        total = offered.get(resource, 0) + offered.get(resource + SHARED, 0)
        alike = tuple(device for device in devices if device.resource == resource)
        kinds.append(Kind(resource, alike, total, tuple(held.pop(resource, ()))))
    strays += [(one.pod, resource) for resource, holdings in held.items() for one in holdings]
    strays.sort(key=lambda stray: str(stray[0]))
    return NodeUse(tuple(kinds), claimed, tuple(strays), known=tenants is not None)


def read_claims(
    api: Api, node: str, tenants: Iterable[Tenant]
) -> tuple[Mapping[str, Sequence[str]], Mapping[str, SliceDevice]]:
    """What the ResourceClaims of these pods hold, and what NVIDIA's driver offers there; see `node_use`.

    Nothing is asked where no pod has a claim. What cannot be read is not logged: its pods hold what is not known.
    """
    from loguru import logger

    from mig_manager.cluster.claims import Claims

    pods = (tenant.pod for tenant in tenants)
    claiming = [pod for pod in pods if pod.claims and not pod.finished]
    if not claiming:
        return {}, {}
    reader = Claims(api, node)
    uids = {(pod.namespace, pod.name): pod.uid for pod in claiming}
    held: dict[str, list[str]] = {}
    logger.disable("mig_manager.cluster.claims")
    try:
        for one in reader.allocations(claiming):
            if one.resource == GPU_DRIVER:
                held.setdefault(uids[one.namespace, one.name], []).extend(one.device_ids)
        return held, reader.devices() if held else {}
    finally:
        logger.enable("mig_manager.cluster.claims")


def with_use(inventory: Inventory, strategy: str, use: NodeUse) -> Inventory:
    """The same GPUs with those instances busy that are in use for certain."""
    states = []
    for state in inventory.gpus:
        instances = tuple(
            replace(
                instance,
                busy=any(
                    use.of(each).use is Use.USED
                    for each in devices_in(instance, state, strategy)
                    if each.placement is not None
                ),
            )
            for instance in state.instances
        )
        states.append(replace(state, instances=instances))
    return replace(inventory, gpus=tuple(states))


def _device_of(offered: SliceDevice | None, inventory: Inventory, devices: Sequence[Device]) -> Device | None:
    """Which one a device of the DRA driver is. UUIDs of MIG devices are not in the annotation; their place is."""
    if offered is None:
        return None
    uuids = {state.gpu.uuid.lower(): state.gpu.index for state in inventory.gpus}
    if offered.parent is None:
        index = uuids.get((offered.uuid or "").lower())
        return next((each for each in devices if each.gpu == index and each.placement is None), None)
    index = uuids.get(offered.parent.lower())
    found = [
        each
        for each in devices
        if each.gpu == index
        and each.placement is not None
        and offered.memory_slices == set(range(each.placement.start, each.placement.end))
    ]
    return found[0] if len(found) == 1 else None
