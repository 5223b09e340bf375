"""Compute instances inside one GPU instance: what fits, and what can stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from mig_manager.planning.geometry import ComputeProfile, InstanceProfile, Placement
from mig_manager.planning.plan import NewComputeInstance
from mig_manager.planning.state import ComputeInstance


@dataclass(frozen=True, slots=True)
class ComputeChange:
    """What happens to the compute instances of one GPU instance."""

    keep: tuple[ComputeInstance, ...]
    destroy: tuple[ComputeInstance, ...]
    create: tuple[NewComputeInstance, ...]

    @property
    def busy_kept(self) -> int:
        """How many compute instances with a process on them stay."""
        return sum(instance.busy for instance in self.keep)


def new_compute(profile: InstanceProfile, content: Sequence[int]) -> tuple[NewComputeInstance, ...] | None:
    """The compute instances of a new GPU instance, given their slices; None where they do not fit."""
    return _create(profile, content, ())


def change_compute(
    profile: InstanceProfile,
    content: Sequence[int],
    existing: Sequence[ComputeInstance],
    pinned: frozenset[int] = frozenset(),
) -> ComputeChange | None:
    """The change that turns the compute instances of a GPU instance into the wanted ones.

    The one that keeps everything where possible; else the most that have a process; else the most.

    Args:
        profile: of the GPU instance.
        content: the wanted compute slices, one a compute instance, larger ones first.
        existing: what is there.
        pinned: positions in `existing` that must stay.

    Returns:
        None where the content does not fit, or not around what is pinned.
    """
    best: ComputeChange | None = None
    wanted = Counter(content)
    for stay in _subsets(len(existing)):
        if not pinned.issubset(stay):
            continue
        keep = tuple(existing[i] for i in stay)
        missing = wanted.copy()
        missing.subtract(Counter(instance.slices for instance in keep))
        if missing and min(missing.values()) < 0:
            continue
        if best is not None and _worth(keep) <= _worth(best.keep):
            continue
        create = _create(profile, sorted(missing.elements(), reverse=True), keep)
        if create is not None:
            gone = tuple(instance for i, instance in enumerate(existing) if i not in stay)
            best = ComputeChange(keep, gone, create)
            if not gone:
                break
    return best


def fewest_instances(profile: InstanceProfile, slices: Sequence[int]) -> int:
    """How many GPU instances of a profile it takes at least to hold compute instances of these slices.

    Each must fit into one alone.
    """
    if not slices:
        return 0
    first, *rest = sorted(slices, reverse=True)
    best = len(slices)
    possible = -(-sum(slices) // profile.name.gpu_slices)
    for size in range(len(rest), -1, -1):
        for others in sorted(set(combinations(rest, size))):
            if best == possible:
                return best
            if new_compute(profile, (first, *others)) is not None:
                left = Counter(rest) - Counter(others)
                best = min(best, 1 + fewest_instances(profile, tuple(left.elements())))
    return best


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    for size in range(count, -1, -1):
        yield from combinations(range(count), size)


def _worth(keep: Sequence[ComputeInstance]) -> tuple[int, int]:
    return sum(instance.busy for instance in keep), len(keep)


def _create(
    profile: InstanceProfile, slices: Sequence[int], keep: Sequence[ComputeInstance]
) -> tuple[NewComputeInstance, ...] | None:
    """New compute instances beside those that stay; larger ones are to come first in `slices`."""
    if not slices:
        return ()
    if not keep and len(slices) == 1:
        return (NewComputeInstance(slices[0], None),)
    kinds = {compute.slices: compute for compute in profile.compute}
    total = Counter(slices)
    total.update(instance.slices for instance in keep)
    for size, count in total.items():
        if size not in kinds or count > kinds[size].max_instances:
            return None
    blocked = 0
    for instance in keep:
        blocked |= _may_occupy(kinds[instance.slices], instance)
    placements = _place([kinds[size] for size in slices], blocked)
    if placements is None:
        return None
    ordered = sorted(zip(slices, placements, strict=True), key=lambda pair: pair[1])
    return tuple(NewComputeInstance(size, placement) for size, placement in ordered)


def _may_occupy(kind: ComputeProfile, instance: ComputeInstance) -> int:
    """The compute slices that an instance occupies, as bits; where that is not known, all that it may."""
    if instance.placement is not None:
        return instance.placement.mask
    mask = 0
    for placement in kind.placements:
        mask |= placement.mask
    return mask


def _place(kinds: Sequence[ComputeProfile], blocked: int) -> tuple[Placement, ...] | None:
    if not kinds:
        return ()
    for placement in kinds[0].placements:
        if not placement.mask & blocked:
            rest = _place(kinds[1:], blocked | placement.mask)
            if rest is not None:
                return (placement, *rest)
    return None
