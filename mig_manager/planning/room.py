"""What still fits on a GPU beside what is there, all of which stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.limits import Limit, binding_limits
from mig_manager.planning.profiles import same_profile
from mig_manager.planning.state import GpuState

_MOST_ARRANGEMENTS = 20_000
"""Arrangements that are compared. No known GPU has as many; on others the best of the first ones serves."""

Wanted = tuple[InstanceProfile, int | None]
"""A GPU instance to place: its profile, and the first memory slice where that is given."""


def free_places(state: GpuState, profile: InstanceProfile) -> tuple[Placement, ...]:
    """The places of a profile that no instance touches, ascending; they may overlap each other."""
    occupied = _occupied(state)
    return tuple(place for place in profile.placements if not place.mask & occupied)


def room_for(state: GpuState, profile: InstanceProfile) -> int:
    """How many more instances of a profile the GPU takes; nvmlDeviceGetGpuInstanceRemainingCapacity."""
    if state.geometry is None or not state.mig_current:
        return 0
    disjoint = end = 0
    for place in sorted(free_places(state, profile), key=lambda place: place.end):
        if place.start >= end:
            disjoint, end = disjoint + 1, place.end
    while disjoint and broken_limits(state, state.geometry, [(profile, None)] * disjoint):
        disjoint -= 1
    return disjoint


def broken_limits(state: GpuState, geometry: GpuGeometry, wanted: Sequence[Wanted]) -> tuple[Limit, ...]:
    """The limits besides memory slices that so many more instances would break."""
    more = Counter(profile.profile_id for profile, _ in wanted)
    asked = [
        more[profile.profile_id] + sum(same_profile(profile, instance) for instance in state.instances)
        for profile in geometry.profiles
    ]
    return binding_limits(geometry, geometry.profiles, asked, state.instances)


def arrange(state: GpuState, wanted: Sequence[Wanted]) -> tuple[Placement, ...] | None:
    """A place for each, in the order in which they are wanted; None where there is no room for all of them.

    Of all arrangements the one that leaves the most places of any profile open, then the lowest.
    """
    geometry = state.geometry
    if geometry is None or broken_limits(state, geometry, wanted):
        return None
    occupied = _occupied(state)
    open_places = [
        place for profile in geometry.profiles for place in profile.placements if not place.mask & occupied
    ]

    def worth(places: Sequence[Placement]) -> tuple[object, ...]:
        taken = _mask(places)
        lost = sum(bool(place.mask & taken) for place in open_places)
        return lost, sorted(places), list(places)

    return min(islice(disjoint(_choices(state, wanted)), _MOST_ARRANGEMENTS), key=worth, default=None)


def lies_somewhere(state: GpuState, wanted: Sequence[Wanted]) -> bool:
    """Whether there are memory slices for all of them, whatever other limits say."""
    return next(disjoint(_choices(state, wanted)), None) is not None


def disjoint(choices: Sequence[Sequence[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """All ways to choose one place for each that overlap nowhere; equal ones in ascending order only."""
    order = sorted(range(len(choices)), key=lambda item: (len(choices[item]), choices[item], item))
    chosen: dict[int, Placement] = {}

    def place(step: int, taken: int) -> Iterator[tuple[Placement, ...]]:
        if step == len(order):
            yield tuple(chosen[item] for item in range(len(choices)))
            return
        item = order[step]
        before = order[step - 1] if step else None
        alike = before is not None and choices[before] == choices[item]
        for place_ in choices[item]:
            if place_.mask & taken or (alike and before is not None and place_ < chosen[before]):
                continue
            chosen[item] = place_
            yield from place(step + 1, taken | place_.mask)

    yield from place(0, 0)


def _choices(state: GpuState, wanted: Sequence[Wanted]) -> list[list[Placement]]:
    """The places that each could have alone."""
    return [
        [place for place in free_places(state, profile) if start in (None, place.start)]
        for profile, start in wanted
    ]


def _occupied(state: GpuState) -> int:
    return _mask([instance.placement for instance in state.instances])


def _mask(places: Sequence[Placement]) -> int:
    mask = 0
    for place in places:
        mask |= place.mask
    return mask
