"""A simulated node for the tests of this room, worked on by the real worker process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mig_manager.gpu.clearance import Clearance
from mig_manager.gpu.control import CallRecord
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.procfs import HostFiles
from mig_manager.gpu.repartition import repartition
from mig_manager.gpu.work import WorkerOptions
from mig_manager.gpu.worker import GpuWorker
from mig_manager.host.reset import Join, reset_gpus
from mig_manager.layouts.layout import GpuIdentity, GpuTarget, NodeTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, catalogue, parse_gpus
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuInstance, GpuState, Inventory
from mig_manager.simulation.gpus import SimulatedGpus

LOADER = "mig_manager.simulation.nvml:install"
OPTIONS = WorkerOptions(in_use_window_s=0.3, call_timeout_s=10)

Wanted = str | None
"""What a GPU shall hold: profile names with spaces between, `off`, or None for a GPU that is left alone."""


class Node:
    """GPUs, a worker for them, and the reset command."""

    def __init__(self, directory: Path, gpus: str | Sequence[GpuModel], **options: Any) -> None:
        models = parse_gpus(gpus) if isinstance(gpus, str) else gpus
        self.path = directory / "gpus.json"
        host = directory / "host"
        self.files = HostFiles(host / "proc", host / "dev", host / "sys")
        self.gpus = SimulatedGpus.create(self.path, models, **options)
        self.source = NvmlSource(loader=LOADER, argument=str(self.path))
        self.heard: list[CallRecord] = []
        """What a counter of NVML calls is told."""
        self.worker = GpuWorker(self.source, options=OPTIONS, counted=self.heard.extend)
        self.resets: list[tuple[int, ...]] = []
        self.before_reset: Callable[[], object] = lambda: None
        self.join: Join | None = None

    def configure(self, **options: Any) -> None:
        """Go on with a worker that has other options."""
        self.worker.close()
        self.worker = GpuWorker(
            self.source, options=replace(self.worker.options, **options), counted=self.heard.extend
        )

    def reset(self, gpus: Sequence[GpuIdentity]) -> None:
        """Run the command, as the daemon does, after whatever a test wants to happen first."""
        self.resets.append(tuple(gpu.index for gpu in gpus))
        self.before_reset()
        command = [sys.executable, "-m", "mig_manager.simulation.nvidia_smi", "--state", str(self.path)]
        command += ["-r", "-i", "{addresses}"]
        reset_gpus(command, gpus, root=None, timeout_s=20, join=self.join, sys=self.files.sys)

    def target(self, *wanted: Wanted, inventory: Inventory | None = None) -> NodeTarget:
        inventory = inventory or self.worker.inventory()
        chosen = [
            (state.gpu, text) for state, text in zip(inventory.gpus, wanted, strict=True) if text is not None
        ]
        targets = tuple(GpuTarget(gpu, text != "off", profiles(text), None) for gpu, text in chosen)
        touched = {gpu.index for gpu, _ in chosen}
        untouched = tuple(state.gpu.index for state in inventory.gpus if state.gpu.index not in touched)
        return NodeTarget("wanted", targets, untouched)

    def apply(self, *wanted: Wanted, before: Inventory | None = None) -> Inventory:
        """Plan from what is there, and do it."""
        before = before or self.worker.inventory()
        target = self.target(*wanted, inventory=before)
        return repartition(self.worker, target, plan_node(target, before), before, self.reset)

    def apply_cleared(self, *wanted: Wanted, window_s: float = 0.0) -> Inventory:
        """As `apply`, and as the daemon does it: after whoever is in the way has been waited for."""
        before = self.worker.inventory()
        target = self.target(*wanted, inventory=before)
        plan = plan_node(target, before)
        with Clearance(self.worker, self.files) as clearance:
            self.join = clearance.join
            clearance.prove(plan)
            clearance.obtain(plan, window_s)
            return repartition(self.worker, target, plan, before, self.reset, who=lambda: clearance.who(plan))

    def run(self, gpu: int, instance: GpuInstance, pid: int = 4242) -> int:
        """A job on the first compute instance of a GPU instance."""
        return self.gpus.add_process(gpu, instance.id, instance.compute[0].id, pid=pid, name="train")


def kinds() -> list[GpuModel]:
    """One model for each way in which GPUs can be cut and engines are shared out."""
    found: dict[object, GpuModel] = {}
    for model in catalogue():
        if model.geometry is not None:
            cut = tuple(
                (p.profile_id, p.max_instances, p.placements, p.engines) for p in model.geometry.profiles
            )
            found.setdefault(cut, model)
    return list(found.values())


def profiles(text: str) -> tuple[MigProfile, ...]:
    if text == "off":
        return ()
    return tuple(sorted(MigProfile.parse(word) for word in text.split()))


def shape(state: GpuState) -> str:
    """What a GPU holds, such as `1g.10gb@0 3g.40gb@4`, or `off`; compute instances where one is split."""
    if not state.mig_current:
        return "off"
    return " ".join(_words(instance) for instance in state.instances)


def _words(instance: GpuInstance) -> str:
    inner = ",".join(f"{c.slices}c@{c.placement.start if c.placement else '?'}" for c in instance.compute)
    whole = [each.slices for each in instance.compute] == [instance.profile.gpu_slices]
    name = f"{instance.profile}@{instance.placement.start}"
    return name if whole else f"{name}[{inner}]"


def bare(inventory: Inventory) -> tuple[object, ...]:
    """What a restored node must have in common with the one before; ids and UUIDs may be others."""
    return tuple(
        (
            state.gpu.uuid,
            state.mig_current,
            state.mig_pending,
            tuple(
                (each.profile_id, each.placement, tuple((c.slices, c.placement) for c in each.compute))
                for each in state.instances
            ),
        )
        for state in inventory.gpus
    )
