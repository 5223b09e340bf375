"""NVIDIA's DRA driver for GPUs: which devices its kubelet plugin offers in ResourceSlices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mig_manager.simulation.node.containers import Run
from mig_manager.simulation.node.hardware import DriverError, Gpu
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import NODES, RESOURCE_SLICES

DRIVER = "gpu.nvidia.com"
_WIPE_S = 30.0
"""After so long without its plugin the kubelet takes a driver's slices away."""


def devices(gpus: Sequence[Gpu]) -> list[Object]:
    """Devices as in a ResourceSlice: GPUs without MIG, and the MIG devices of the others."""
    found = []
    for gpu in gpus:
        if not gpu.mig_enabled:
            found.append(_device(f"gpu-{gpu.index}", "gpu", gpu.uuid, productName=gpu.model.name))
        numbers: Counter[str] = Counter()
        for device in gpu.devices:
            profile = "".join(letter for letter in str(device.profile) if letter.isalnum())
            name = f"gpu-{gpu.index}-mig-{profile}-{numbers[profile]}"
            numbers[profile] += 1
            made = _device(name, "mig", device.uuid, parentUUID=gpu.uuid, profile=str(device.profile))
            made["capacity"] = {f"memorySlice{number}": {"value": "1"} for number in device.memory_slices}
            found.append(made)
    return found


def _device(name: str, kind: str, uuid: str, **attributes: str) -> Object:
    texts = {"type": kind, "uuid": uuid, **attributes}
    return {"name": name, "attributes": {key: {"string": text} for key, text in texts.items()}}


class DraPlugin:
    """Reads the GPUs once, at its start, and keeps NVML open. Its slices outlive it for a while."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._held: tuple[int, ...] = ()

    def start(self, run: Run) -> None:
        """Read the GPUs; register and publish them after the delay."""
        self._run = run
        try:
            found = devices(run.services.hardware.gpus())
        except DriverError as error:
            run.exit(1, str(error))
            return
        self._held = (run.services.hardware.hold("gpu-kubelet-plugin", run.pod["metadata"]["uid"]),)
        run.ready()
        run.after(run.services.delays.plugin_publish, lambda: self._publish(found))

    def stop(self) -> None:
        """The kubelet loses sight of it."""
        assert self._run is not None
        services = self._run.services
        services.hardware.close(self._held)
        services.claims.unregister(DRIVER)
        services.loop.after(_WIPE_S, lambda: _wipe(self._run))

    def _publish(self, found: list[Object]) -> None:
        assert self._run is not None
        services = self._run.services
        services.claims.register(
            DRIVER, {each["name"]: each["attributes"]["uuid"]["string"] for each in found}
        )
        node = services.store.get(NODES, None, services.name)
        name = f"{services.name}-{DRIVER}"

        def change(now: Object) -> Object:
            now["spec"]["pool"]["generation"] += now["spec"]["devices"] != found
            now["spec"]["devices"] = found
            return now

        if services.store.update(RESOURCE_SLICES, None, name, change) is None and node is not None:
            owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": services.name,
                "uid": node["metadata"]["uid"],
            }
            pool = {"name": services.name, "generation": 1, "resourceSliceCount": 1}
            services.store.create(
                RESOURCE_SLICES,
                {
                    "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
                    "spec": {"driver": DRIVER, "nodeName": services.name, "pool": pool, "devices": found},
                },
            )


def _wipe(run: Run | None) -> None:
    assert run is not None
    services = run.services
    if not services.claims.knows(DRIVER):
        services.store.delete(RESOURCE_SLICES, None, f"{services.name}-{DRIVER}")
