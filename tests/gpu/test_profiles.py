"""Names, counts and compute profiles, from what NVML lists."""

from __future__ import annotations

import pytest

from mig_manager.gpu.profiles import choose_compute, most_instances, profile_name, usual_compute
from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo
from mig_manager.planning.catalogue import GpuModel, catalogue
from mig_manager.planning.geometry import Engines, InstanceProfile, Placement

NO_ENGINES = Engines(1, 0, 0, 0, 0)
MIB = 2**20
OFFERS = [
    (model, profile)
    for model in catalogue()
    if model.geometry is not None
    for profile in model.geometry.profiles
]


def listed(profile: InstanceProfile, name: str | None = None) -> GpuProfileInfo:
    return GpuProfileInfo(
        enum=profile.enum,
        id=profile.profile_id,
        slices=profile.name.gpu_slices,
        instances=profile.max_instances,
        multiprocessors=profile.multiprocessors or 0,
        memory_mb=profile.memory_mb,
        engines=profile.engines,
        name=name,
    )


def offer_id(offer: object) -> str:
    return str(offer.name) if isinstance(offer, InstanceProfile) else getattr(offer, "key", str(offer))


@pytest.mark.parametrize(("model", "profile"), OFFERS, ids=offer_id)
def test_the_rule_gives_the_published_name_count_and_compute_profiles(
    model: GpuModel, profile: InstanceProfile
) -> None:
    info = listed(profile)
    name = profile_name(info, model.memory_mb * MIB)
    assert name == profile.name
    assert most_instances(name, info, profile.placements) == profile.max_instances
    assert usual_compute(info.slices) == profile.compute


def info(
    enum: int, slices: int, memory_mb: int, name: str | None = None, instances: int = 7
) -> GpuProfileInfo:
    return GpuProfileInfo(enum, 100 + enum, slices, instances, 14 * slices, memory_mb, NO_ENGINES, name)


@pytest.mark.parametrize(
    ("listing", "total_gb", "expected"),
    [
        (info(0, 1, 9728), 80, "1g.10gb"),
        (info(0, 1, 9728, "MIG 1g.10gb"), 80, "1g.10gb"),
        (info(0, 1, 9728, "1g.10gb"), 80, "1g.10gb"),
        (info(4, 7, 80896, "MIG 7g.79gb"), 80, "7g.79gb"),
        (info(0, 1, 9728, "MIG 2g.20gb"), 80, "1g.10gb"),
        (info(7, 1, 9728, "MIG 1g.10gb"), 80, "1g.10gb+me"),
        (info(0, 1, 9728, "Instance?"), 80, "1g.10gb"),
        (info(23, 3, 40000), 80, "3g.40gb"),
        (info(23, 3, 40000, "MIG 3g.40gb+xyz"), 80, "3g.40gb+xyz"),
        (info(0, 1, 1), 80, "1g.10gb"),
        (info(0, 1, 22784), 180, "1g.23gb"),
    ],
)
def test_the_drivers_own_name_stands_where_it_fits_the_profile(
    listing: GpuProfileInfo, total_gb: int, expected: str
) -> None:
    assert str(profile_name(listing, total_gb * 1024 * MIB)) == expected


def test_wrong_counts_do_not_limit_plain_profiles() -> None:
    quarters = tuple(Placement(start, 1) for start in range(4))
    plain = info(0, 1, 5952, instances=1)
    media = info(7, 1, 5952, instances=1)
    assert most_instances(profile_name(plain, 24 * 1024 * MIB), plain, quarters) == 4
    assert most_instances(profile_name(media, 24 * 1024 * MIB), media, quarters) == 1


def compute(enum: int, slices: int, multiprocessors: int) -> ComputeProfileInfo:
    return ComputeProfileInfo(enum, enum, slices, 1, multiprocessors)


@pytest.mark.parametrize(
    ("offered", "slices", "instance", "chosen"),
    [
        ([compute(8, 7, 98), compute(4, 7, 98), compute(0, 1, 14)], 7, info(4, 7, 80896), 4),
        ([compute(7, 1, 14), compute(0, 1, 14)], 1, info(0, 1, 9728), 0),
        ([compute(0, 1, 16), compute(7, 1, 26)], 1, GpuProfileInfo(9, 9, 1, 4, 26, 1, NO_ENGINES, None), 7),
        ([compute(7, 1, 14), compute(0, 1, 14), compute(2, 3, 42)], 1, info(2, 3, 40000), 0),
        ([compute(30, 3, 42)], 3, info(2, 3, 40000), 30),
        ([compute(0, 1, 14)], 2, info(2, 3, 40000), None),
        ([compute(0, 1, 14)], 3, info(2, 3, 40000), None),
    ],
)
def test_the_base_variant_that_fits_is_chosen(
    offered: list[ComputeProfileInfo], slices: int, instance: GpuProfileInfo, chosen: int | None
) -> None:
    found = choose_compute(offered, slices, instance)
    assert (found.enum if found else None) == chosen
