"""Counts and engines that bound what a GPU can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mig_manager.errors import MigManagerError
from mig_manager.planning.catalogue import catalogue
from mig_manager.planning.geometry import Engines, GpuGeometry, InstanceProfile
from mig_manager.planning.planner import plan_gpu
from tests.planning.geometries import A30, A100, FOUR, RTX, instance, state, target


def plain_sets(geometry: GpuGeometry) -> set[tuple[str, ...]]:
    """Every set of plain profiles that the placements allow."""
    plain = [profile for profile in geometry.profiles if not profile.name.suffix]

    def walk(at: int) -> Iterator[tuple[str, ...]]:
        if at >= geometry.memory_slices:
            yield ()
            return
        yield from walk(at + 1)
        for profile in plain:
            for place in profile.placements:
                if place.start == at:
                    yield from ((str(profile.name), *rest) for rest in walk(place.end))

    return {tuple(sorted(names)) for names in walk(0)}


def test_engines_forbid_no_combination_of_plain_profiles_on_any_known_model() -> None:
    seen = set()
    for model in catalogue():
        geometry = model.geometry
        if geometry is None:
            continue
        engines = {str(profile.name): profile.engines for profile in geometry.profiles}
        key = tuple((profile.placements, profile.engines) for profile in geometry.profiles)
        if key in seen:
            continue
        seen.add(key)
        for names in plain_sets(geometry):
            for engine in ("decoder", "encoder", "jpeg", "ofa"):
                counts = [getattr(one, engine) for one in engines.values()]
                if None not in counts:
                    used = sum(getattr(engines[name], engine) for name in names)
                    assert used <= max(counts), (model.name, names, engine)
    assert len(seen) >= 5


@pytest.mark.parametrize(
    ("geometry", "devices"),
    [
        (A100, ["1g.10gb+me"] * 2),
        (A30, ["2g.12gb+me", "1g.6gb+me"]),
        (A30, ["2g.12gb+me"] * 2),
        (RTX, ["1g.24gb+me.all", "1g.24gb"]),
        (RTX, ["1g.24gb+me.all", "1g.24gb+gfx"]),
        (RTX, ["1g.24gb+me.all", "1g.24gb+me"]),
        (RTX, ["2g.48gb+me.all", "1g.24gb+me.all"]),
    ],
)
def test_media_engines_cannot_be_given_twice(geometry: GpuGeometry, devices: list[str]) -> None:
    with pytest.raises(MigManagerError, match="and the GPU can have"):
        plan_gpu(target(devices), state(geometry))


@pytest.mark.parametrize(
    ("geometry", "devices"),
    [
        (A100, ["1g.10gb+me"] + ["1g.10gb"] * 6),
        (A30, ["2g.12gb+me", "2g.12gb"]),
        (RTX, ["1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me"]),
        (RTX, ["1g.24gb+me", "1g.24gb", "1g.24gb+gfx", "1g.24gb-me"]),
        (RTX, ["2g.48gb+gfx", "2g.48gb"]),
    ],
)
def test_media_engines_can_be_shared_out(geometry: GpuGeometry, devices: list[str]) -> None:
    plan = plan_gpu(target(devices), state(geometry))
    assert Counter(str(new.profile) for new in plan.create) == Counter(devices)


def _with_engines(geometry: GpuGeometry, name: str, engines: Engines) -> GpuGeometry:
    def change(profile: InstanceProfile) -> InstanceProfile:
        return replace(profile, engines=engines) if str(profile.name) == name else profile

    return replace(geometry, profiles=tuple(map(change, geometry.profiles)))


def test_engine_numbers_that_plain_profiles_disprove_limit_nothing() -> None:
    # Two 2g fit by their placements and show three decoders each; no profile shows more than three.
    odd = _with_engines(FOUR, "2g.2gb", Engines(1, 3, 0, 0, 0))
    assert len(plan_gpu(target(["2g.2gb"] * 2), state(odd)).create) == 2


def test_an_unknown_engine_number_limits_nothing() -> None:
    unknown = _with_engines(RTX, "4g.96gb", Engines(4, None, None, None, None))
    plan = plan_gpu(target(["1g.24gb+me.all", "1g.24gb"]), state(unknown))
    assert len(plan.create) == 2


def test_what_the_gpu_holds_is_possible_whatever_the_driver_counts() -> None:
    # Drivers are known to report wrong counts on A30.
    wrong = replace(A30, profiles=tuple(replace(profile, max_instances=1) for profile in A30.profiles))
    present = [instance(wrong, "1g.6gb", start) for start in range(3)]
    plan = plan_gpu(target(["1g.6gb"] * 3), state(wrong, present))
    assert not plan.changes
    with pytest.raises(MigManagerError, match=r"4 instances of 1g\.6gb, and the GPU can have 3"):
        plan_gpu(target(["1g.6gb"] * 4), state(wrong, present))
