"""What bounds the GPU instances of one GPU besides their memory slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal

from mig_manager.planning.geometry import GpuGeometry, InstanceProfile
from mig_manager.planning.profiles import same_profile
from mig_manager.planning.state import GpuInstance

Engine = Literal["decoder", "encoder", "jpeg", "ofa"]

_ENGINES: tuple[Engine, ...] = ("decoder", "encoder", "jpeg", "ofa")
_WORDS: dict[Engine, str] = {
    "decoder": "decoders",
    "encoder": "encoders",
    "jpeg": "JPEG engines",
    "ofa": "OFA engines",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A quantity of which GPU instances use some and the GPU has only so much."""

    what: str
    """In words, for messages: `instances of 1g.10gb+me`, `JPEG engines`."""
    most: int
    uses: tuple[int, ...]
    """What one GPU instance of each profile uses, in the order of the profiles that were asked about."""
    engine: Engine | None = None
    """The engine that it counts; None for a count of instances."""


def binding_limits(
    geometry: GpuGeometry,
    profiles: Sequence[InstanceProfile],
    asked: Sequence[int],
    present: Sequence[GpuInstance],
) -> tuple[Limit, ...]:
    """The limits that so many GPU instances of these profiles could break, at most `asked` of each.

    What the GPU holds now is possible, whatever the numbers say (drivers are known to report wrong counts on
    A30), so no limit is lower than what `present` uses.
    """
    found = [
        *(_count_limit(index, number, profiles, present) for index, number in enumerate(asked)),
        *(_engine_limit(engine, geometry, profiles, asked, present) for engine in _ENGINES),
    ]
    return tuple(limit for limit in found if limit is not None)


def _count_limit(
    index: int, asked: int, profiles: Sequence[InstanceProfile], present: Sequence[GpuInstance]
) -> Limit | None:
    profile = profiles[index]
    if asked <= profile.max_instances:
        return None
    there = sum(same_profile(profile, instance) for instance in present)
    if asked <= there:
        return None
    uses = tuple(int(other == index) for other in range(len(profiles)))
    return Limit(f"instances of {profile.name}", max(profile.max_instances, there), uses)


def _engine_limit(
    engine: Engine,
    geometry: GpuGeometry,
    profiles: Sequence[InstanceProfile],
    asked: Sequence[int],
    present: Sequence[GpuInstance],
) -> Limit | None:
    """The engines of the whole GPU: what the profile with the most has. Unknown numbers limit nothing."""
    uses = tuple(_engines(profile, engine) or 0 for profile in profiles)
    wanted = sum(map(mul, uses, asked))
    counts = [_engines(profile, engine) for profile in geometry.profiles]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or wanted <= max(known, default=0):
        return None
    by_id = {profile.profile_id: count for profile, count in zip(geometry.profiles, known, strict=True)}
    there = sum(by_id.get(instance.profile_id, 0) for instance in present)
    most = max([there, *known])
    if wanted <= most or _disproved(engine, most, geometry):
        return None
    return Limit(_WORDS[engine], most, uses, engine)


def _disproved(engine: Engine, limit: int, geometry: GpuGeometry) -> bool:
    """Whether plain profiles alone, placed as allowed, can use more engines than the GPU seems to have.

    Such numbers do not divide the engines of the GPU among its instances, so they limit nothing. No model of
    the catalogue has them.
    """
    plain = [profile for profile in geometry.profiles if not profile.name.suffix]
    runs = sorted(
        (placement.end, placement.start, _engines(profile, engine) or 0)
        for profile in plain
        for placement in profile.placements
    )
    most = [0] * (runs[-1][0] + 1) if runs else [0]
    reached = 0
    for end, start, engines in runs:
        most[reached + 1 : end + 1] = [most[reached]] * (end - reached)
        reached = end
        most[end] = max(most[end], most[start] + engines)
    return most[-1] > limit


def _engines(profile: InstanceProfile, engine: Engine) -> int | None:
    count: int | None = getattr(profile.engines, engine)
    return count
