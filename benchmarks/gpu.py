"""How long the GPU room takes: a worker's start, and a change of eight GPUs side by side against one by one.

The simulated calls take as long as on hardware, about: 150 ms to create a GPU instance, 100 ms for a compute
instance, 50 ms to destroy either, 1 s to set the MIG mode. The floor is what one GPU's calls add up to.

Run: python -m benchmarks gpu
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks._bed import IN_MEMORY
from benchmarks._table import print_machine, print_table
from mig_manager.errors import MigManagerError
from mig_manager.gpu.nvml import MUTATING, NvmlSource
from mig_manager.gpu.repartition import repartition
from mig_manager.gpu.work import WorkerOptions
from mig_manager.gpu.worker import GpuWorker
from mig_manager.layouts.layout import GpuTarget, NodeTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import parse_gpus
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory
from mig_manager.simulation.gpus import SimulatedGpus

_GPUS = "8xH100-80GB-HBM3"
_LATENCIES = {
    "nvmlInitWithFlags": 0.05,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 0.15,
    "nvmlGpuInstanceCreateComputeInstance": 0.1,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": 0.1,
    "nvmlGpuInstanceDestroy": 0.05,
    "nvmlComputeInstanceDestroy": 0.05,
    "nvmlDeviceSetMigMode": 1.0,
}
_STEPS = (
    ("off -> 7x1g", ["1g.10gb"] * 7),
    ("7x1g -> balanced", ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]),
    ("balanced -> off", None),
)
_STARTS = 7


def main() -> None:
    """Measure and print two tables."""
    print_machine()
    starts = sorted(_start() for _ in range(_STARTS))
    print_table(
        ("worker start to first answer", "median s", "best s", "goal s"),
        [("", f"{median(starts):.2f}", f"{starts[0]:.2f}", "0.15")],
    )
    serial, parallel = _changes(parallel=False), _changes(parallel=True)
    rows = [
        (what, calls, f"{floor:.2f}", f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}")
        for (what, _), (calls, floor, slow), (_, _, fast) in zip(_STEPS, serial, parallel, strict=True)
    ]
    print_table((_GPUS, "calls", "floor s", "one by one s", "side by side s", "ratio"), rows)


def _start() -> float:
    """Seconds from start to the first answer, which is that there is no such library."""
    with GpuWorker(NvmlSource(library=Path("/nonexistent"))) as worker:
        begun = time.monotonic()
        try:
            worker.inventory()
        except MigManagerError:
            return time.monotonic() - begun
    raise AssertionError


def _changes(*, parallel: bool) -> list[tuple[int, float, float]]:
    """Of each step: calls that change something, the time of those of the slowest GPU, and the time it took."""
    found = []
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        state = Path(directory, "gpus.json")
        gpus = SimulatedGpus.create(state, parse_gpus(_GPUS))
        source = NvmlSource(loader="mig_manager.simulation.nvml:install", argument=str(state))
        with GpuWorker(source, options=WorkerOptions(parallel=parallel)) as worker:
            before = worker.inventory()
            gpus.latency(**_LATENCIES)
            for _, profiles in _STEPS:
                target = _target(before, profiles)
                plan = plan_node(target, before)
                seen = len(worker.calls)
                begun = time.monotonic()
                before = repartition(worker, target, plan, before, lambda _: None)
                took = time.monotonic() - begun
                changes = [call for call in worker.calls[seen:] if call.function in MUTATING]
                times: dict[int | None, float] = {}
                for call in changes:
                    times[call.gpu] = times.get(call.gpu, 0) + _LATENCIES[call.function]
                found.append((len(changes), max(times.values()), took))
    return found


def _target(inventory: Inventory, profiles: list[str] | None) -> NodeTarget:
    devices = tuple(MigProfile.parse(name) for name in profiles or ())
    targets = tuple(GpuTarget(each.gpu, profiles is not None, devices, None) for each in inventory.gpus)
    return NodeTarget("benchmark", targets, ())
