"""The kubelet's device manager: what device plugins offer, and which pod was given which device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mig_manager.simulation.loop import Loop, Timer
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import container_requests, is_sidecar


class AllocationError(Exception):
    """The kubelet cannot give a pod the devices that it asks for."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The devices of one resource that one container holds; what PodResources lists."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]
    """Ids as the plugin gave them, ascending: UUIDs of GPUs or MIG devices, `UUID::N` where they are shared."""


@dataclass(slots=True)
class _Offer:
    healthy: tuple[str, ...] = ()
    """In the order in which they are given away."""
    unhealthy: tuple[str, ...] = ()
    forget: Timer | None = None
    """Set while the plugin is gone and its devices still count."""


@dataclass(slots=True)
class _Held:
    pod: Object
    containers: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)


class DeviceManager:
    """Follows the real one: a plugin that goes leaves its devices behind, unhealthy.

    They then count into the capacity, but not into allocatable, until they are forgotten after some minutes;
    the resource is then written with 0 once, and stays in the node's status for ever, unless somebody takes it out.
    """

    def __init__(self, loop: Loop, *, forget_s: float, changed: Callable[[], None]) -> None:
        """`changed` is called after every change of what is offered."""
        self._loop = loop
        self._forget_s = forget_s
        self._changed = changed
        self._offers: dict[str, _Offer] = {}
        self._pods: dict[str, _Held] = {}

    def register(self, resource: str, devices: Sequence[str]) -> None:
        """A plugin lists its devices; they replace what an earlier one had listed for the resource."""
        known = self._offers.get(resource)
        if known is not None and known.forget is not None:
            known.forget.cancel()
        self._offers[resource] = _Offer(healthy=tuple(devices))
        self._changed()

    def unregister(self, resources: Collection[str]) -> None:
        """The plugin that serves these resources has gone."""
        for resource in resources:
            devices = self._offers[resource].healthy
            timer = self._loop.after(self._forget_s, partial(self._forget, resource))
            self._offers[resource] = _Offer(unhealthy=devices, forget=timer)
        if resources:
            self._changed()

    def amounts(self) -> Mapping[str, tuple[int, int]]:
        """Capacity and allocatable of every resource that is known, or was until the last time they were written."""
        return {
            name: (len(offer.healthy) + len(offer.unhealthy), len(offer.healthy))
            for name, offer in self._offers.items()
        }

    def written(self) -> None:
        """The amounts stand in the node's status: what is forgotten is not spoken of again."""
        self._offers = {
            name: offer
            for name, offer in self._offers.items()
            if offer.healthy or offer.unhealthy or offer.forget is not None
        }

    def allocatable(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of the healthy devices by resource; what GetAllocatableResources answers."""
        return {name: tuple(sorted(offer.healthy)) for name, offer in self._offers.items() if offer.healthy}

    def held(self) -> tuple[ContainerDevices, ...]:
        """Every allocation, in the order of admission; what List answers."""
        return tuple(
            ContainerDevices(
                pod.pod["metadata"]["namespace"],
                pod.pod["metadata"]["name"],
                uid,
                container,
                resource,
                tuple(sorted(devices)),
            )
            for uid, pod in self._pods.items()
            for container, by_resource in pod.containers.items()
            for resource, devices in by_resource.items()
        )

    def devices_of(self, pod_uid: str, container: str) -> tuple[str, ...]:
        """Ids of all devices that the container was given."""
        held = self._pods.get(pod_uid)
        if held is None:
            return ()
        return tuple(each for devices in held.containers.get(container, {}).values() for each in devices)

    def allocate(self, pod: Object) -> None:
        """Give the pod its devices, or none of them.

        What an init container had is used again by those that follow it.

        Raises:
            AllocationError: in the words of the real device manager.
        """
        held = _Held(pod)
        spec = pod["spec"]
        self._pods[pod["metadata"]["uid"]] = held
        reusable: dict[str, list[str]] = {}
        try:
            for container in spec.get("initContainers") or []:
                given = self._allocate(held, container, reusable)
                if not is_sidecar(container):
                    for resource, devices in given.items():
                        reusable.setdefault(resource, [])
                        reusable[resource] += [each for each in devices if each not in reusable[resource]]
            for container in spec["containers"]:
                for resource, devices in self._allocate(held, container, reusable).items():
                    left = reusable.get(resource, [])
                    reusable[resource] = [each for each in left if each not in devices]
        except AllocationError:
            self.free(pod["metadata"]["uid"])
            raise
        if not held.containers:
            self.free(pod["metadata"]["uid"])

    def free(self, pod_uid: str) -> None:
        """Take everything back that the pod holds."""
        self._pods.pop(pod_uid, None)

    def restart(self) -> None:
        """The kubelet starts anew: it remembers the resources a while, but no device until a plugin lists it again."""
        for name, offer in self._offers.items():
            if offer.forget is not None:
                offer.forget.cancel()
            self._offers[name] = _Offer(forget=self._loop.after(self._forget_s, partial(self._forget, name)))
        self._pods = {}

    def _forget(self, resource: str) -> None:
        self._offers[resource] = _Offer()
        self._changed()

    def _allocate(
        self, held: _Held, container: Object, reusable: Mapping[str, Sequence[str]]
    ) -> Mapping[str, tuple[str, ...]]:
        given: dict[str, tuple[str, ...]] = {}
        for resource, amount in container_requests(container).items():
            if amount and resource in self._offers:
                given[resource] = self._choose(resource, int(amount), reusable.get(resource, ()))
                held.containers.setdefault(container["name"], {})[resource] = given[resource]
        return given

    def _choose(self, resource: str, amount: int, reusable: Sequence[str]) -> tuple[str, ...]:
        healthy = self._offers[resource].healthy
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        chosen = tuple(reusable)[:amount]
        taken = {
            each
            for pod in self._pods.values()
            for by_resource in pod.containers.values()
            for each in by_resource.get(resource, ())
        }
        free = [each for each in healthy if each not in taken]
        missing = amount - len(chosen)
        if missing > len(free):
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(free)}"
            )
        return chosen + tuple(free[:missing])
