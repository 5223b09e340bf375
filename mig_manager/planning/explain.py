"""Why devices cannot stand together on a GPU, in words. Every claim is computed, none is guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.compute import fewest_instances
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.placement import Search
from mig_manager.planning.state import GpuInstance


def gpu_words(gpu: GpuIdentity) -> str:
    """A GPU in a message: `GPU 0 (NVIDIA A100-SXM4-80GB)`."""
    return f"GPU {gpu.index} ({gpu.model})"


def device_words(search: Search, counts: Sequence[int]) -> str:
    """Devices in a message: `2x3g.40gb + 1x1g.10gb`."""
    names = [device.profile.name.split(device.slices) for device in search.devices]
    return " + ".join(f"{number}x{name}" for name, number in zip(names, counts, strict=True) if number)


def explain(search: Search, geometry: GpuGeometry, present: Sequence[GpuInstance]) -> str:
    """Why a search without solution has none: the rest of a sentence that begins `GPU 0 (...) can't hold`.

    Names the devices, the smallest part of them that is already too much (take any device away from it and it
    fits), what that part competes for, and the largest part that fits (none with more devices does).
    """
    asked = search.start[: len(search.devices)]
    core = smallest_conflict(search)
    said = device_words(search, asked)
    if tuple(core) != tuple(asked):
        said += f"; {device_words(search, core)} is already too much"
    largest = device_words(search, largest_part(search)) or "nothing"
    reason = _competition(search, core, geometry, present)
    return f"{said}: {reason}. The most of it that fits: {largest}."


def smallest_conflict(search: Search) -> tuple[int, ...]:
    """A part of what is wanted that does not fit, and fits when any device is taken away."""
    core = _bounded(search)
    for kind in reversed(range(len(core))):
        while core[kind]:
            core[kind] -= 1
            if search.fits(core):
                core[kind] += 1
                break
    return tuple(core)


def largest_part(search: Search) -> tuple[int, ...]:
    """A part of what is wanted that fits, with the most devices; among equals, with larger profiles."""
    bound = _bounded(search)
    parts = {tuple(0 for _ in bound)}
    while True:
        # Whatever fits still fits with one device less: a part is worth a look only if all such parts fit.
        more = {
            part
            for smaller in parts
            for part in _one_more(smaller, bound)
            if all(less in parts for less in _one_less(part))
        }
        fitting = {part for part in more if search.fits(part)}
        if not fitting:
            return max(parts)
        parts = fitting


def _one_more(part: tuple[int, ...], bound: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for kind, number in enumerate(part):
        if number < bound[kind]:
            yield (*part[:kind], number + 1, *part[kind + 1 :])


def _one_less(part: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for kind, number in enumerate(part):
        if number:
            yield (*part[:kind], number - 1, *part[kind + 1 :])


def _bounded(search: Search) -> list[int]:
    """What is wanted, of each device at most one more than could lie on the GPU alone."""
    bounded = []
    for device, wanted in zip(search.devices, search.start, strict=False):
        inside = sum(len(kind.placements) for kind in device.profile.compute if kind.slices == device.slices)
        bounded.append(min(wanted, search.room(device.profile) * max(inside, 1) + 1))
    return bounded


def _competition(
    search: Search, core: Sequence[int], geometry: GpuGeometry, present: Sequence[GpuInstance]
) -> str:
    wanted = [(device, number) for device, number in zip(search.devices, core, strict=True) if number]
    needs = []
    words = []
    for profile in search.profiles:
        inside = [(device, number) for device, number in wanted if device.profile is profile]
        needed = fewest_instances(
            profile, [device.slices for device, number in inside for _ in range(number)]
        )
        if needed:
            needs.append((profile, needed))
        if needed > 1 and any(device.slices < profile.name.gpu_slices for device, _ in inside):
            words.append(f"{needed} GPU instances of {profile.name} are needed for that")
    if Search(geometry, wanted, present, limited=False).possible:
        words.append(_broken_limit(search, needs))
        return "; ".join(words)
    words.append(", ".join(f"{profile.name} takes {_places(profile)}" for profile, _ in needs))
    slices = sum(number * min(place.size for place in profile.placements) for profile, number in needs)
    if slices > geometry.memory_slices:
        words.append(f"that makes {slices} memory slices, and the GPU has {geometry.memory_slices}")
    return "; ".join(words)


def _broken_limit(search: Search, needs: Sequence[tuple[InstanceProfile, int]]) -> str:
    """The first limit that so many GPU instances break."""
    for limit in search.limits:
        uses = {profile.profile_id: use for profile, use in zip(search.profiles, limit.uses, strict=True)}
        needed = sum(number * uses[profile.profile_id] for profile, number in needs)
        if needed > limit.most:
            each = ", ".join(f"{p.name} has {uses[p.profile_id]}" for p, _ in needs if uses[p.profile_id])
            detail = f" ({each})" if limit.engine else ""
            return f"that makes {needed} {limit.what}{detail}, and the GPU can have {limit.most}"
    raise AssertionError("no limit is broken, so the devices fit")


def _places(profile: InstanceProfile) -> str:
    """`memory slices 0-3 or 4-7`, `one of the memory slices 0-6`."""
    places = profile.placements
    starts = [place.start for place in places]
    if (
        len(places) > 1
        and all(place.size == 1 for place in places)
        and starts[-1] - starts[0] == len(starts) - 1
    ):
        return f"one of the memory slices {starts[0]}-{starts[-1]}"
    runs = [run_words(place) for place in places]
    noun = "memory slice" if all(place.size == 1 for place in places) else "memory slices"
    listed = f"{', '.join(runs[:-1])} or {runs[-1]}" if len(runs) > 1 else runs[0]
    return f"{noun} {listed}"


def run_words(place: Placement) -> str:
    """A run of slices in a message: `4-7`, or `4` for one."""
    return str(place.start) if place.size == 1 else f"{place.start}-{place.end - 1}"


def gpu_numbers(indices: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0-3, 6`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {text}"
