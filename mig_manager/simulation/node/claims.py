"""The kubelet's part in ResourceClaims: devices are prepared before a pod starts, and given back at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mig_manager.simulation.objects import Object, Store
from mig_manager.simulation.podspec import claim_names
from mig_manager.simulation.resources import RESOURCE_CLAIMS


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device that a container of a pod holds by a claim."""

    pod_uid: str
    container: str
    driver: str
    pool: str
    device: str
    uuid: str


class ClaimManager:
    """Nothing is prepared, and nothing given back, while the driver's kubelet plugin is away."""

    def __init__(self, store: Store) -> None:
        """No plugin is registered yet."""
        self._store = store
        self._drivers: dict[str, Mapping[str, str]] = {}
        self._prepared: dict[str, tuple[ClaimedDevice, ...]] = {}
        self._waiting: list[Callable[[], None]] = []

    def register(self, driver: str, devices: Mapping[str, str]) -> None:
        """A kubelet plugin is there; `devices` are UUIDs by its names."""
        self._drivers[driver] = devices
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def unregister(self, driver: str) -> None:
        """It has gone; what it has prepared stays so."""
        self._drivers.pop(driver, None)

    def restart(self) -> None:
        """The node starts anew: nothing is prepared, and no driver is there."""
        self._drivers, self._prepared, self._waiting = {}, {}, []

    def knows(self, driver: str) -> bool:
        """Whether the driver's plugin is there."""
        return driver in self._drivers

    def prepare(self, pod: Object, again: Callable[[], None]) -> bool:
        """Prepare what the pod's claims hold; False while that cannot be, with `again` called when it may."""
        uid = pod["metadata"]["uid"]
        if uid in self._prepared:
            return True
        found: list[ClaimedDevice] = []
        for entry, name in claim_names(pod).items():
            claim = self._store.get(RESOURCE_CLAIMS, pod["metadata"]["namespace"], name)
            allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or []:
                devices = self._drivers.get(result["driver"])
                if devices is None or result["device"] not in devices:
                    self._waiting.append(again)
                    return False
                found += [
                    ClaimedDevice(
                        uid,
                        container,
                        result["driver"],
                        result["pool"],
                        result["device"],
                        devices[result["device"]],
                    )
                    for container in _users(pod, entry)
                ]
        self._prepared[uid] = tuple(found)
        return True

    def unprepare(self, pod_uid: str, again: Callable[[], None]) -> bool:
        """Give back what the pod held; False while a driver is away that has to do it."""
        held = self._prepared.get(pod_uid, ())
        if any(each.driver not in self._drivers for each in held):
            self._waiting.append(again)
            return False
        self._prepared.pop(pod_uid, None)
        return True

    def devices_of(self, pod_uid: str, container: str) -> tuple[str, ...]:
        """UUIDs of the devices that the container holds by claims."""
        held = self._prepared.get(pod_uid, ())
        return tuple(each.uuid for each in held if each.container == container)

    def held(self) -> tuple[ClaimedDevice, ...]:
        """Every device that is prepared for a container."""
        return tuple(each for devices in self._prepared.values() for each in devices)


def _users(pod: Object, entry: str) -> Iterable[str]:
    """Names of the containers that use an entry of the pod's `resourceClaims`."""
    for container in (*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]):
        claims = (container.get("resources") or {}).get("claims") or []
        if any(each["name"] == entry for each in claims):
            yield container["name"]
