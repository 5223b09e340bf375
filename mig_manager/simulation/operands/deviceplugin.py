"""NVIDIA's Kubernetes device plugin: which devices it offers as which resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from mig_manager.simulation.node.containers import Run
from mig_manager.simulation.node.hardware import DriverError, Gpu
from mig_manager.simulation.podspec import seconds

Strategy = Literal["none", "single", "mixed"]

GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
REPLICAS = "TIME_SLICING_REPLICAS"
"""Environment variable for what NVIDIA's plugin reads from a file: how many pods share one device."""


class PluginError(Exception):
    """The plugin cannot start on these GPUs; in its own words."""


def device_map(gpus: Sequence[Gpu], strategy: Strategy) -> dict[str, tuple[str, ...]]:
    """Device ids by resource name; a resource without devices is not there.

    Raises:
        PluginError: `single` with an empty MIG GPU, unlike MIG devices, or MIG on for some GPUs only;
            `mixed` with a compute instance that fills only a part of its GPU instance.
    """
    if strategy == "none":
        return _by_resource((GPU_RESOURCE, gpu.uuid) for gpu in gpus)
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    devices = [device for gpu in enabled for device in gpu.devices]
    if strategy == "mixed":
        for device in devices:
            if not device.profile.whole:
                raise PluginError(f"MIG profile {device.profile} does not match any resource patterns")
        whole = [(GPU_RESOURCE, gpu.uuid) for gpu in gpus if not gpu.mig_enabled]
        return _by_resource([*whole, *((mig_resource(str(each.profile)), each.uuid) for each in devices)])
    for gpu in enabled:
        if not gpu.devices:
            raise PluginError(f"invalid MIG configuration: device {gpu.index} has no MIG devices configured")
    if len({device.attributes for device in devices}) > 1:
        raise PluginError("invalid MIG configuration: more than one MIG device type present on node")
    if enabled and len(enabled) != len(gpus):
        raise PluginError("all devices on the node must be configured with the same migEnabled value")
    return _by_resource((GPU_RESOURCE, each.uuid) for each in (devices if enabled else gpus))


def mig_resource(profile: str) -> str:
    """The resource of a MIG device: `nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`."""
    return MIG_RESOURCE_PREFIX + profile.replace("+", ".")


def shared(devices: Mapping[str, Sequence[str]], replicas: int) -> dict[str, tuple[str, ...]]:
    """Each device as often as pods may share it, as `GPU-...::0` and so on; alone it keeps its plain id.

    The first replica of every device comes before the second of any: so pods spread over the devices.
    """
    if replicas == 1:
        return {resource: tuple(ids) for resource, ids in devices.items()}
    return {
        resource: tuple(f"{device}::{number}" for number in range(replicas) for device in ids)
        for resource, ids in devices.items()
    }


class DevicePlugin:
    """Reads the GPUs once, at its start, and offers what it found then for as long as it runs.

    Its container counts as ready before the kubelet knows the devices. Where the GPUs do not suit the
    strategy it exits, so that its pod crash-loops. It keeps NVML open.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._held: tuple[int, ...] = ()
        self._published: tuple[str, ...] = ()

    def start(self, run: Run) -> None:
        """Read the GPUs; publish them after the delay."""
        self._run = run
        hardware = run.services.hardware
        strategy = cast(Strategy, run.environment.get("MIG_STRATEGY", "none"))
        try:
            devices = device_map(hardware.gpus(), strategy)
            devices = shared(devices, int(run.environment.get(REPLICAS, "1")))
        except (DriverError, PluginError) as error:
            run.exit(1, f"error starting plugins: error getting plugins: {error}")
            return
        self._held = (hardware.hold("nvidia-device-plugin", run.pod["metadata"]["uid"]),)
        run.ready()
        wait = seconds(run.pod, "publish-seconds", run.services.delays.plugin_publish)
        run.after(wait, lambda: self._publish(devices))

    def stop(self) -> None:
        """The kubelet loses sight of the plugin; its devices become unhealthy."""
        assert self._run is not None
        self._run.services.hardware.close(self._held)
        self._run.services.devices.unregister(self._published)

    def _publish(self, devices: dict[str, tuple[str, ...]]) -> None:
        assert self._run is not None
        for resource, ids in devices.items():
            self._run.services.devices.register(resource, ids)
        self._published = tuple(devices)


def _by_resource(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for resource, uuid in pairs:
        found[resource] = (*found.get(resource, ()), uuid)
    return found
