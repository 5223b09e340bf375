"""Every model of the catalogue takes every layout that is published for it, and not one instance more."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.catalogue import catalogue, find_model
from mig_manager.planning.geometry import GpuGeometry
from mig_manager.planning.placement import Device, Search
from mig_manager.planning.planner import plan_gpu
from tests.planning import published
from tests.planning.geometries import state, target


def geometry(model: str) -> GpuGeometry:
    found = find_model(model).geometry
    assert found is not None
    return found


def test_the_catalogue_has_the_published_models_and_no_others_with_mig() -> None:
    assert sorted(published.models()) == sorted(m.title for m in catalogue() if m.geometry is not None)


@pytest.mark.parametrize("model", published.models())
def test_profiles_and_their_counts_are_the_published_ones(model: str) -> None:
    assert {str(p.name): p.max_instances for p in geometry(model).profiles} == published.counts(model)


@pytest.mark.parametrize("model", published.models())
def test_every_published_layout_finds_its_places(model: str) -> None:
    for layout in published.layouts(model):
        plan = plan_gpu(target(layout), state(geometry(model)))
        assert Counter(str(new.profile) for new in plan.create) == Counter(layout)
        taken = 0
        for new in plan.create:
            profile = next(p for p in geometry(model).profiles if p.profile_id == new.profile_id)
            assert new.placement in profile.placements
            assert not taken & new.placement.mask
            taken |= new.placement.mask


@pytest.mark.parametrize("model", published.models())
def test_one_more_of_a_profile_than_published_is_refused(model: str) -> None:
    for name, most in published.counts(model).items():
        with pytest.raises(MigManagerError) as refused:
            plan_gpu(target([name] * (most + 1)), state(geometry(model)))
        assert refused.value.reason is Reason.IMPOSSIBLE_LAYOUT


@pytest.mark.parametrize("model", ["RTX PRO 6000 Blackwell Server Edition", "RTX PRO 4500 Blackwell"])
def test_who_has_all_media_engines_leaves_none_to_others(model: str) -> None:
    names = list(published.counts(model))
    everything = next(name for name in names if name.endswith("+me.all"))
    for other in (name for name in names if name[:2] == "1g" and not name.endswith("-me")):
        with pytest.raises(MigManagerError, match=r"that makes|already too much"):
            plan_gpu(target([everything, other]), state(geometry(model)))


@pytest.mark.parametrize(("variants", "all_", "largest"), [(False, 37, 12), (True, 77, 28)])
def test_as_many_mixes_fit_as_were_counted_on_the_published_placements(
    variants: bool, all_: int, largest: int
) -> None:
    """37 multisets of plain profiles fit on eight slices, 12 of them have room for no other; 77 and 28 with 1g.20gb."""
    kinds = [p for p in geometry("A100-SXM4-80GB").profiles if not p.name.suffix]
    kinds = [p for p in kinds if variants or str(p.name) != "1g.20gb"]
    wanted = [(Device(p, p.name.gpu_slices), p.max_instances) for p in kinds]
    search = Search(geometry("A100-SXM4-80GB"), wanted)
    order = [device.profile for device in search.devices]
    fitting = {
        counts
        for counts in product(*(range(profile.max_instances + 1) for profile in order))
        if any(counts) and search.fits(counts)
    }
    assert len(fitting) == all_
    maximal = {
        counts
        for counts in fitting
        if not any(
            tuple(n + (at == kind) for at, n in enumerate(counts)) in fitting for kind in range(len(order))
        )
    }
    assert len(maximal) == largest
