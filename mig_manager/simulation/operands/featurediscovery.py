"""NVIDIA's GPU feature discovery: the labels that it puts on the node."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from mig_manager.planning.catalogue import GpuModel
from mig_manager.simulation.node.containers import Run
from mig_manager.simulation.node.hardware import DriverError, Gpu, MigDevice
from mig_manager.simulation.objects import Object
from mig_manager.simulation.operands.deviceplugin import GPU_RESOURCE, REPLICAS, Strategy, mig_resource
from mig_manager.simulation.resources import NODES

OWN_LABELS = "nfd.node.kubernetes.io/feature-labels"
"""Annotation in which node feature discovery notes the labels that are its own to remove."""

_COMPUTE = {
    "ampere": (8, 0),
    "hopper": (9, 0),
    "blackwell": (10, 0),
    "turing": (7, 5),
    "ada": (8, 9),
}


def node_labels(gpus: Sequence[Gpu], strategy: Strategy, driver: str) -> dict[str, str]:
    """The labels for these GPUs and this driver version. Of several models, one gives the labels."""
    labels = {"nvidia.com/mig.capable": str(any(gpu.model.geometry is not None for gpu in gpus)).lower()}
    if not gpus:
        return labels
    labels |= {
        "nvidia.com/gpu.machine": "Simulated-Server",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.driver-version.major": driver.partition(".")[0],
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/gfd.timestamp": str(int(time.time())),
    }
    enabled = [gpu for gpu in gpus if gpu.mig_enabled]
    if strategy != "none":
        labels["nvidia.com/mig.strategy"] = strategy
    if strategy == "single" and enabled:
        return labels | _single(gpus, enabled)
    labels |= _whole_gpus(gpus, strategy)
    if strategy == "mixed":
        by_profile: dict[str, list[tuple[Gpu, MigDevice]]] = {}
        for gpu in enabled:
            for device in gpu.devices:
                by_profile.setdefault(str(device.profile), []).append((gpu, device))
        for profile, found in by_profile.items():
            labels |= _mig_devices(mig_resource(profile), *found[0], len(found))
    return labels


class FeatureDiscovery:
    """Labels the node once after its start. The labels stay when it ends."""

    def start(self, run: Run) -> None:
        """Read the GPUs; the labels come after the delay."""
        hardware = run.services.hardware
        try:
            labels = node_labels(hardware.gpus(), _strategy(run), hardware.driver_version)
            labels = _shared(labels, int(run.environment.get(REPLICAS, "1")))
        except DriverError as error:
            run.exit(1, str(error))
            return
        run.ready()
        run.after(run.services.delays.labels, lambda: self._label(run, labels))

    def stop(self) -> None:
        """Nothing to put away."""

    def _label(self, run: Run, labels: dict[str, str]) -> None:
        def change(node: Object) -> Object:
            annotations = node["metadata"].setdefault("annotations", {})
            held = node["metadata"].setdefault("labels", {})
            for short in annotations.get(OWN_LABELS, "").split(","):
                held.pop(f"nvidia.com/{short}", None)
            held.update(labels)
            annotations[OWN_LABELS] = ",".join(sorted(each.removeprefix("nvidia.com/") for each in labels))
            return node

        run.services.store.update(NODES, None, run.services.name, change)


def _strategy(run: Run) -> Strategy:
    match run.environment.get("MIG_STRATEGY", "none"):
        case "single":
            return "single"
        case "mixed":
            return "mixed"
        case _:
            return "none"


def _shared(labels: dict[str, str], replicas: int) -> dict[str, str]:
    """The labels where that many pods share each device."""
    if replicas == 1:
        return labels
    changed = dict(labels)
    for key, value in labels.items():
        resource, _, what = key.rpartition(".")
        if what == "replicas" and value == "1":
            changed[key] = str(replicas)
            changed[f"{resource}.sharing-strategy"] = "time-slicing"
            changed[f"{resource}.product"] += "-SHARED"
    return changed


def _single(gpus: Sequence[Gpu], enabled: Sequence[Gpu]) -> dict[str, str]:
    devices = [device for gpu in enabled for device in gpu.devices]
    first = enabled[0]
    valid = (
        len(enabled) == len(gpus)
        and all(gpu.devices for gpu in enabled)
        and len({device.profile for device in devices}) == 1
    )
    if valid:
        return _mig_devices(GPU_RESOURCE, first, devices[0], len(devices)) | _architecture(first)
    return {
        f"{GPU_RESOURCE}.product": f"{_product(first.model)}-MIG-INVALID",
        f"{GPU_RESOURCE}.count": "0",
        f"{GPU_RESOURCE}.replicas": "0",
        f"{GPU_RESOURCE}.memory": "0",
        f"{GPU_RESOURCE}.sharing-strategy": "",
    }


def _whole_gpus(gpus: Sequence[Gpu], strategy: Strategy) -> dict[str, str]:
    gpu = next((gpu for gpu in gpus if not gpu.mig_enabled), gpus[0])
    alike = [each for each in gpus if each.model == gpu.model]
    shown = [each for each in alike if strategy == "none" or not each.mig_enabled]
    return {
        f"{GPU_RESOURCE}.product": _product(gpu.model),
        f"{GPU_RESOURCE}.count": str(len(alike)),
        f"{GPU_RESOURCE}.replicas": "1" if shown else "0",
        f"{GPU_RESOURCE}.memory": str(gpu.model.memory_mb),
        f"{GPU_RESOURCE}.sharing-strategy": "none",
    } | _architecture(gpu)


def _architecture(gpu: Gpu) -> dict[str, str]:
    major, minor = _COMPUTE.get(gpu.model.architecture, (0, 0))
    return {
        f"{GPU_RESOURCE}.family": gpu.model.architecture,
        f"{GPU_RESOURCE}.compute.major": str(major),
        f"{GPU_RESOURCE}.compute.minor": str(minor),
    }


def _mig_devices(resource: str, gpu: Gpu, device: MigDevice, count: int) -> dict[str, str]:
    profile = device.profile
    return {
        f"{resource}.product": f"{_product(gpu.model)}-MIG-{str(profile).replace('+', '.')}",
        f"{resource}.count": str(count),
        f"{resource}.replicas": "1",
        f"{resource}.sharing-strategy": "none",
        f"{resource}.memory": str(device.memory_mb),
        f"{resource}.multiprocessors": str(device.multiprocessors),
        f"{resource}.slices.gi": str(profile.gpu_slices),
        f"{resource}.slices.ci": str(profile.compute_slices),
        **{
            f"{resource}.engines.{kind}": str(getattr(device.engines, kind) or 0)
            for kind in ("copy", "decoder", "encoder", "jpeg", "ofa")
        },
    }


def _product(model: GpuModel) -> str:
    return re.sub(r"[^A-Za-z0-9-_. ]", "", re.sub(r" +", "-", model.name))
