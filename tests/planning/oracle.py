"""What a plan may promise, found by trying everything. Shares no code with the planner.

A layout is every GPU instance with every compute instance, each at a place. All layouts of a target are
listed with itertools; each is scored against what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, product

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.plan import GpuPlan
from mig_manager.planning.state import GpuInstance, GpuState

Inside = tuple[tuple[int, int], ...]
"""The compute instances of a GPU instance: slices and start, sorted."""
Layout = tuple[tuple[str, Placement, Inside], ...]
"""GPU instances: profile, place, compute instances."""
Score = tuple[int, int, int, int, int]
"""Busy instances kept, instances kept, minus new instances, busy compute instances kept, minus new ones."""


def slices_of(start: int, size: int) -> set[int]:
    return set(range(start, start + size))


def within_limits(geometry: GpuGeometry, names: Sequence[str]) -> bool:
    """Whether the counts and the engines of so many instances are possible."""
    profiles = by_name(geometry)
    for name, count in Counter(names).items():
        if count > profiles[name].max_instances:
            return False
    for engine in ("decoder", "encoder", "jpeg", "ofa"):
        counts = [getattr(profile.engines, engine) for profile in geometry.profiles]
        if None in counts:
            continue
        if sum(getattr(profiles[name].engines, engine) for name in names) > max(counts):
            return False
    return True


_BY_NAME: dict[int, tuple[GpuGeometry, dict[str, InstanceProfile]]] = {}


def by_name(geometry: GpuGeometry) -> dict[str, InstanceProfile]:
    """The profiles of a GPU, spelled out once for each: to hash a whole geometry takes longer than that."""
    if id(geometry) not in _BY_NAME:
        _BY_NAME[id(geometry)] = geometry, {str(profile.name): profile for profile in geometry.profiles}
    return _BY_NAME[id(geometry)][1]


def disjoint(places: Sequence[Placement]) -> bool:
    taken = 0
    for place in places:
        slices = ((1 << place.size) - 1) << place.start
        if taken & slices:
            return False
        taken |= slices
    return True


def placements(geometry: GpuGeometry, names: Sequence[str]) -> Iterator[tuple[tuple[str, Placement], ...]]:
    """All ways to lay GPU instances of these profiles on the GPU."""
    if not within_limits(geometry, names):
        return
    profiles = by_name(geometry)
    ways = [
        [
            (tuple((name, place) for place in places), places)
            for places in combinations(profiles[name].placements, count)
            if disjoint(places)
        ]
        for name, count in sorted(Counter(names).items())
    ]
    # One kind after the other: what overlaps already is tried with no further kind.
    found: list[tuple[tuple[tuple[str, Placement], ...], tuple[Placement, ...]]] = [((), ())]
    for of_kind in ways:
        found = [
            ((*pairs, *more), (*taken, *places))
            for pairs, taken in found
            for more, places in of_kind
            if disjoint((*taken, *places))
        ]
    yield from (pairs for pairs, _ in found)


def reachable(geometry: GpuGeometry, most: int = 16) -> Iterator[tuple[tuple[str, Placement], ...]]:
    """Every set of GPU instances that can be on the GPU."""
    names = [str(profile.name) for profile in geometry.profiles]
    for count in range(most + 1):
        found = False
        for chosen in combinations_with_replacement(names, count):
            for layout in placements(geometry, chosen):
                found = True
                yield layout
        if not found:
            return


def insides(profile: InstanceProfile, slices: Sequence[int]) -> set[Inside]:
    """All ways to lay compute instances of these slices into an instance."""
    kinds = {kind.slices: kind for kind in profile.compute}
    ways = [[(size, place.start) for place in kinds[size].placements] for size in slices]
    found = set()
    for choice in product(*ways):
        taken = [slice_ for size, start in choice for slice_ in slices_of(start, size)]
        counts = Counter(size for size, _ in choice)
        if len(taken) == len(set(taken)) and all(
            n <= kinds[size].max_instances for size, n in counts.items()
        ):
            found.add(tuple(sorted(choice)))
    return found


def partitions(items: Sequence[MigProfile]) -> Iterator[list[list[MigProfile]]]:
    """All ways to group things; the same way may come more than once."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for index in range(len(groups)):
            yield [*groups[:index], [first, *groups[index]], *groups[index + 1 :]]


def layouts(geometry: GpuGeometry, devices: Sequence[MigProfile]) -> set[Layout]:
    """All layouts of a target."""
    profiles = by_name(geometry)
    groupings = set()
    for groups in partitions(devices):
        if all(len({str(device.gpu_instance) for device in group}) == 1 for group in groups):
            filled = (
                (str(group[0].gpu_instance), tuple(sorted(device.compute_slices for device in group)))
                for group in groups
            )
            groupings.add(tuple(sorted(filled)))
    found: set[Layout] = set()
    for grouping in sorted(groupings):
        ways = [insides(profiles[name], slices) for name, slices in grouping]
        if not all(ways) or not within_limits(geometry, [name for name, _ in grouping]):
            continue
        for places in product(*(profiles[name].placements for name, _ in grouping)):
            if disjoint(places):
                for chosen in product(*ways):
                    layout = [
                        (name, place, inside)
                        for (name, _), place, inside in zip(grouping, places, chosen, strict=True)
                    ]
                    found.add(tuple(sorted(layout)))
    return found


def score(layout: Layout, present: Sequence[GpuInstance]) -> Score:
    """What a layout keeps of what is there; the placements of all compute instances are known."""
    there = {(str(one.profile), one.placement): one for one in present}
    busy = kept = new = busy_compute = new_compute = 0
    for name, place, inside in layout:
        instance = there.get((name, place))
        if instance is None:
            new += 1
            new_compute += len(inside)
            continue
        kept += 1
        left = list(inside)
        whole = True
        for compute in instance.compute:
            assert compute.placement is not None
            mine = (compute.slices, compute.placement.start)
            if mine in left:
                left.remove(mine)
                busy_compute += compute.busy
            else:
                whole = False
        new_compute += len(left)
        if whole and (instance.busy or any(compute.busy for compute in instance.compute)):
            busy += 1
    return busy, kept, -new, busy_compute, -new_compute


def plan_score(plan: GpuPlan) -> Score:
    """The same of a plan."""
    busy = sum(
        (kept.instance.busy or any(one.busy for one in kept.instance.compute)) and not kept.destroy
        for kept in plan.keep
    )
    new_compute = [one for kept in plan.keep for one in kept.create]
    new_compute += [one for new in plan.create for one in new.compute]
    busy_compute = sum(
        one.busy for kept in plan.keep for one in kept.instance.compute if one not in kept.destroy
    )
    return busy, len(plan.keep), -len(plan.create), busy_compute, -len(new_compute)


def check(plan: GpuPlan, devices: Sequence[MigProfile], state: GpuState) -> None:
    """That a plan can be carried out on that GPU and ends in the target. Raises AssertionError."""
    geometry = state.geometry
    assert geometry is not None
    profiles = {profile.profile_id: profile for profile in geometry.profiles}
    gone = {one.placement for one in plan.destroy}
    stays = {kept.instance.placement for kept in plan.keep}
    assert gone | stays == {one.placement for one in state.instances}
    assert not gone & stays
    assert len(plan.keep) + len(plan.destroy) == len(state.instances)
    assert all(kept.instance in state.instances for kept in plan.keep)
    assert all(one in state.instances for one in plan.destroy)
    places = [kept.instance.placement for kept in plan.keep] + [new.placement for new in plan.create]
    assert disjoint(places)
    assert [new.placement for new in plan.create] == sorted(new.placement for new in plan.create)
    names = [str(kept.instance.profile) for kept in plan.keep] + [str(new.profile) for new in plan.create]
    assert within_limits(geometry, names)
    result: Counter[MigProfile] = Counter()
    for new in plan.create:
        profile = profiles[new.profile_id]
        assert profile.name == new.profile
        assert new.placement in profile.placements
        inside = [(one.slices, one.placement) for one in new.compute]
        _check_inside(profile, inside, [])
        result.update(new.profile.split(one.slices) for one in new.compute)
    for kept in plan.keep:
        assert all(one in kept.instance.compute for one in kept.destroy)
        still = [one for one in kept.instance.compute if one not in kept.destroy]
        inside = [(one.slices, one.placement) for one in kept.create]
        _check_inside(
            profiles[kept.instance.profile_id], inside, [(one.slices, one.placement) for one in still]
        )
        result.update(kept.instance.profile.split(one.slices) for one in still)
        result.update(kept.instance.profile.split(one.slices) for one in kept.create)
    assert result == Counter(devices)


def _check_inside(
    profile: InstanceProfile,
    new: Sequence[tuple[int, Placement | None]],
    still: Sequence[tuple[int, Placement | None]],
) -> None:
    assert new or still
    kinds = {kind.slices: kind for kind in profile.compute}
    for slices, count in Counter(slices for slices, _ in (*new, *still)).items():
        assert count <= kinds[slices].max_instances
    if len(new) == 1 and not still:
        assert new[0][1] is None or new[0][1] in kinds[new[0][0]].placements
        return
    # A compute instance whose place is not known may lie anywhere: nothing new may be put where it may be.
    blocked: set[int] = set()
    for slices, place in still:
        for may in [place] if place is not None else kinds[slices].placements:
            blocked |= slices_of(may.start, may.size)
    for slices, place in new:
        assert place is not None
        assert place in kinds[slices].placements
        assert not blocked & slices_of(place.start, place.size)
        blocked |= slices_of(place.start, place.size)
