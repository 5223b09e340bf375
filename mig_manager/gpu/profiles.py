"""What the profiles that NVML lists are called, how many fit, and which compute profile to take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo
from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError
from mig_manager.planning.geometry import ComputeProfile, Placement

_MIB = 2**20
_GIB = 2**30

_ADDED = {7: "me", 8: "me", 10: "gfx", 11: "gfx", 12: "gfx", 15: "me.all", 16: "me.all", 17: "gfx"}
"""Attributes by NVML_GPU_INSTANCE_PROFILE_*: REV1, GFX, ALL_ME. REV2 (9) has none, only more memory."""
_REMOVED = {13: "me", 14: "me"}
"""NO_ME."""
_KNOWN_ENUMS = 18
"""NVML_GPU_INSTANCE_PROFILE_COUNT of API 13."""

_COMPUTE_ENUMS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""NVML_COMPUTE_INSTANCE_PROFILE_* by slices. Profile ids equal them in every listing seen."""
_BASE_COMPUTE = frozenset(_COMPUTE_ENUMS.values())
"""The base variants; 7 is 1_SLICE_REV1 and 8 is 7_SLICE_NVL."""


def profile_name(info: GpuProfileInfo, memory: int) -> MigProfile:
    """The name of a GPU-instance profile on a GPU with that much memory (bytes).

    The driver's own name stands where it gives one that fits the profile. Otherwise NVIDIA's rule: the
    share of the memory, rounded up to an eighth, times the memory in whole GiB, rounded half up. On a GPU without
    memory of its own that is 0.
    """
    added, removed = _ADDED.get(info.enum), _REMOVED.get(info.enum)
    eighths = -(-8 * info.memory_mb * _MIB // max(memory, 1))
    total_gb = -(-memory // _GIB)
    by_rule = MigProfile(
        compute_slices=info.slices,
        gpu_slices=info.slices,
        memory_gb=(2 * eighths * total_gb + 8) // 16,
        attributes=frozenset({added} if added else ()),
        removed=frozenset({removed} if removed else ()),
    )
    by_driver = _parse(info.name)
    if by_driver is None or by_driver.gpu_slices != info.slices or not by_driver.whole:
        return by_rule
    same = by_driver.attributes == by_rule.attributes and by_driver.removed == by_rule.removed
    return by_driver if same or info.enum >= _KNOWN_ENUMS else by_rule


def _parse(name: str | None) -> MigProfile | None:
    try:
        return MigProfile.parse((name or "").strip().removeprefix("MIG").strip())
    except ProfileSyntaxError:
        return None


def most_instances(name: MigProfile, info: GpuProfileInfo, placements: Sequence[Placement]) -> int:
    """How many instances of a profile can be there at a time.

    Placements tell the truth for plain profiles, where some drivers report wrong counts (A30). Media and
    graphics engines limit the others further, which only the driver's count shows.
    """
    disjoint = free = 0
    for placement in sorted(placements, key=lambda each: each.end):
        if placement.start >= free:
            disjoint, free = disjoint + 1, placement.end
    if name.attributes or name.removed:
        return max(1, min(disjoint, info.instances))
    return disjoint


def choose_compute(
    profiles: Iterable[ComputeProfileInfo], slices: int, instance: GpuProfileInfo | None
) -> ComputeProfileInfo | None:
    """The compute profile of that many slices to create in a GPU instance of profile `instance`.

    One that fills the GPU instance is known by its multiprocessors. Among profiles that share a name the
    base variant is taken, not REV1 or NVL. None: the GPU instance offers nothing of that size.
    """

    def variant(profile: ComputeProfileInfo) -> tuple[bool, int]:
        return (profile.enum not in _BASE_COMPUTE, profile.enum)

    if instance is None or slices != instance.slices:
        return min((p for p in profiles if p.slices == slices), key=variant, default=None)

    def fills(profile: ComputeProfileInfo) -> tuple[bool, bool]:
        return (profile.multiprocessors != instance.multiprocessors, profile.slices != slices)

    candidates = [profile for profile in profiles if not all(fills(profile))]
    return min(candidates, key=lambda profile: (*fills(profile), *variant(profile)), default=None)


def usual_compute(slices: int) -> tuple[ComputeProfile, ...]:
    """The compute profiles of a GPU instance of that many slices, where there is none to ask.

    NVML lists compute profiles only for a GPU instance that exists. This is what those list that were
    seen: the whole, and sizes of which about two fit (go-nvlib: 2c <= g + 1), aligned to powers of two.
    """
    found = []
    for size, enum in sorted(_COMPUTE_ENUMS.items()):
        if size == slices:
            placements: tuple[Placement, ...] = (Placement(0, size),)
        elif 2 * size <= slices + 1:
            step = 1 << (size - 1).bit_length()
            placements = tuple(Placement(start, size) for start in range(0, slices - size + 1, step))
        else:
            continue
        found.append(ComputeProfile(enum, size, len(placements), placements))
    return tuple(found)
