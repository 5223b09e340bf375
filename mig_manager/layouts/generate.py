"""Layouts for the hardware at hand, for nodes without a layout file and for names that the file lacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mig_manager.layouts.book import LayoutBook
from mig_manager.layouts.layout import GpuIdentity, Layout, LayoutEntry, Source, label_can_hold
from mig_manager.layouts.models import same_model
from mig_manager.layouts.profile import MigProfile

_SOURCE = Source("the layouts generated for this hardware", 1)
_BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""How many of each size make a balanced GPU, by the slices of the whole GPU; as NVIDIA's layouts have it."""

Profiles = tuple[tuple[MigProfile, int], ...]


@dataclass(frozen=True, slots=True)
class GeneratorInput:
    """A GPU and what it offers."""

    gpu: GpuIdentity
    profiles: Profiles
    """GPU-instance profiles with the largest number of instances of each; empty without MIG."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The GPUs of a node that one entry can speak of."""

    devices: tuple[str, ...]
    """UUIDs, where nothing else tells the GPUs of this group from those of another; else empty."""
    models: tuple[str, ...]
    """Empty where the node has no other GPUs with MIG."""
    profiles: Profiles


def generate_layouts(gpus: Sequence[GeneratorInput]) -> LayoutBook:
    """The layouts of a node: all-disabled, all-enabled, one for each profile, all-balanced.

    `all-<profile>` has `.` for the `+` of the profile (a label value takes no `+`), and fills every GPU that
    offers it. A node with several models gets one entry a model; GPUs without the profile are left alone.
    On a node without MIG-capable GPUs, all-disabled is all there is.
    """
    groups = _groups([gpu for gpu in gpus if gpu.gpu.mig_capable])
    modes = {"all-disabled": False, "all-enabled": True} if groups else {"all-disabled": False}
    layouts = [
        Layout(name, (LayoutEntry("all", (), (), enabled, (), _SOURCE),), _SOURCE, generated=True)
        for name, enabled in modes.items()
    ]
    for wanted in sorted({profile for group in groups for profile, _ in group.profiles}):
        name = "all-" + re.sub("[+,]", ".", str(wanted))
        fills = [tuple(row for row in group.profiles if row[0] == wanted and row[1] > 0) for group in groups]
        layouts.extend(_layout(name, groups, fills))
    layouts.extend(_layout("all-balanced", groups, [_balanced(group.profiles) for group in groups]))
    return LayoutBook({layout.name: layout for layout in layouts}, _SOURCE.file)


def _layout(name: str, groups: Sequence[_Group], fills: Sequence[Profiles]) -> list[Layout]:
    """The layout that gives each group its fill; none where no group has one or no label holds the name."""
    entries = tuple(
        LayoutEntry(group.devices or "all", (), group.models, True, fill, _SOURCE)
        for group, fill in zip(groups, fills, strict=True)
        if fill
    )
    return [Layout(name, entries, _SOURCE, generated=True)] if entries and label_can_hold(name) else []


def _groups(gpus: Sequence[GeneratorInput]) -> list[_Group]:
    kinds: dict[tuple[str, Profiles], list[GpuIdentity]] = {}
    for gpu in gpus:
        model = next((name for name, _ in kinds if same_model(name, gpu.gpu.model)), gpu.gpu.model)
        kinds.setdefault((model, tuple(sorted(gpu.profiles))), []).append(gpu.gpu)
    groups = []
    for (model, profiles), members in kinds.items():
        unique = sum(other == model for other, _ in kinds) == 1
        groups.append(
            _Group(
                devices=() if unique else tuple(gpu.uuid for gpu in members),
                models=(model,) if unique and len(kinds) > 1 else (),
                profiles=profiles,
            )
        )
    return groups


def _balanced(profiles: Profiles) -> Profiles:
    """Small, medium and large plain instances side by side; empty where the GPU does not offer them."""
    largest = max((profile.gpu_slices for profile, _ in profiles), default=0)
    fill = []
    for slices, count in _BALANCED.get(largest, {}).items():
        plain = [
            (profile.memory_gb, profile, most)
            for profile, most in profiles
            if profile.gpu_slices == slices and not profile.suffix
        ]
        if not plain or min(plain)[2] < count:
            return ()
        fill.append((min(plain)[1], count))
    return tuple(sorted(fill))
