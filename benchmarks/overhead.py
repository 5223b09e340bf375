"""How long a change takes beyond what it cannot go below, from the label to `success`.

The real daemon runs as a process on a simulated node, with the delays with which NVIDIA's mig-manager v0.15.0 was
measured (mig_manager/simulation/delays.py). benchmarks/_floor.py says what the floor is. Resources are usable
once the kubelet advertises exactly the new ones and the node takes pods. Our `success` and the end of the cordon are
one request, so that it says just that; NVIDIA's manager does not cordon, and its `success` comes earlier.

Goals: under 0.6 s with two GPUs, under 1.0 s with eight.

Run: python -m benchmarks overhead
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks._bed import STATE, Bed, Run, status_of
from benchmarks._floor import Floor, floor_of
from benchmarks._table import print_machine, print_table
from mig_manager.cluster.operands import PAUSED
from mig_manager.layouts.book import resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.planning.offers import offers
from mig_manager.planning.planner import plan_node
from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.podspec import is_ready
from mig_manager.simulation.resources import NODES, PODS

_MODEL = "A100-SXM4-80GB"
_GOALS_S = {2: 0.6, 8: 1.0}
_WALK = (
    "all-1g.10gb",
    "all-balanced",
    "all-3g.40gb",
    "all-2g.20gb",
    "all-1g.10gb",
    "all-3g.40gb",
    "all-balanced",
    "all-1g.10gb",
    "all-disabled",
)
"""From MIG off."""
_PLUGIN = "nvidia-device-plugin-daemonset"
_PLUGIN_LABEL = "nvidia.com/gpu.deploy.device-plugin"
_STEPS = (
    "label to `pending`",
    "prove the change, cordon",
    "look again, drain, pause GPU clients",
    "GPU clients end",
    "change the GPUs, read back, resume GPU clients",
    "device plugin starts",
    "kubelet advertises",
    "say `success`",
)


@dataclass(frozen=True, slots=True)
class _Measured:
    layout: str
    floor: Floor
    took: float
    """Label to `success`, seconds."""
    advertised: float
    """Label to resources."""
    steps: tuple[float, ...]
    """What each of _STEPS took beyond its part of the floor."""
    requests: int
    """Requests of the daemon."""

    @property
    def overhead(self) -> float:
        return self.took - self.floor.total


def main() -> None:
    """Measure and print."""
    results = {}
    for count in _GOALS_S:
        print_machine()
        with Bed(f"{count}x{_MODEL}") as bed:
            bed.start()
            before = "all-disabled"
            measured = []
            for layout in _WALK:
                measured.append(_measure(bed, layout))
                _say(count, before, measured[-1])
                before = layout
            results[count] = measured
            if count == min(_GOALS_S):
                _nvml_calls(bed, "all-1g.10gb", "all-balanced")
    print_machine()
    print(f"\nOverhead over the floor, {len(_WALK)} changes on {_MODEL}, seconds:")
    _summary(results)
    print("Where it goes, median seconds beyond the floor:")
    rows = [
        [step, *(f"{median(each.steps[at] for each in results[count]):.3f}" for count in results)]
        for at, step in enumerate(_STEPS)
    ]
    print_table(["step", *(f"{count} GPUs" for count in results)], rows)


def _measure(bed: Bed, layout: str) -> _Measured:
    inventory = bed.inventory()
    target = resolve(generate_layouts(offers(inventory)).get(layout), [state.gpu for state in inventory.gpus])
    floor = floor_of(plan_node(target, inventory), bed.delays)
    bed.cluster.api.requests.clear()
    run = bed.apply(layout)
    moments = _moments(run, layout, bed.cluster.allocatable())
    sent = [each for each in bed.requests() if run.began <= each.at <= moments[-1]]
    parts = (0.0, floor.init, 0.0, floor.end, floor.gpu, floor.start, floor.publish, 0.0)
    return _Measured(
        layout=layout,
        floor=floor,
        took=moments[-1] - run.began,
        advertised=moments[-2] - run.began,
        steps=tuple(
            after - before - part
            for before, after, part in zip((run.began, *moments), moments, parts, strict=False)
        ),
        requests=len(sent),
    )


def _moments(run: Run, layout: str, wanted: dict[str, int]) -> tuple[float, ...]:
    """When each step ended."""
    pending = run.first(_node(lambda node: node["metadata"]["labels"].get(STATE) == "pending"))
    cordoned = run.first(_node(lambda node: bool(node["spec"].get("unschedulable"))))
    paused = run.first(_node(lambda node: _plugin_label(node) == PAUSED))
    resumed = run.first(_node(lambda node: _plugin_label(node) == "true"), after=paused)
    ready = run.first(
        lambda change: change.resource == PODS and _is_plugin(change.object) and is_ready(change.object),
        after=resumed,
    )
    advertised = run.first(_node(lambda node: _advertises(node, wanted)), after=resumed)
    done = run.first(
        _node(lambda node: status_of(node).get("layout") == layout and _state(node) == "success"),
        after=resumed,
    )
    # The pods that end are those of the paused GPU clients, and the last of them counts.
    ends = [
        at
        for at, change in run.changes
        if change.resource == PODS and change.type == "DELETED" and paused <= at <= resumed
    ]
    return pending, cordoned, paused, max(ends), resumed, ready, advertised, done


def _node(holds: Callable[[Object], bool]) -> Callable[[Change], bool]:
    return lambda change: change.resource == NODES and holds(change.object)


def _state(node: Object) -> str | None:
    state: str | None = node["metadata"]["labels"].get(STATE)
    return state


def _plugin_label(node: Object) -> str | None:
    value: str | None = node["metadata"]["labels"].get(_PLUGIN_LABEL)
    return value


def _is_plugin(pod: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get("app") == _PLUGIN)


def _advertises(node: Object, wanted: dict[str, int]) -> bool:
    held = node["status"]["allocatable"].items()
    return {name: int(count) for name, count in held if name.startswith("nvidia.com/") and count != "0"} == {
        name: count for name, count in wanted.items() if count
    }


def _say(count: int, before: str, measured: _Measured) -> None:
    print(
        f"{count} GPUs {before:>12} -> {measured.layout:12} took {measured.took:6.2f} s,"
        f" floor {measured.floor.total:5.2f} s, overhead {measured.overhead:5.2f} s,"
        f" {measured.requests} requests",
        flush=True,
    )


def _nvml_calls(bed: Bed, first: str, then: str) -> None:
    """Count what one change asks of NVML; apart, since the record costs time."""
    bed.apply(first)
    bed.cluster.gpus.record_calls()
    bed.apply(then)
    calls = bed.cluster.gpus.calls()
    bed.cluster.gpus.record_calls(on=False)
    changes = sum(call.changes for call in calls)
    sessions = sum(call.function.startswith("nvmlInit") for call in calls)
    spent = sum(
        call.seconds for call in calls if not call.changes and not call.function.startswith("nvmlInit")
    )
    print(
        f"{first} -> {then} makes {len(calls)} NVML calls in {sessions} sessions; {changes} of them change"
        f" a GPU, the others take {spent:.3f} s of the simulation"
    )


def _summary(results: dict[int, list[_Measured]]) -> None:
    rows: list[list[str]] = []
    for count, measured in results.items():
        overheads = [each.overhead for each in measured]
        advertised = [each.advertised - each.floor.total for each in measured]
        rows.append(
            [
                f"{count} GPUs, label to `success` and usable resources",
                *(f"{value:.2f}" for value in (median(overheads), min(overheads), max(overheads))),
                f"{_GOALS_S[count]:.1f}",
            ]
        )
        rows.append(
            [
                f"{count} GPUs, label to advertised resources",
                *(f"{value:.2f}" for value in (median(advertised), min(advertised), max(advertised))),
                "",
            ]
        )
    rows.append(["NVIDIA mig-manager v0.15.0, label to usable resources, 2 GPUs", "8.0", "6.5", "9.9", ""])
    rows.append(["NVIDIA mig-manager v0.15.0, label to usable resources, 8 GPUs", "", "", "32.7", ""])
    print_table(["", "median", "least", "most", "goal"], rows)


if __name__ == "__main__":
    main()
