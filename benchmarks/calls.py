"""How much a change of layout does to a GPU: NVML calls that change it, and instances that stay.

Every ordered pair of the layouts that are generated for a model is carried out on a simulated GPU, through the
same worker process and apply step as in the daemon, and read back. The calls are counted by the simulation, and
an instance counts as kept if it was there before and no call has destroyed it.

What it is held against clears the GPU and builds everything anew: one destroy and one creation for each GPU
instance and each compute instance, and nvmlDeviceSetMigMode where the mode changes. An instance can be kept
at most where both layouts have one of that profile.

Run: python -m benchmarks calls
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from benchmarks._table import print_table
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.repartition import repartition
from mig_manager.gpu.worker import GpuWorker
from mig_manager.layouts.book import LayoutBook, resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.planning.catalogue import find_model
from mig_manager.planning.offers import offers
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuInstance, GpuState, Inventory
from mig_manager.simulation.gpus import SimulatedGpus

_MODELS = ("A100-SXM4-80GB", "H100-80GB-HBM3")
_OFF = "all-disabled"
_SEVEN = (
    "all-enabled",
    "all-1g.10gb",
    "all-2g.20gb",
    "all-3g.40gb",
    "all-4g.40gb",
    "all-7g.80gb",
    "all-balanced",
)
_THEIRS = 492
"""Calls of nvidia-mig-parted v0.15.0 over the pairs of those; 60 of them failed. It kept no instance."""


@dataclass(frozen=True, slots=True)
class _Transition:
    before: str
    after: str
    calls: int
    failed: int
    """Of the calls."""
    anew: int
    """Calls that clear everything and build it anew."""
    kept: int
    shared: int
    """Instances that could be kept at most."""


def main() -> None:
    """Measure and print a table for each model, and one for the comparison."""
    for name in _MODELS:
        found = list(_transitions(name))
        layouts = {each.before for each in found}
        print(f"\n{name}, {len(found)} ordered pairs of {len(layouts)} generated layouts, one GPU:")
        header = ("", "calls", "cleared and built anew", "ratio", "instances kept", "could be kept")
        print_table(header, [_row("all pairs", found), *_rows_from(found)])
        if name == _MODELS[0]:
            seven = [each for each in found if {each.before, each.after} <= {*_SEVEN}]
            anew, shared = sum(each.anew for each in seven), sum(each.shared for each in seven)
            theirs = ("nvidia-mig-parted v0.15.0", _THEIRS, anew, f"{_THEIRS / anew:.2f}", 0, shared)
            print(f"{name}, {len(seven)} ordered pairs of {', '.join(_SEVEN)}:")
            print_table(header, [_row("mig-manager", seven), theirs])


def _rows_from(found: Collection[_Transition]) -> Iterator[tuple[object, ...]]:
    for before in dict.fromkeys(each.before for each in found):
        yield _row(f"from {before}", [each for each in found if each.before == before])


def _row(what: str, found: Collection[_Transition]) -> tuple[object, ...]:
    calls, anew = sum(each.calls for each in found), sum(each.anew for each in found)
    failed = sum(each.failed for each in found)
    if failed:
        what += f" ({failed} calls failed)"
    kept, shared = sum(each.kept for each in found), sum(each.shared for each in found)
    return what, calls, anew, f"{calls / anew:.2f}", kept, shared


def _transitions(model: str) -> Iterator[_Transition]:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory, "gpus.json")
        gpus = SimulatedGpus.create(state, [find_model(model)])
        with _worker(state) as worker:
            book = generate_layouts(offers(worker.inventory()))
            starts = {}
            for name in book.layouts:
                _apply(worker, gpus, book, _OFF)
                _apply(worker, gpus, book, name)
                starts[name] = Path(shutil.copy(state, Path(directory, f"{name}.json")))
        for before, after in permutations(book.layouts, 2):
            gpus = SimulatedGpus.open(starts[before])
            image = starts[before].read_bytes()
            with _worker(starts[before]) as worker:
                yield _measure(worker, gpus, book, before, after)
            starts[before].write_bytes(image)


def _worker(state: Path) -> GpuWorker:
    return GpuWorker(NvmlSource(loader="mig_manager.simulation.nvml:install", argument=str(state)))


def _measure(
    worker: GpuWorker, gpus: SimulatedGpus, book: LayoutBook, before: str, after: str
) -> _Transition:
    old = worker.inventory().gpus[0]
    gpus.record_calls()
    new = _apply(worker, gpus, book, after).gpus[0]
    calls = [call for call in gpus.calls(changes=True) if call.function != "reset"]
    destroyed = sum(call.function == "nvmlGpuInstanceDestroy" and call.code == 0 for call in calls)
    shared = _profiles(old) & _profiles(new)
    return _Transition(
        before=before,
        after=after,
        calls=len(calls),
        failed=sum(call.code != 0 for call in calls),
        anew=_objects(old) + _objects(new) + (old.mig_current != new.mig_current),
        kept=len(old.instances) - destroyed,
        shared=shared.total(),
    )


def _apply(worker: GpuWorker, gpus: SimulatedGpus, book: LayoutBook, layout: str) -> Inventory:
    now = worker.inventory()
    target = resolve(book.get(layout), [state.gpu for state in now.gpus])
    return repartition(
        worker,
        target,
        plan_node(target, now),
        now,
        lambda pending: gpus.reset([gpu.uuid for gpu in pending]),
    )


def _objects(state: GpuState) -> int:
    """GPU instances and compute instances."""
    return sum(1 + len(instance.compute) for instance in state.instances)


def _profiles(state: GpuState) -> Counter[object]:
    return Counter(_kind(instance) for instance in state.instances)


def _kind(instance: GpuInstance) -> object:
    return instance.profile_id, tuple(compute.slices for compute in instance.compute)


if __name__ == "__main__":
    main()
