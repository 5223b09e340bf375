"""Exact search: where the wanted MIG devices can lie on one GPU.

GPU instances occupy disjoint runs of memory slices, so a solution is a walk over the slices from left to
right: at each slice an instance begins, or none does. What can still be done from a slice on depends only on
what is left to place, which makes the best value of each such point computable once (dynamic programming).
With those values a best-first walk yields all solutions lazily, the best first, each once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import lcm
from operator import attrgetter, itemgetter, mul, sub
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

_NOTHING: frozenset[int] = frozenset()

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

    profile: int
    placement: Placement
    instance: GpuInstance | None
    pinned: frozenset[int]
    """The positions of its compute instances that must stay."""


class _Move(NamedTuple):
    """An instance at a spot, filled in one way."""

    number: int
    spot: _Spot
    content: tuple[int, ...]
    """The slices of its compute instances, larger ones first."""
    takes: Left


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
        wanted: Sequence[tuple[Device, int]],
        present: Sequence[GpuInstance] = (),
        *,
        floor: Mapping[Placement, frozenset[int]] | None = None,
        refused: Collection[tuple[int, Placement]] = (),
        limited: bool = True,
    ) -> None:
        """Prepare a search; nothing is computed yet.

        Args:
            geometry: of the GPU.
            wanted: devices, each once, with their numbers.
            present: what is on the GPU.
            floor: where the instances lie that must stay, and the positions of their compute instances that
                must.
            refused: places, as profile id and placement, where nothing new may be put.
            limited: whether anything but the placements limits what fits.
        """
        by_id = {device.profile.profile_id: device.profile for device, _ in wanted}
        self.profiles = sorted(by_id.values(), key=attrgetter("name"))
        position = {profile.profile_id: index for index, profile in enumerate(self.profiles)}
        ordered = sorted(wanted, key=lambda pair: (position[pair[0].profile.profile_id], -pair[0].slices))
        self.devices = [device for device, _ in ordered]
        self._kinds: list[list[int]] = [[] for _ in self.profiles]
        asked = [0] * len(self.profiles)
        for kind, (device, number) in enumerate(ordered):
            index = position[device.profile.profile_id]
            self._kinds[index].append(kind)
            asked[index] += number
        self.limits: tuple[Limit, ...] = ()
        if limited:
            self.limits = binding_limits(geometry, self.profiles, asked, present)
        self.start: Left = (
            *(number for _, number in ordered),
            *(limit.most for limit in self.limits),
        )
        floor = floor or {}
        self._fixed = {placement.start for placement in floor}
        self._last_fixed = max(self._fixed, default=-1)
        self._moves = self._find_moves(self._find_spots(present, floor, refused))
        moves = [move for moves in self._moves.values() for move in moves]
        self._end = max((move.spot.placement.end for move in moves), default=0)
        self._values: dict[int, tuple[int, Placed] | None] = {}
        self._unit = lcm(*(profile.name.gpu_slices for profile in self.profiles))
        self._weights = self._find_weights()
        self._memo: dict[tuple[int, Left], int | None] = {}
        self._fit_memo: dict[tuple[int, Left], bool] = {}

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
            for number, (end, after, move) in enumerate(self._options(at, left)):
                rest = self._best(end, after)
                value = (0, None) if move is None else self._value(move)
                if rest is None or value is None:
                    continue
                more = placed if value[1] is None else (*placed, value[1])
                total = score + value[0]
                heappush(queue, (-total - rest, (*path, number), total, end, after, more))

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether so many of each of `devices`, at most those wanted, have a solution."""
        return self._fits(0, (*counts, *self.start[len(self.devices) :]))

    @property
    def possible(self) -> bool:
        """Whether there is any solution."""
        return self._fits(0, self.start)

    def room(self, profile: InstanceProfile) -> int:
        """How many places there are for instances of a profile, also where they overlap."""
        index = self.profiles.index(profile)
        moves = (move for moves in self._moves.values() for move in moves)
        return len({move.spot.placement for move in moves if move.spot.profile == index})

    def _find_spots(
        self,
        present: Sequence[GpuInstance],
        floor: Mapping[Placement, frozenset[int]],
        refused: Collection[tuple[int, Placement]],
    ) -> Iterator[_Spot]:
        fixed = sum(placement.mask for placement in floor)
        for index, profile in enumerate(self.profiles):
            kept = {instance.placement: instance for instance in present if same_profile(profile, instance)}
            others = kept.keys() - profile.placements
            for placement in sorted((*profile.placements, *others)) if others else profile.placements:
                instance = kept.get(placement) if kept else None
                if instance is None and refused and (profile.profile_id, placement) in refused:
                    continue
                if fixed and placement.mask & fixed and (instance is None or placement not in floor):
                    continue
                yield _Spot(index, placement, instance, floor.get(placement, _NOTHING))

    def _find_moves(self, spots: Iterable[_Spot]) -> dict[int, list[_Move]]:
        fillings = [list(self._find_fillings(index)) for index in range(len(self.profiles))]
        numbers = count()
        moves: dict[int, list[_Move]] = {}
        for spot in spots:
            there = moves.setdefault(spot.placement.start, [])
            there.extend(
                _Move(next(numbers), spot, content, takes) for content, takes in fillings[spot.profile]
            )
        return moves

    def _find_fillings(self, index: int) -> list[tuple[tuple[int, ...], Left]]:
        """What one instance of a profile can be filled with, fuller ones first; never with nothing."""
        use = (*(0 for _ in self.devices), *(limit.uses[index] for limit in self.limits))
        found: list[tuple[int, tuple[int, ...], Left]] = [(self.profiles[index].name.gpu_slices, (), use)]
        for kind in self._kinds[index]:
            size = self.devices[kind].slices
            found = [
                (room - n * size, content + (size,) * n, (*takes[:kind], n, *takes[kind + 1 :]))
                for room, content, takes in found
                for n in range(min(self.start[kind], room // size), -1, -1)
            ]
        return [(content, takes) for _, content, takes in sorted(found, key=itemgetter(0)) if content]

    def _find_weights(self) -> Left:
        """How many memory slices each kind of device takes at least, in parts of a slice (`_unit`)."""
        weights = [0] * len(self.start)
        for index, profile in enumerate(self.profiles):
            smallest = min((placement.size for placement in profile.placements), default=0)
            for kind in self._kinds[index]:
                slices = self.devices[kind].slices
                weights[kind] = self._unit * smallest * slices // profile.name.gpu_slices
        return tuple(weights)

    def _complete(self, at: int, left: Left) -> bool:
        return not any(left[: len(self.devices)]) and at > self._last_fixed

    def _fits(self, at: int, left: Left) -> bool:
        """Whether what is left fits, from a slice on: `_best` without the values."""
        if self._complete(at, left):
            return True
        key = (at, left)
        if key not in self._fit_memo:
            self._fit_memo[key] = self._has_room(at, left) and any(
                self._fits(end, after) and (move is None or self._is_possible(move))
                for end, after, move in self._options(at, left)
            )
        return self._fit_memo[key]

    def _is_possible(self, move: _Move) -> bool:
        profile = self.profiles[move.spot.profile]
        empty = not move.spot.pinned and new_compute(profile, move.content) is not None
        return empty or self._value(move) is not None

    def _has_room(self, at: int, left: Left) -> bool:
        """Whether there are slices enough; a bound, no more."""
        need: int = sum(map(mul, left, self._weights))
        return need <= (self._end - at) * self._unit

    def _best(self, at: int, left: Left) -> int | None:
        """The best value of what is left, from a slice on; None where it does not fit."""
        if self._complete(at, left):
            return 0
        key = (at, left)
        if key in self._memo:
            return self._memo[key]
        best: int | None = None
        if self._has_room(at, left):
            for end, after, move in self._options(at, left):
                total = self._best(end, after)
                if total is None:
                    continue
                if move is not None:
                    value = self._value(move)
                    if value is None:
                        continue
                    total += value[0]
                if best is None or total > best:
                    best = total
        self._memo[key] = best
        return best

    def _options(self, at: int, left: Left) -> Iterator[tuple[int, Left, _Move | None]]:
        """What can begin at a slice: its end, what is left then, and the move; None where nothing begins."""
        for move in self._moves.get(at, ()):
            after = tuple(map(sub, left, move.takes))
            if min(after) >= 0:
                yield move.spot.placement.end, after, move
        if at < self._end and at not in self._fixed:
            yield at + 1, left, None

    def _value(self, move: _Move) -> tuple[int, Placed] | None:
        """What a move is worth, and the instance; None where the compute instances do not fit into it."""
        if move.number not in self._values:
            self._values[move.number] = self._find_value(move)
        return self._values[move.number]

    def _find_value(self, move: _Move) -> tuple[int, Placed] | None:
        _, placement, instance, pinned = move.spot
        profile = self.profiles[move.spot.profile]
        if instance is None:
            create = new_compute(profile, move.content)
            if create is None:
                return None
            return _NEW_INSTANCE, Placed(profile, placement, None, ComputeChange((), (), create))
        change = change_compute(profile, move.content, instance.compute, pinned)
        if change is None:
            return None
        score = _INSTANCE + _BUSY_COMPUTE * change.busy_kept + _COMPUTE * len(change.keep)
        if instance_busy(instance) and not change.destroy:
            score += _BUSY_INSTANCE
        return score, Placed(profile, placement, instance, change)


def instance_busy(instance: GpuInstance) -> bool:
    """Whether somebody uses a GPU instance or one of its compute instances."""
    return instance.busy or any(compute.busy for compute in instance.compute)
