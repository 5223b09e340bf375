"""A model of the catalogue as it is on a card of another size: vendors sell some with more memory, or with less."""

from __future__ import annotations

from dataclasses import replace

from mig_manager.planning.geometry import GpuGeometry, InstanceProfile

_ALIKE = 0.03
"""Share of the memory by which drivers differ about one card, at most: they keep some for themselves."""


def resized(geometry: GpuGeometry, memory_mb: int) -> GpuGeometry:
    """The same cuts for a card with that much memory (MiB), under the names that NVIDIA's rule gives them there.

    The geometry itself where that is the memory it is about, or where the card's is not known (0).
    """
    known = geometry.memory_mb
    if not memory_mb or not known or abs(memory_mb - known) <= _ALIKE * known:
        return geometry
    profiles = tuple(_resized(profile, known, memory_mb) for profile in geometry.profiles)
    return replace(geometry, memory_mb=memory_mb, profiles=profiles)


def _resized(profile: InstanceProfile, known: int, memory_mb: int) -> InstanceProfile:
    """The share up to the next eighth, of the whole GiB of the card, rounded half up."""
    eighths = -(-8 * profile.memory_mb // known)
    size = (2 * eighths * -(-memory_mb // 1024) + 8) // 16
    return replace(
        profile,
        name=replace(profile.name, memory_gb=size),
        memory_mb=profile.memory_mb * memory_mb // known,
    )
