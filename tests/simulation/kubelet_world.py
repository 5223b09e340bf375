"""What the tests of the simulated node share: partitioned GPUs, and short ways to read and write objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml as untyped_pynvml

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import find_model
from mig_manager.simulation.gpus import SimulatedGpus
from mig_manager.simulation.nvml import install
from mig_manager.simulation.objects import Change, Object, Resource
from mig_manager.simulation.resources import NODES, PODS
from mig_manager.simulation.world import SimulatedCluster

pynvml: Any = untyped_pynvml

GPUS = "2xH100-80GB-HBM3"
"""From Hopper on, a MIG mode change needs no reset."""


@contextmanager
def nvml(gpus: SimulatedGpus) -> Iterator[None]:
    """A session of the real pynvml on the simulated GPUs."""
    install(str(gpus.path))
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def partition(gpus: SimulatedGpus, *layout: Sequence[str] | None) -> None:
    """Give each GPU by index these MIG devices, beside those that it has; None: leave it without MIG."""
    with nvml(gpus):
        for index, profiles in enumerate(layout):
            if profiles is None:
                continue
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceSetMigMode(device, 1)
            # Before Hopper this resets the GPU, and the handle is stale.
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            geometry = find_model(pynvml.nvmlDeviceGetName(device)).geometry
            assert geometry is not None
            for text in profiles:
                wanted = MigProfile.parse(text)
                profile = next(each for each in geometry.profiles if each.name == wanted.gpu_instance)
                compute = next(each for each in profile.compute if each.slices == wanted.compute_slices)
                instance = pynvml.nvmlDeviceCreateGpuInstance(device, profile.profile_id)
                pynvml.nvmlGpuInstanceCreateComputeInstance(instance, compute.profile_id)


def clear(gpus: SimulatedGpus, index: int) -> None:
    """Destroy every instance of a GPU; NVMLError_InUse if one is busy."""
    with nvml(gpus):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        for gpu in [gpus.snapshot()["gpus"][index]]:
            for row in gpu["instances"]:
                instance = pynvml.nvmlDeviceGetGpuInstanceById(device, row["id"])
                for compute in row["compute"]:
                    handle = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, compute["id"])
                    pynvml.nvmlComputeInstanceDestroy(handle)
                pynvml.nvmlGpuInstanceDestroy(instance)


def eventually(look: Callable[[], bool], what: str, *, timeout: float = 60.0) -> None:
    """Wait for something that no event tells of: the state of the GPUs."""
    deadline = time.monotonic() + timeout
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def find(cluster: SimulatedCluster, name: str, namespace: str = "ml") -> Object | None:
    """The pod of that name."""
    return cluster.store.get(PODS, namespace, name)


def with_app(cluster: SimulatedCluster, app: str) -> list[Object]:
    """All pods labelled `app`."""
    return [
        each
        for each in cluster.store.list(PODS)[0]
        if (each["metadata"].get("labels") or {}).get("app") == app
    ]


def phase(pod: Object | None) -> str | None:
    """The pod's phase; None without a pod."""
    return None if pod is None else pod["status"]["phase"]


def set_labels(cluster: SimulatedCluster, **labels: str | None) -> None:
    """Set labels under nvidia.com/gpu.deploy (`device_plugin="false"`); None removes one."""

    def change(node: Object) -> Object:
        for name, value in labels.items():
            key = "nvidia.com/gpu.deploy." + name.replace("_", "-")
            if value is None:
                node["metadata"]["labels"].pop(key, None)
            else:
                node["metadata"]["labels"][key] = value
        return node

    cluster.store.update(NODES, None, cluster.node, change)


def change_pod(cluster: SimulatedCluster, pod: Object, **meta: Any) -> None:
    """Set fields of a pod's metadata."""

    def change(now: Object) -> Object:
        now["metadata"].update(meta)
        return now

    cluster.store.update(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], change)


class Recording:
    """The changes of one kind of objects, as they came."""

    def __init__(self, cluster: SimulatedCluster, resource: Resource) -> None:
        self.changes: list[Change] = []
        self._resource = resource
        cluster.store.subscribe(self._add)

    def _add(self, change: Change) -> None:
        if change.resource == self._resource:
            self.changes.append(change)
