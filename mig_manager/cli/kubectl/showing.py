"""The GPUs of a node with those who use them: for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from mig_manager.cli.documents import Document, span
from mig_manager.cli.kubectl.use import DeviceUse, Kind, NodeUse, Use, devices_in, devices_of
from mig_manager.cli.render import Box, Look, Row, picture, state_row
from mig_manager.cluster.objects import Pod
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.geometry import Placement
from mig_manager.planning.profiles import in_order
from mig_manager.planning.room import room_for
from mig_manager.planning.state import GpuInstance, GpuState, Inventory

_WORDS = {Use.USED: "in use", Use.FREE: "free", Use.UNKNOWN: "in use?"}
_SHOWN_PODS = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """A node, and what is known of its GPUs."""

    name: str
    facts: Mapping[str, str]
    """What stands in the head: layout, state, strategy."""
    strategy: str
    inventory: Inventory
    use: NodeUse
    missing: Sequence[str]
    """What the annotation does not tell, in words."""


def shown_lines(shown: Shown, look: Look, *, wide: bool = False) -> list[Text]:
    """For people. GPUs that look alike share one picture, unless it is to be wide."""
    head = Text(shown.name, "bold")
    head.append("  " + ", ".join(f"{key} {value}" for key, value in shown.facts.items()), "")
    lines = [head, *(Text(f"not told by this node: {words}", "yellow") for words in shown.missing), Text()]
    groups: dict[object, list[GpuState]] = {}
    for state in shown.inventory.gpus:
        key = (
            state.gpu.index
            if wide
            else (
                state.gpu.model,
                state.mig_current,
                state.mig_pending,
                _row(state, shown),
                mode_words(state, shown),
            )
        )
        groups.setdefault(key, []).append(state)
    for alike in groups.values():
        lines += [*_gpu_lines(alike, shown, look, wide), Text()]
    return [*lines, *_kind_lines(shown)]


def _gpu_lines(alike: Sequence[GpuState], shown: Shown, look: Look, wide: bool) -> Iterator[Text]:
    state = alike[0]
    head = Text(gpu_numbers([each.gpu.index for each in alike]), "bold")
    head.append(f"  {state.gpu.model}", "")
    if len(alike) == 1:
        head.append(f"  {state.gpu.uuid}" + (f"  {state.gpu.bus_id}" if wide else ""), "dim")
    yield head
    yield Text(f"  {mode_words(state, shown)}")
    if state.geometry is not None and state.geometry.memory_slices:
        yield from picture(state.geometry.memory_slices, [_row(state, shown)], look)
    free = free_words(state)
    if free:
        yield Text(f"  free     {free}")


def mode_words(state: GpuState, shown: Shown) -> str:
    """Mode, and use where the GPU is given away as a whole."""
    words = ["MIG on" if state.mig_current else "MIG off" if state.gpu.mig_capable else "no MIG"]
    if state.mig_pending != state.mig_current:
        words.append(f"{'on' if state.mig_pending else 'off'} after a reset")
    if state.geometry is None and state.gpu.mig_capable:
        words.append("its profiles are not known, so that there is no picture")
    whole = [each for each in devices_of(state, shown.strategy) if each.placement is None]
    words += [f"as a whole {_WORDS[shown.use.of(each).use]}" for each in whole]
    return "; ".join(words)


def _row(state: GpuState, shown: Shown) -> Row:
    """The instances, with their use as notes."""
    row = state_row(state)
    there = {instance.placement: instance for instance in state.instances}

    def noted(box: Box) -> Box:
        instance = there.get(box.placement)
        if instance is None:
            return box
        words = [_WORDS[one] for one in instance_uses(instance, state, shown)]
        return replace(box, note=" ".join([*words, box.note]).strip())

    return replace(row, boxes=tuple(map(noted, row.boxes)))


def instance_uses(instance: GpuInstance, state: GpuState, shown: Shown) -> tuple[Use, ...]:
    """Whether its MIG devices are in use; empty where it has none, or its GPU is given away as a whole."""
    devices = devices_in(instance, state, shown.strategy)
    uses = (shown.use.of(each).use for each in devices if each.placement is not None)
    return tuple(dict.fromkeys(uses))


def free_words(state: GpuState) -> str:
    """Memory slices without an instance, and what would fit there; empty where there is nothing to say."""
    if not state.mig_current or state.geometry is None:
        return ""
    runs = _free_runs(state)
    if not runs:
        return ""
    noun = "memory slice" if [run.size for run in runs] == [1] else "memory slices"
    words = f"{noun} {', '.join(map(span, runs))}"
    rooms = ", ".join(f"{count} x {name}" for name, count in _room(state).items())
    return f"{words}; room for {rooms.replace(', ', ' or ')}" if rooms else f"{words}; no profile fits there"


def _free_runs(state: GpuState) -> list[Placement]:
    slices = state.geometry.memory_slices if state.geometry is not None else 0
    taken = {at for each in state.instances for at in range(each.placement.start, each.placement.end)}
    runs: list[Placement] = []
    for at in range(slices):
        if at in taken:
            continue
        if runs and runs[-1].end == at:
            runs[-1] = Placement(runs[-1].start, runs[-1].size + 1)
        else:
            runs.append(Placement(at, 1))
    return runs


def _room(state: GpuState) -> dict[str, int]:
    """How many more of each plain profile would fit beside what is there, largest first."""
    profiles = in_order(state.geometry.profiles) if state.geometry is not None else []
    plain = [profile for profile in reversed(profiles) if not profile.name.suffix]
    return {str(profile.name): count for profile in plain if (count := room_for(state, profile))}


def _kind_lines(shown: Shown) -> Iterator[Text]:
    """Who holds what, by resource; then those of whom it cannot be told."""
    kinds = [kind for kind in shown.use.kinds if kind.offered or kind.holdings]
    unclear = False
    if kinds:
        width = max(len("RESOURCE"), *(len(kind.resource) for kind in kinds))
        yield Text(f"{'RESOURCE':<{width}}  IN USE    PODS", "bold")
        for kind in kinds:
            pods = _pods_words([holding.pod for holding in kind.holdings], _counts(kind)) or "-"
            numbers = f"{kind.held} of {max(kind.offered, len(kind.devices))}"
            yield Text(f"{kind.resource:<{width}}  {numbers:<8}  {pods}")
            unclear = unclear or kind.use is Use.UNKNOWN or len(kind.holdings) > 1
    for device, pods_ in shown.use.claimed.items():
        where = "" if device.placement is None else f" at {span(device.placement)}"
        yield Text(f"by claim  GPU {device.gpu}{where}: {_pods_words(pods_)}")
    for pod, what in shown.use.strays:
        yield Text(f"unclear   {pod} holds {what}, which none of these GPUs is known to offer", "yellow")
    if unclear:
        yield Text("Which device of a type each pod has, only the kubelet of the node knows.", "dim")


def _counts(kind: Kind) -> dict[str, int]:
    return {str(holding.pod): holding.count for holding in kind.holdings}


def _pods_words(pods: Sequence[Pod], counts: Mapping[str, int] | None = None) -> str:
    names = []
    for pod in sorted(pods, key=str)[:_SHOWN_PODS]:
        count = (counts or {}).get(str(pod), 1)
        names.append(f"{pod} ({count})" if count > 1 else str(pod))
    more = f" and {len(pods) - _SHOWN_PODS} more" if len(pods) > _SHOWN_PODS else ""
    return ", ".join(names) + more


def shown_document(shown: Shown) -> Document:
    """For scripts."""
    return {
        "node": shown.name,
        **shown.facts,
        "missing": list(shown.missing),
        "gpus": [_gpu_document(state, shown) for state in shown.inventory.gpus],
        "resources": [
            {
                "name": kind.resource,
                "devices": len(kind.devices),
                "allocatable": kind.offered,
                "used": kind.held,
                "pods": [{**_pod(holding.pod), "count": holding.count} for holding in kind.holdings],
            }
            for kind in shown.use.kinds
        ],
        "unclear": [{**_pod(pod), "holds": what} for pod, what in shown.use.strays],
    }


def _gpu_document(state: GpuState, shown: Shown) -> Document:
    capable = state.gpu.mig_capable
    document: Document = {
        "index": state.gpu.index,
        "uuid": state.gpu.uuid,
        "busId": state.gpu.bus_id,
        "model": state.gpu.model,
        "mig": state.mig_current if capable else None,
        "pending": state.mig_pending if capable else None,
        "memorySlices": state.geometry.memory_slices if state.geometry is not None else None,
    }
    whole = [each for each in devices_of(state, shown.strategy) if each.placement is None]
    if whole:
        document["use"] = _use_document(shown.use.of(whole[0]), whole[0].resource)
    document["instances"] = [
        {
            "profile": str(instance.profile),
            "start": instance.placement.start,
            "size": instance.placement.size,
            "devices": [
                {
                    "profile": str(instance.profile.split(instance.compute[each.number].slices)),
                    **_use_document(shown.use.of(each), each.resource),
                }
                for each in devices_in(instance, state, shown.strategy)
                if each.placement is not None
            ],
        }
        for instance in state.instances
    ]
    free = [at for run in _free_runs(state) for at in range(run.start, run.end)] if state.mig_current else []
    document["free"] = {"memorySlices": free, "room": _room(state)}
    return document


def _use_document(use: DeviceUse, resource: str) -> Document:
    return {
        "resource": resource,
        "use": str(use.use),
        "pods": [_pod(pod) for pod in use.pods],
        "possiblePods": [_pod(pod) for pod in use.possible],
    }


def _pod(pod: Pod) -> Document:
    return {"namespace": pod.namespace, "name": pod.name}
