"""Creates and destroys compute instances, inside a session."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.device import Instance
from mig_manager.gpu.patience import Patience
from mig_manager.gpu.profiles import choose_compute
from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import NewComputeInstance


class ComputeWork:
    """The compute instances of one GPU, during one request."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def destroy(self, instance: Instance, where: str, ids: Collection[int | None] | None) -> None:
        """Destroy the compute instances with these ids; None: all that are there, planned or not."""
        info = instance.info()
        for profile in instance.compute_profiles(info.profile_id):
            there = instance.compute_instances(profile.id)
            for compute in there:
                inner = compute.info()
                if ids is not None and inner.id not in ids:
                    continue
                what = f"destroying the compute instance at {inner.placement.start} of {where}"
                listed = partial(_lists, instance, profile.id, inner.id)
                self._patience.until_gone(what, compute.destroy, listed, info.id)

    def create(
        self, instance: Instance, name: MigProfile, wanted: Sequence[NewComputeInstance], *, fresh: bool
    ) -> None:
        """Create compute instances in a GPU instance; `fresh`: it was created just now, and is empty.

        Raises:
            MigManagerError: UNSUPPORTED_PROFILE, IMPOSSIBLE_LAYOUT; GPU_IN_USE, NVML_ERROR.
        """
        if not wanted:
            return
        info = instance.info()
        place = f"{self._patience.place}: its {name} at {info.placement.start}"
        offered = instance.compute_profiles(info.profile_id)
        profiles = []
        for new in wanted:
            profile = choose_compute(offered, new.slices, self._profile(info.profile_id))
            if profile is None:
                raise MigManagerError(
                    Reason.UNSUPPORTED_PROFILE,
                    f"{place} offers no compute instance of {new.slices} slices; it offers"
                    f" {', '.join(str(size) for size in sorted({each.slices for each in offered}))}.",
                )
            profiles.append(profile)
        there = (
            [] if fresh else [c.info().placement for p in offered for c in instance.compute_instances(p.id)]
        )
        where = _arrange(_choices(instance, info.profile_id, profiles, wanted, alone=not there), there)
        if where is None:
            raise MigManagerError(
                Reason.IMPOSSIBLE_LAYOUT,
                f"{place} has no room for compute instances of {[new.slices for new in wanted]} slices beside"
                f" {len(there)} others.",
            )
        for profile, placement in zip(profiles, where, strict=True):
            what = f"creating {name.split(profile.slices)} in the GPU instance at {info.placement.start}"
            self._patience.insist(what, partial(instance.create_compute, profile.id, placement), info.id)

    def _profile(self, profile_id: int) -> GpuProfileInfo | None:
        listed = self._patience.device.profiles(mig=True)
        return next((info for info in listed if info.id == profile_id), None)


def _choices(
    instance: Instance,
    profile_id: int,
    profiles: Sequence[ComputeProfileInfo],
    wanted: Sequence[NewComputeInstance],
    *,
    alone: bool,
) -> list[list[Placement | None]]:
    """Where each new compute instance may lie: where the plan says if the device allows that, or else anywhere.

    None leaves it to the device: right for one that has the GPU instance to itself, and all that can be done where
    the driver lists no places.
    """
    if alone and len(wanted) == 1 and wanted[0].placement is None:
        return [[None]]
    choices: list[list[Placement | None]] = []
    for profile, new in zip(profiles, wanted, strict=True):
        allowed = instance.compute_placements(profile_id, profile.id)
        elsewhere = [place for place in allowed if place != new.placement]
        planned = [new.placement] if new.placement in allowed else []
        choices.append([*planned, *elsewhere] or [None])
    return choices


def _arrange(
    choices: Sequence[Sequence[Placement | None]], taken: Iterable[Placement]
) -> list[Placement | None] | None:
    """One choice for each, none overlapping another or what is taken; None where that cannot be."""
    occupied = 0
    for placement in taken:
        occupied |= placement.mask

    def search(index: int, used: int) -> list[Placement | None] | None:
        if index == len(choices):
            return []
        for choice in choices[index]:
            mask = choice.mask if choice is not None else 0
            if not used & mask and (rest := search(index + 1, used | mask)) is not None:
                return [choice, *rest]
        return None

    return search(0, occupied)


def _lists(instance: Instance, profile_id: int, compute_id: int) -> bool:
    return any(each.info().id == compute_id for each in instance.compute_instances(profile_id))
