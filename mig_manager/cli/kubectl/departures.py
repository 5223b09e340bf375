"""Which pods a plan would evict, as far as the API tells, and what would hold them.

By the daemon's defaults: pods that lose a device go by the eviction API; those without a controller, of a DaemonSet
or of the kubelet itself hold the change up; data in emptyDir volumes ends with its pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mig_manager.cli.kubectl.use import Device, Kind, NodeUse, devices_of
from mig_manager.cluster.budgets import Budget, refusal
from mig_manager.cluster.drainrules import DrainOptions
from mig_manager.cluster.objects import Pod
from mig_manager.planning.plan import GpuPlan, KeptInstance, NodePlan
from mig_manager.planning.state import GpuState, Inventory

_DEPLOY_LABELS = "nvidia.com/gpu.deploy."
"""What the Node labels begin with by which GPU clients are paused."""


class Certainty(StrEnum):
    """Whether a pod loses something."""

    CERTAIN = "certain"
    POSSIBLE = "possible"
    """Some devices of its type go, and some stay: only the kubelet knows which it has."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A pod that would have to go."""

    pod: Pod
    certainty: Certainty
    why: str
    """In words, such as `all 4 nvidia.com/mig-1g.10gb go`."""
    obstacle: str = ""
    """What holds it, so that the change would wait and then fail; empty for nothing."""
    note: str = ""
    """What else to know."""


def departures(
    plan: NodePlan, inventory: Inventory, strategy: str, use: NodeUse, budgets: Sequence[Budget]
) -> tuple[Departure, ...]:
    """The pods that lose a device, or may; certain ones first."""
    lost = lost_devices(plan, inventory, strategy)
    found: dict[str, Departure] = {}
    for departure in (*_by_type(use, lost), *_by_claim(use, lost), *_strays(plan, use)):
        known = found.get(departure.pod.uid)
        if known is None or known.certainty is Certainty.POSSIBLE:
            found[departure.pod.uid] = departure
    held = (_held_up(departure, budgets) for departure in found.values())
    return tuple(sorted(held, key=lambda one: (one.certainty, str(one.pod))))


def at_least(plan: NodePlan, inventory: Inventory, strategy: str, use: NodeUse) -> int:
    """How many devices that are in use go at least, whichever they are."""
    lost = lost_devices(plan, inventory, strategy)
    sure = sum(bool(use.claimed.get(device)) for device in lost)
    for kind in use.kinds:
        staying = len([device for device in kind.devices if device not in lost])
        sure += 0 if kind.shared else max(0, kind.held - staying)
    return sure


def lost_devices(plan: NodePlan, inventory: Inventory, strategy: str) -> frozenset[Device]:
    """What pods cannot go on using: MIG devices that go, and GPUs of which something goes."""
    states = {state.gpu.index: state for state in inventory.gpus}
    lost: set[Device] = set()
    for gpu in plan.gpus:
        lost.update(_lost(gpu, states[gpu.gpu.index], strategy))
    return frozenset(lost)


def _lost(plan: GpuPlan, state: GpuState, strategy: str) -> Iterator[Device]:
    gone = {instance.placement for instance in plan.destroy}
    inside = {kept.instance.placement: _numbers_lost(kept) for kept in plan.keep}
    for device in devices_of(state, strategy):
        if device.placement is None:
            if plan.mig.switches or plan.mig.reset or plan.lost:
                yield device
        elif device.placement in gone or device.number in inside.get(device.placement, ()):
            yield device


def _numbers_lost(kept: KeptInstance) -> frozenset[int]:
    """Positions of the compute instances that go in an instance that stays."""
    gone = list(kept.destroy)
    numbers = []
    for number, compute in enumerate(kept.instance.compute):
        if compute in gone:
            gone.remove(compute)
            numbers.append(number)
    return frozenset(numbers)


def _by_type(use: NodeUse, lost: frozenset[Device]) -> Iterator[Departure]:
    for kind in use.kinds:
        going = sum(device in lost for device in kind.devices)
        for holding in kind.holdings if going else ():
            yield Departure(
                holding.pod, _certainty(kind, going, holding.count), _type_words(kind, going, holding.count)
            )


def _certainty(kind: Kind, going: int, count: int) -> Certainty:
    staying = len(kind.devices) - going
    sure = staying == 0 or (not kind.shared and count > staying)
    return Certainty.CERTAIN if sure else Certainty.POSSIBLE


def _type_words(kind: Kind, going: int, count: int) -> str:
    every = len(kind.devices)
    if every == 1:
        return f"the only {kind.resource} goes"
    holds = f"it holds {count}; " if count > 1 else ""
    return f"{holds}{'all' if going == every else f'{going} of'} {every} {kind.resource} go"


def _by_claim(use: NodeUse, lost: frozenset[Device]) -> Iterator[Departure]:
    for device in lost:
        for pod in use.claimed.get(device, ()):
            yield Departure(
                pod, Certainty.CERTAIN, f"its ResourceClaim holds {device.resource} of GPU {device.gpu}"
            )


def _strays(plan: NodePlan, use: NodeUse) -> Iterator[Departure]:
    for pod, what in use.strays if plan.changes else ():
        yield Departure(
            pod, Certainty.POSSIBLE, f"it holds {what}, which none of these GPUs is known to offer"
        )


def _held_up(departure: Departure, budgets: Sequence[Budget]) -> Departure:
    pod, obstacle, note = departure.pod, "", ""
    if pod.mirror:
        obstacle = "a static pod of the kubelet, which nothing can evict"
    elif pod.daemon_set and any(key.startswith(_DEPLOY_LABELS) for key in pod.node_keys):
        note = "stopped by its deploy label, and started again"
    elif pod.daemon_set:
        obstacle = "its DaemonSet would bring it back at once"
    else:
        obstacle = DrainOptions().held_back(pod) or refusal(pod, budgets)
        note = "its emptyDir data ends with it" if pod.empty_dir else ""
    return replace(departure, obstacle=obstacle, note=note)
