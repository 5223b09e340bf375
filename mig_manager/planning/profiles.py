"""Which profile of a GPU a layout means."""

from __future__ import annotations

from collections.abc import Iterable

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.suggest import nearest
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile
from mig_manager.planning.state import GpuInstance

_EIGHTHS = 8


def accepted_sizes(geometry: GpuGeometry, profile: InstanceProfile) -> frozenset[int]:
    """The sizes in GB under which a profile is known.

    The driver's own name; what NVIDIA's naming rule gives (the share of the device memory up to the next
    eighth, of the whole GiB of the device), with halves rounded up and down, since tools differ there; and
    for the whole GPU its own memory in GiB, which older tools printed (`7g.79gb`). Smaller profiles are not
    known by that: it would make `3g.47gb`, of another board, mean `3g.48gb`.
    """
    whole_gib = -(-geometry.memory_mb // 1024)
    eighths = -(-profile.memory_mb * _EIGHTHS // max(geometry.memory_mb, 1))
    double = 2 * eighths * whole_gib
    by_rule_up = (double + _EIGHTHS) // (2 * _EIGHTHS)
    by_rule_down = -((_EIGHTHS - double) // (2 * _EIGHTHS))
    sizes = {profile.name.memory_gb, by_rule_up, by_rule_down}
    if profile.name.gpu_slices == geometry.compute_slices:
        sizes.add((2 * profile.memory_mb + 1024) // 2048)
    return frozenset(sizes)


def resolve_profile(geometry: GpuGeometry, wanted: MigProfile) -> InstanceProfile:
    """The GPU-instance profile that holds a MIG device of that name.

    Slices and attributes must match exactly. The size is the driver's, or else one that the known naming
    rules give; never one that is merely close.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE; the GPU has no such profile, or no compute instance of that many
            slices in it. Names what there is, and the nearest.
    """
    profile = _find(geometry, wanted)
    if profile is None:
        raise MigManagerError(Reason.UNSUPPORTED_PROFILE, _no_such_profile(geometry, wanted))
    if not _splits(profile, wanted):
        raise MigManagerError(Reason.UNSUPPORTED_PROFILE, _no_such_split(geometry, profile, wanted))
    return profile


def offers_profile(geometry: GpuGeometry, wanted: MigProfile) -> bool:
    """Whether `resolve_profile` finds one."""
    profile = _find(geometry, wanted)
    return profile is not None and _splits(profile, wanted)


def in_order(profiles: Iterable[InstanceProfile]) -> list[InstanceProfile]:
    """Profiles as nvidia-smi lists them: smaller ones first, variants behind the plain ones."""
    return sorted(profiles, key=lambda each: (each.name.gpu_slices, each.name.memory_gb, each.name.suffix))


def same_profile(profile: InstanceProfile, instance: GpuInstance) -> bool:
    """Whether a GPU instance that is there has that profile, by its id or by the driver's name."""
    return instance.profile_id == profile.profile_id or instance.profile == profile.name


def _find(geometry: GpuGeometry, wanted: MigProfile) -> InstanceProfile | None:
    alike = [profile for profile in geometry.profiles if _same_kind(profile.name, wanted)]
    found = [profile for profile in alike if profile.name.memory_gb == wanted.memory_gb]
    if not found:
        found = [profile for profile in alike if wanted.memory_gb in accepted_sizes(geometry, profile)]
    return found[0] if len(found) == 1 else None


def _splits(profile: InstanceProfile, wanted: MigProfile) -> bool:
    return wanted.whole or any(compute.slices == wanted.compute_slices for compute in profile.compute)


def _same_kind(name: MigProfile, wanted: MigProfile) -> bool:
    return (
        name.gpu_slices == wanted.gpu_slices
        and name.attributes == wanted.attributes
        and name.removed == wanted.removed
    )


def _no_such_profile(geometry: GpuGeometry, wanted: MigProfile) -> str:
    if not geometry.profiles:
        return f"{geometry.model} has no profile {wanted}: the driver lists none at all"
    names = [str(profile.name) for profile in in_order(geometry.profiles)]
    near = nearest(str(wanted.gpu_instance), names, 1)
    return f"{geometry.model} has no profile {wanted}; it has {', '.join(names)}.{_hint(near, wanted)}"


def _hint(near: tuple[str, ...], wanted: MigProfile) -> str:
    if not near:
        return ""
    guess = MigProfile.parse(near[0])
    if guess.gpu_slices == wanted.gpu_slices:
        guess = guess.split(wanted.compute_slices)
    return f" Did you mean {guess}?"


def _no_such_split(geometry: GpuGeometry, profile: InstanceProfile, wanted: MigProfile) -> str:
    names = [str(profile.name.split(compute.slices)) for compute in profile.compute]
    there = f"it has {', '.join(names)}" if names else "the driver lists no compute profiles for it"
    return (
        f"{geometry.model} has no compute instance of {wanted.compute_slices} slices in {profile.name} "
        f"({wanted}); {there}."
    )
