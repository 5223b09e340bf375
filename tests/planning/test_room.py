"""What fits beside what is there: always exactly what trying everything finds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.room import Wanted, arrange, free_places, room_for
from mig_manager.planning.state import GpuState
from tests.planning import oracle
from tests.planning.geometries import A30, A100, FOUR, H100, RTX, instance, state

GEOMETRIES = {"FOUR": FOUR, "A30": A30, "A100": A100, "H100": H100, "RTX": RTX}
Layouts = list[tuple[tuple[str, Placement], ...]]
REACHABLE: dict[str, Layouts] = {}


def reachable(name: str) -> Layouts:
    """All sets of instances that the GPU can hold."""
    if name not in REACHABLE:
        REACHABLE[name] = sorted(set(oracle.reachable(GEOMETRIES[name])))
    return REACHABLE[name]


def holding(geometry: GpuGeometry, pairs: tuple[tuple[str, Placement], ...]) -> GpuState:
    return state(geometry, [instance(geometry, name, place.start) for name, place in pairs])


@settings(max_examples=80)
@given(st.data(), st.sampled_from(sorted(GEOMETRIES)))
def test_an_arrangement_is_found_exactly_where_there_is_one(data: st.DataObject, name: str) -> None:
    geometry = GEOMETRIES[name]
    present = data.draw(st.sampled_from(reachable(name)))
    gpu = holding(geometry, present)
    asked = data.draw(st.lists(st.sampled_from(geometry.profiles), min_size=1, max_size=4))
    wanted = [
        (profile, data.draw(st.sampled_from([None, None, *(place.start for place in profile.placements)])))
        for profile in asked
    ]
    names = [str(profile.name) for profile, _ in wanted]
    ways = [
        way
        for way in oracle.placements(geometry, [*names, *(each for each, _ in present)])
        if set(present) <= set(way) and _starts_there(set(way) - set(present), wanted)
    ]
    found = arrange(gpu, wanted)
    assert (found is not None) == bool(ways)
    if found is not None:
        placed = tuple(zip(names, found, strict=True))
        assert oracle.disjoint([place for _, place in (*placed, *present)])
        for (profile, start), place in zip(wanted, found, strict=True):
            assert place in profile.placements
            assert start in (None, place.start)
        # None leaves more places open.
        assert _open_after(gpu, found) == max(
            _open_after(gpu, [place for _, place in set(way) - set(present)]) for way in ways
        )


def _starts_there(new: set[tuple[str, Placement]], wanted: list[Wanted]) -> bool:
    """Whether new instances can be told apart so that each begins where it is wanted."""
    return len(new) == len(wanted) and any(
        all(
            str(profile.name) == name and start in (None, place.start)
            for (name, place), (profile, start) in zip(order, wanted, strict=True)
        )
        for order in permutations(new)
    )


def _open_after(gpu: GpuState, places: Iterable[Placement]) -> int:
    assert gpu.geometry is not None
    taken = sum(place.mask for place in places)
    return sum(not place.mask & taken for p in gpu.geometry.profiles for place in free_places(gpu, p))


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_so_many_more_fit_and_not_one_beyond(name: str) -> None:
    geometry = GEOMETRIES[name]
    for present in reachable(name)[:: max(1, len(reachable(name)) // 25)]:
        gpu = holding(geometry, present)
        held = [each for each, _ in present]
        for profile in geometry.profiles:
            room = room_for(gpu, profile)
            for more, fits in ((room, True), (room + 1, False)):
                ways = oracle.placements(geometry, [*held, *[str(profile.name)] * more])
                assert any(set(present) <= set(way) for way in ways) is fits, (held, profile.name, more)
