"""A layout file and pods that suit the GPUs of a simulated node."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.operands.deviceplugin import GPU_RESOURCE, Strategy, mig_resource
from mig_manager.simulation.resources import DEPLOYMENTS, PODS
from mig_manager.simulation.workloads import deployment, pod, pod_spec

_MIXED = {7: {3: 1, 1: 4}, 4: {2: 1, 1: 2}, 2: {1: 1}}
_EDITED = {7: {3: 1, 2: 1, 1: 2}, 4: {2: 2}, 2: {1: 2}}
_BALANCED = {7: {3: 1, 2: 1, 1: 2}, 4: {2: 1, 1: 2}}
"""How many instances of how many slices, by the slices of the whole GPU."""


def layout_file(models: Sequence[GpuModel], *, edited: bool = False) -> str:
    """The text of a small layout file for a node with these GPUs: all-disabled, small, mixed, balanced.

    `small` cuts every GPU into its smallest instances; `mixed` has four of them (two on a GPU of four slices)
    beside a larger one, or one alone on a GPU of two slices. `edited`: with another `mixed` that keeps a part.
    """
    layouts: dict[str, list[Object]] = {"all-disabled": [{"devices": "all", "mig-enabled": False}]}
    capable = list({model.key: model for model in models if model.geometry is not None}.values())
    fills = {
        "small": [{_plain(model, 1): _most(model, 1)} for model in capable],
        "mixed": [_fill(model, _EDITED if edited else _MIXED) for model in capable],
        "balanced": [_fill(model, _BALANCED) for model in capable],
    }
    for name, devices in fills.items():
        for model, fill in zip(capable, devices, strict=True):
            entry: Object = {"devices": "all", "mig-enabled": True, "mig-devices": fill}
            if len(capable) > 1:
                entry = {"gpu-model": model.name, **entry}
            layouts.setdefault(name, []).append(entry)
    return yaml.safe_dump({"version": "v1", "mig-configs": layouts}, sort_keys=False)


def workloads(models: Sequence[GpuModel], strategy: Strategy) -> list[tuple[Resource, Object]]:
    """What runs on the node, or would like to.

    `training` takes a whole GPU; `inference` two of the smallest MIG devices and `finetune` a larger one, which
    the node has only in some layouts; `dashboard` uses no GPU at all.
    """
    image = "registry.example/ml/pytorch:2.8"
    found: list[tuple[Resource, Object]] = [
        (DEPLOYMENTS, deployment("training", 1, pod_spec(image, {GPU_RESOURCE: 1}))),
        (PODS, pod("dashboard", pod_spec("registry.example/ml/dashboard:1.4", {"cpu": "500m"}))),
    ]
    capable = [model for model in models if model.geometry is not None]
    if capable and strategy == "mixed":
        small, large = (mig_resource(_plain(capable[0], slices)) for slices in (1, 3))
        found += [
            (DEPLOYMENTS, deployment("inference", 2, pod_spec(image, {small: 1}))),
            (DEPLOYMENTS, deployment("finetune", 1, pod_spec(image, {large: 1}))),
        ]
    return found


def _fill(model: GpuModel, counts: dict[int, dict[int, int]]) -> dict[str, int]:
    assert model.geometry is not None
    wanted = counts.get(model.geometry.compute_slices)
    if wanted is None:
        return {_plain(model, 1): _most(model, 1)}
    return {_plain(model, slices): number for slices, number in wanted.items()}


def _plain(model: GpuModel, slices: int) -> str:
    """The profile of so many slices, or the nearest number that there is, with the least memory."""
    return str(_profile(model, slices)[0])


def _most(model: GpuModel, slices: int) -> int:
    return _profile(model, slices)[1]


def _profile(model: GpuModel, slices: int) -> tuple[MigProfile, int]:
    assert model.geometry is not None
    plain = [each for each in model.geometry.profiles if not each.name.attributes and not each.name.removed]
    best = min(plain, key=lambda each: (abs(each.name.gpu_slices - slices), each.memory_mb))
    return best.name, best.max_instances
