"""GPUs by ResourceClaim: who holds which device of NVIDIA's DRA driver, and what the driver offers here.

A claim names its devices as `pool/device`; which hardware that is, the driver's ResourceSlices tell. The API
may be absent (before Kubernetes 1.32, or switched off), older than v1, or forbidden to us.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.objects import JsonObject, Pod
from mig_manager.cluster.podresources import PodDevices
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch, WatchOptions

GPU_DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver of ResourceClaims for GPUs and MIG devices."""

_GROUP = "resource.k8s.io"
_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Those that are understood, the newest first."""
_PATIENCE_S = 10.0
"""Seconds that one question is tried again."""


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device in a ResourceSlice."""

    name: str
    """`pool/device`, as a claim's allocation and the kubelet name it."""
    uuid: str | None
    """`GPU-...` or `MIG-...`; None for a MIG device that the driver makes only once it is claimed."""
    parent: str | None = None
    """UUID of the GPU that a MIG device is a part of; None for a GPU, and where nobody tells."""
    memory_slices: frozenset[int] = frozenset()
    """Of its GPU, that a MIG device lies on; empty for a GPU, and where nobody tells."""


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """What a DRA driver offers, or a part of it."""

    pool: str
    generation: int
    """Of the pool: slices of an older one are no longer true."""
    devices: tuple[SliceDevice, ...]

    @classmethod
    def from_json(cls, obj: JsonObject) -> ResourceSlice:
        """From a ResourceSlice of any version that is understood."""
        spec = obj["spec"]
        pool = str(spec["pool"]["name"])
        return cls(
            pool=pool,
            generation=int(spec["pool"].get("generation", 0)),
            devices=tuple(
                SliceDevice(
                    f"{pool}/{device['name']}",
                    _uuid(device, "uuid"),
                    _uuid(device, "parentUUID"),
                    _memory_slices(device),
                )
                for device in spec.get("devices") or ()
            ),
        )


def _attribute(device: JsonObject, name: str) -> str | None:
    attributes = _described(device).get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{GPU_DRIVER}/{name}") or {}
    return value.get("string")


def _uuid(device: JsonObject, name: str) -> str | None:
    """As NVML writes it: some versions of NVIDIA's driver publish all of it in lower case."""
    value = _attribute(device, name)
    return None if value is None else re.sub("^(?:gpu|mig)-", lambda kind: kind[0].upper(), value)


def _memory_slices(device: JsonObject) -> frozenset[int]:
    """Those of a MIG device; NVIDIA's driver tells them as capacities, `memorySlice4: 1`."""
    names = (name.removeprefix(f"{GPU_DRIVER}/") for name in _described(device).get("capacity") or ())
    numbers = (name.removeprefix("memorySlice") for name in names if name.startswith("memorySlice"))
    return frozenset(int(number) for number in numbers if number.isdecimal())


def _described(device: JsonObject) -> JsonObject:
    # Before v1beta2 everything that describes a device lay one level deeper.
    found: JsonObject = device.get("basic", device)
    return found


def current_devices(slices: Iterable[ResourceSlice]) -> Mapping[str, str | None]:
    """UUIDs by `pool/device`, of the latest generation of each pool."""
    return {name: device.uuid for name, device in latest_devices(slices).items()}


def latest_devices(slices: Iterable[ResourceSlice]) -> Mapping[str, SliceDevice]:
    """Devices by `pool/device`, of the latest generation of each pool."""
    slices = tuple(slices)
    latest: dict[str, int] = {}
    for each in slices:
        latest[each.pool] = max(latest.get(each.pool, 0), each.generation)
    return {
        device.name: device
        for each in slices
        if each.generation == latest[each.pool]
        for device in each.devices
    }


def claimed_devices(claim: JsonObject) -> tuple[str, ...]:
    """The GPUs and MIG devices that are allocated to a ResourceClaim, as `pool/device`."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(f"{each['pool']}/{each['device']}" for each in results if each.get("driver") == GPU_DRIVER)


class Claims:
    """Asks the API server about claims and slices of one node; remembers what does not change."""

    def __init__(self, api: Api, node: str) -> None:
        """Nothing is sent yet."""
        self._api = api
        self._node = node
        self._version: str | None = None
        self._asked = False
        self._known: dict[tuple[str, str], tuple[str, ...] | None] = {}

    def allocations(
        self, pods: Iterable[Pod], told: Collection[tuple[str, str]] = ()
    ) -> tuple[PodDevices, ...]:
        """The devices of NVIDIA's driver that the claims of these pods hold, as `pool/device`.

        A claim that cannot be read counts as one device of a name that nobody knows: its pod may be on a GPU.
        Except for the pods in `told` (namespace and name): of those the kubelet has told what they hold.
        """
        found = []
        for pod in pods:
            for name in sorted(pod.claims):
                devices = () if pod.finished else self._devices(pod, name)
                if devices is None:
                    devices = () if (pod.namespace, pod.name) in told else (f"claim {name}",)
                if devices:
                    found.append(PodDevices(pod.namespace, pod.name, "", GPU_DRIVER, devices))
        return tuple(found)

    def hardware(self) -> Mapping[str, str | None]:
        """UUIDs by `pool/device` of all that NVIDIA's driver offers on this node; empty where nobody tells."""
        return {name: device.uuid for name, device in self.devices().items()}

    def devices(self) -> Mapping[str, SliceDevice]:
        """By `pool/device` all that NVIDIA's driver offers on this node; empty where nobody tells."""
        path = self._path("resourceslices")
        if path is None:
            return {}
        try:
            answer = self._api.get(path, self._selection, deadline=Deadline.after(_PATIENCE_S))
            return latest_devices(map(ResourceSlice.from_json, answer.get("items") or ()))
        except ApiError as error:
            logger.warning("ResourceSlices cannot be read: {}", error.message)
            return {}

    def watch_slices(self, signal: Signal, options: WatchOptions) -> ObjectWatch[ResourceSlice] | None:
        """Follows the driver's slices of this node; None where the API is not served. Not started."""
        path = self._path("resourceslices")
        if path is None:
            return None
        selection = Selection(
            self._api,
            path,
            title=f"ResourceSlices of node {self._node}",
            field_selector=self._selection["fieldSelector"],
        )
        return ObjectWatch(selection, ResourceSlice.from_json, signal, options=options)

    @property
    def _selection(self) -> Mapping[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node},spec.driver={GPU_DRIVER}"}

    def _devices(self, pod: Pod, name: str) -> tuple[str, ...] | None:
        """Those of one claim, which do not change while its pod is bound; None if it cannot be read."""
        key = (pod.uid, name)
        if key not in self._known:
            try:
                self._known[key] = claimed_devices(self._read(pod.namespace, name))
            except ApiError as error:
                if error.status == 404:
                    return ()
                logger.warning("ResourceClaim {}/{} cannot be read: {}", pod.namespace, name, error.message)
                self._known[key] = None
        return self._known[key]

    def _read(self, namespace: str, name: str) -> JsonObject:
        version = self._served()
        if version is None:
            return {}
        path = object_path("resourceclaims", name, namespace=namespace, group=version)
        return self._api.get(path, deadline=Deadline.after(_PATIENCE_S))

    def _path(self, plural: str) -> str | None:
        try:
            version = self._served()
        except ApiError as error:
            logger.warning("whether {} is served cannot be told: {}", _GROUP, error.message)
            return None
        return None if version is None else collection_path(plural, group=version)

    def _served(self) -> str | None:
        """As `served_version`, asked once."""
        if not self._asked:
            self._version = served_version(self._api)
            self._asked = True
        return self._version


def served_version(api: Api) -> str | None:
    """As an apiVersion (`resource.k8s.io/v1`) the newest that the API server has and we understand; None: none.

    Raises ApiError.
    """
    try:
        group = api.get(f"/apis/{_GROUP}", deadline=Deadline.after(_PATIENCE_S))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    served = {each.get("version") for each in group.get("versions") or ()}
    return next((f"{_GROUP}/{each}" for each in _VERSIONS if each in served), None)


def by_hardware(
    allocations: Iterable[PodDevices], hardware: Callable[[], Mapping[str, str | None]]
) -> tuple[PodDevices, ...]:
    """The same with UUIDs for the devices of NVIDIA's DRA driver, as far as they are known.

    `hardware` gives UUIDs by `pool/device`; it is only asked where there is such a device.
    """
    allocations = tuple(allocations)
    if all(each.resource != GPU_DRIVER for each in allocations):
        return allocations
    uuids = hardware()
    return tuple(
        PodDevices(
            each.namespace,
            each.name,
            each.container,
            each.resource,
            tuple(uuids.get(name) or name for name in each.device_ids),
        )
        if each.resource == GPU_DRIVER
        else each
        for each in allocations
    )
