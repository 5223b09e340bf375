"""Exact search: where the wanted MIG devices can lie on one GPU.

GPU instances occupy disjoint runs of memory slices, so a solution is a walk over the slices from left to
right: at each slice an instance begins, or none does. What can still be done from a slice on depends only on
what is left to place, which makes the best value of each such point computable once (dynamic programming).
With those values a best-first walk yields all solutions lazily, the best first, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from operator import sub
from typing import NamedTuple

from mig_manager.planning.compute import ComputeChange, change_compute, new_compute
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.limits import Limit, binding_limits
from mig_manager.planning.profiles import same_profile
from mig_manager.planning.state import GpuInstance

# One number a solution, so that sums compare as the objective asks. No count on a GPU comes near 256.
_BUSY_INSTANCE = 1 << 40
_INSTANCE = 1 << 32
_NEW_INSTANCE = -(1 << 24)
_BUSY_COMPUTE = 1 << 16
_COMPUTE = 1 << 8

Left = tuple[int, ...]
"""How many devices of each kind are still to be placed, then how much of each limit is still free."""


class Device(NamedTuple):
    """A MIG device that is wanted: the profile of its GPU instance, and its compute slices."""

    profile: InstanceProfile
    slices: int


@dataclass(frozen=True, slots=True)
class Placed:
    """One GPU instance of a solution."""

    profile: InstanceProfile
    placement: Placement
    instance: GpuInstance | None
    """The one that is there and stays; None for a new one."""
    compute: ComputeChange


class _Spot(NamedTuple):
    """A place where an instance of a wanted profile can begin."""

    number: int
    profile: int
    placement: Placement
    instance: GpuInstance | None
    pinned: frozenset[int]
    """The positions of its compute instances that must stay."""


class _Option(NamedTuple):
    """What can be done at a slice: an instance there, or (without `placed`) none."""

    score: int
    next: int
    left: Left
    placed: Placed | None


class Search:
    """The solutions for one GPU.

    The objective, most important first: the most busy instances kept (the GPU instance stays and none of its
    compute instances goes); the most instances kept; the fewest new GPU instances; the most busy compute
    instances kept; the fewest new compute instances. Among equals the lowest placements, larger profiles
    first.
    """

    def __init__(
        self,
        geometry: GpuGeometry,
        wanted: Mapping[Device, int],
        present: Sequence[GpuInstance] = (),
        *,
        floor: Mapping[Placement, frozenset[int]] | None = None,
        refused: Collection[tuple[int, Placement]] = (),
        limited: bool = True,
    ) -> None:
        """Prepare a search; nothing is computed yet.

        Args:
            geometry: of the GPU.
            wanted: how many of each device.
            present: what is on the GPU.
            floor: where the instances lie that must stay, and the positions of their compute instances that
                must.
            refused: places, as profile id and placement, where nothing new may be put.
            limited: whether anything but the placements limits what fits.
        """
        by_id = {device.profile.profile_id: device.profile for device in wanted}
        self.profiles = sorted(by_id.values(), key=lambda profile: profile.name)
        position = {profile.profile_id: index for index, profile in enumerate(self.profiles)}
        self.devices = sorted(
            wanted, key=lambda device: (position[device.profile.profile_id], -device.slices)
        )
        self._kinds: list[list[int]] = [[] for _ in self.profiles]
        asked = [0] * len(self.profiles)
        for kind, device in enumerate(self.devices):
            index = position[device.profile.profile_id]
            self._kinds[index].append(kind)
            asked[index] += wanted[device]
        self.limits: tuple[Limit, ...] = ()
        if limited:
            self.limits = binding_limits(geometry, self.profiles, asked, present)
        self.start: Left = (
            *(wanted[device] for device in self.devices),
            *(limit.most for limit in self.limits),
        )
        floor = floor or {}
        self._fixed = {placement.start for placement in floor}
        self._last_fixed = max(self._fixed, default=-1)
        self._spots = self._find_spots(present, floor, refused)
        self._end = max((spot.placement.end for spots in self._spots.values() for spot in spots), default=0)
        self._smallest = [
            min((placement.size for placement in profile.placements), default=0) for profile in self.profiles
        ]
        self._best_memo: dict[tuple[int, Left], int | None] = {}
        self._need_memo: dict[Left, int] = {}
        self._contents_memo: dict[tuple[int, Left], list[tuple[tuple[int, ...], Left]]] = {}
        self._placed_memo: dict[tuple[int, tuple[int, ...]], tuple[int, Placed] | None] = {}

    def solutions(self) -> Iterator[tuple[Placed, ...]]:
        """All solutions, by placement each, the best first. Lazy, finite, none twice."""
        best = self._best(0, self.start)
        if best is None:
            return
        # Ties go by the path, a tuple of option numbers: unique, and lowest placements first.
        queue: list[tuple[int, tuple[int, ...], int, int, Left, tuple[Placed, ...]]] = []
        heappush(queue, (-best, (), 0, 0, self.start, ()))
        while queue:
            _, path, score, at, left, placed = heappop(queue)
            if self._complete(at, left):
                yield placed
                continue
            for number, option in enumerate(self._options(at, left)):
                rest = self._best(option.next, option.left)
                if rest is None:
                    continue
                total = score + option.score
                more = placed if option.placed is None else (*placed, option.placed)
                heappush(queue, (-total - rest, (*path, number), total, option.next, option.left, more))

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether so many of each of `devices`, at most those wanted, have a solution."""
        return self._best(0, (*counts, *self.start[len(self.devices) :])) is not None

    @property
    def possible(self) -> bool:
        """Whether there is any solution."""
        return self._best(0, self.start) is not None

    def room(self, profile: InstanceProfile) -> int:
        """How many places there are for instances of a profile, also where they overlap."""
        spots = (spot for spots in self._spots.values() for spot in spots)
        return sum(self.profiles[spot.profile] is profile for spot in spots)

    def _find_spots(
        self,
        present: Sequence[GpuInstance],
        floor: Mapping[Placement, frozenset[int]],
        refused: Collection[tuple[int, Placement]],
    ) -> dict[int, list[_Spot]]:
        fixed = sum(placement.mask for placement in floor)
        spots: dict[int, list[_Spot]] = {}
        numbers = count()
        for index, profile in enumerate(self.profiles):
            kept = {instance.placement: instance for instance in present if same_profile(profile, instance)}
            for placement in sorted({*profile.placements, *kept}):
                instance = kept.get(placement)
                if instance is None and (profile.profile_id, placement) in refused:
                    continue
                if placement.mask & fixed and (instance is None or placement not in floor):
                    continue
                pinned = floor.get(placement, frozenset())
                spot = _Spot(next(numbers), index, placement, instance, pinned)
                spots.setdefault(placement.start, []).append(spot)
        return spots

    def _complete(self, at: int, left: Left) -> bool:
        return not any(left[: len(self.devices)]) and at > self._last_fixed

    def _best(self, at: int, left: Left) -> int | None:
        """The best value of what is left, from a slice on; None where it does not fit."""
        if self._complete(at, left):
            return 0
        key = (at, left)
        if key in self._best_memo:
            return self._best_memo[key]
        best: int | None = None
        if at + self._need(left) <= self._end:
            for option in self._options(at, left):
                rest = self._best(option.next, option.left)
                if rest is not None and (best is None or option.score + rest > best):
                    best = option.score + rest
        self._best_memo[key] = best
        return best

    def _need(self, left: Left) -> int:
        """A lower bound of the memory slices that what is left takes."""
        need = self._need_memo.get(left)
        if need is None:
            need = 0
            for index, profile in enumerate(self.profiles):
                slices = sum(left[kind] * self.devices[kind].slices for kind in self._kinds[index])
                need += -(-slices // profile.name.gpu_slices) * self._smallest[index]
            self._need_memo[left] = need
        return need

    def _options(self, at: int, left: Left) -> Iterator[_Option]:
        for spot in self._spots.get(at, ()):
            for content, after in self._contents(spot.profile, left):
                found = self._put(spot, content)
                if found is not None:
                    yield _Option(found[0], spot.placement.end, after, found[1])
        if at < self._end and at not in self._fixed:
            yield _Option(0, at + 1, left, None)

    def _put(self, spot: _Spot, content: tuple[int, ...]) -> tuple[int, Placed] | None:
        """An instance with these compute instances at a spot, and its value; None where they do not fit."""
        key = (spot.number, content)
        if key not in self._placed_memo:
            self._placed_memo[key] = self._put_new(spot, content)
        return self._placed_memo[key]

    def _put_new(self, spot: _Spot, content: tuple[int, ...]) -> tuple[int, Placed] | None:
        profile = self.profiles[spot.profile]
        instance = spot.instance
        if instance is None:
            create = new_compute(profile, content)
            if create is None:
                return None
            return _NEW_INSTANCE, Placed(profile, spot.placement, None, ComputeChange((), (), create))
        change = change_compute(profile, content, instance.compute, spot.pinned)
        if change is None:
            return None
        score = _INSTANCE + _BUSY_COMPUTE * change.busy_kept + _COMPUTE * len(change.keep)
        if instance_busy(instance) and not change.destroy:
            score += _BUSY_INSTANCE
        return score, Placed(profile, spot.placement, instance, change)

    def _contents(self, index: int, left: Left) -> list[tuple[tuple[int, ...], Left]]:
        """What one instance of a profile can be filled with, each with what is left then.

        An instance is never left empty. Fuller ones first.
        """
        key = (index, left)
        found = self._contents_memo.get(key)
        if found is None:
            found = list(self._find_contents(index, left))
            self._contents_memo[key] = found
        return found

    def _find_contents(self, index: int, left: Left) -> Iterator[tuple[tuple[int, ...], Left]]:
        use = [0] * len(self.devices) + [limit.uses[index] for limit in self.limits]
        for content in self._fillings(self._kinds[index], self.profiles[index].name.gpu_slices, left):
            taken = use.copy()
            for kind, number in content.items():
                taken[kind] = number
            after = tuple(map(sub, left, taken))
            if min(after) >= 0:
                slices = [self.devices[kind].slices for kind in content.elements()]
                yield tuple(slices), after

    def _fillings(self, kinds: Sequence[int], room: int, left: Left) -> list[Counter[int]]:
        """Non-empty choices of devices whose slices go into the room, fuller ones first."""
        choices: list[tuple[int, Counter[int]]] = [(room, Counter())]
        for kind in kinds:
            size = self.devices[kind].slices
            choices = [
                (free - number * size, chosen + Counter({kind: number}))
                for free, chosen in choices
                for number in range(min(left[kind], free // size), -1, -1)
            ]
        return [chosen for free, chosen in sorted(choices, key=lambda choice: choice[0]) if chosen]


def instance_busy(instance: GpuInstance) -> bool:
    """Whether somebody uses a GPU instance or one of its compute instances."""
    return instance.busy or any(compute.busy for compute in instance.compute)
