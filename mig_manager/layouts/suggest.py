"""Near misses: what a mistyped name was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError, dotted_profile

_PREFIXES = ("nvidia.com/", "mig-", "all-")
_LOOSE_PROFILE = re.compile(
    r"(?:(\d{1,2})c\W*)?(\d{1,2})g\W*(\d{1,4})[a-z]{0,4}(?:[.+](me\.all|me|gfx)|(-me))?"
)
_LONGEST = 80
"""Longer words are cut before they are compared; no valid name is as long."""


def nearest(word: str, choices: Iterable[str], n: int = 3) -> tuple[str, ...]:
    """The choices that resemble the word, nearest first, at most n; none where nothing resembles it.

    Profile names, also inside layout names and resource names, are compared by what they mean: the same
    slices with another memory size come first (`2g.10gb` on an 80 GB GPU was meant as `2g.20gb`).
    """
    whole = _lower(word)
    wanted = _core(whole)
    profile = dotted_profile(wanted)
    ranked = []
    for order, choice in enumerate(dict.fromkeys(choices)):
        core = _core(_lower(choice))
        distance = edit_distance(wanted, core)
        # Prefixes usually say nothing, but `mig-device` is nearer to `mig-devices` than to `devices`.
        with_prefixes = edit_distance(whole, _lower(choice))
        rank = _rank(wanted, profile, core, min(distance, with_prefixes))
        if rank is not None:
            ranked.append((*rank, with_prefixes, order, choice))
    ranked.sort()
    return tuple(entry[-1] for entry in ranked[:n])


def guess_profile(text: str) -> str | None:
    """The profile name that a malformed one was probably meant to be, such as `1g.10gb` for `1G.10GB`."""
    match = _LOOSE_PROFILE.search(text[:_LONGEST].lower())
    if match is None:
        return None
    compute, gpu, memory, added, removed = match.groups()
    guess = f"{compute}c." if compute else ""
    guess += f"{gpu}g.{memory}gb" + (f"+{added}" if added else removed or "")
    try:
        return str(MigProfile.parse(guess)) if guess != text else None
    except ProfileSyntaxError:
        return None


def edit_distance(left: str, right: str) -> int:
    """How many letters must be changed, added, dropped or swapped to make one word the other."""
    before: list[int] = []
    last = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and b == left[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def _lower(name: str) -> str:
    return name[:_LONGEST].strip().lower()


def _core(text: str) -> str:
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text


def _rank(wanted: str, profile: MigProfile | None, choice: str, distance: int) -> tuple[int, int] | None:
    """How far off a choice is, the smaller the nearer; None where it does not resemble the word."""
    other = dotted_profile(choice) if profile is not None else None
    if profile is not None and other is not None:
        if _slices(profile) == _slices(other):
            strange = 2 * (_extras(profile) != _extras(other))
            return strange, abs(profile.memory_gb - other.memory_gb)
        if profile.memory_gb == other.memory_gb and _extras(profile) == _extras(other):
            return 1, abs(profile.gpu_slices - other.gpu_slices)
        return (3, distance) if distance <= 2 else None
    return (distance, 0) if distance <= max(1, max(len(wanted), len(choice)) // 3) else None


def _slices(profile: MigProfile) -> tuple[int, int]:
    return profile.gpu_slices, profile.compute_slices


def _extras(profile: MigProfile) -> tuple[frozenset[str], frozenset[str]]:
    return profile.attributes, profile.removed
