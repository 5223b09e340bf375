"""Profile names of layouts against the profiles of GPUs."""

from __future__ import annotations

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import catalogue, find_model
from mig_manager.planning.geometry import GpuGeometry
from mig_manager.planning.profiles import accepted_sizes, resolve_profile


def geometry_of(model: str) -> GpuGeometry:
    geometry = find_model(model).geometry
    assert geometry is not None
    return geometry


@pytest.mark.parametrize(
    ("model", "written", "driver"),
    [
        ("A100-SXM4-80GB", "7g.80gb", "7g.80gb"),
        ("A100-SXM4-80GB", "7g.79gb", "7g.80gb"),
        ("A100-SXM4-80GB", "1g.10gb+me", "1g.10gb+me"),
        ("A100-SXM4-80GB", "1c.3g.40gb", "3g.40gb"),
        ("H200", "3g.71gb", "3g.71gb"),
        ("H200", "3g.70gb", "3g.71gb"),
        ("B200", "1g.23gb", "1g.23gb"),
        ("B200", "1g.22gb", "1g.23gb"),
        ("RTX PRO 6000 Blackwell Server Edition", "1g.24gb-me", "1g.24gb-me"),
        ("RTX PRO 6000 Blackwell Server Edition", "2g.48gb+me.all", "2g.48gb+me.all"),
    ],
)
def test_a_profile_is_found_by_the_drivers_name_and_by_known_roundings(
    model: str, written: str, driver: str
) -> None:
    assert str(resolve_profile(geometry_of(model), MigProfile.parse(written)).name) == driver


@pytest.mark.parametrize(
    ("model", "written", "words"),
    [
        ("A30", "1g.5gb", "Did you mean 1g.6gb?"),
        ("H100 NVL", "3g.48gb", "Did you mean 3g.47gb?"),
        ("GH200 480GB", "3g.47gb", "Did you mean 3g.48gb?"),
        ("A100-SXM4-80GB", "2g.10gb", "Did you mean 2g.20gb?"),
        ("A100-SXM4-80GB", "1c.2g.10gb", "Did you mean 1c.2g.20gb?"),
        ("A100-SXM4-80GB", "2g.20gb+me", "it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb"),
        ("A100-SXM4-80GB", "1g.10gb+gfx", "has no profile 1g.10gb+gfx"),
        ("A100-SXM4-80GB", "3c.4g.40gb", "it has 1c.4g.40gb, 2c.4g.40gb, 4g.40gb"),
    ],
)
def test_any_other_profile_is_refused_with_what_there_is(model: str, written: str, words: str) -> None:
    with pytest.raises(MigManagerError, match="has no") as caught:
        resolve_profile(geometry_of(model), MigProfile.parse(written))
    assert caught.value.reason is Reason.UNSUPPORTED_PROFILE
    assert geometry_of(model).model in str(caught.value)
    assert words in str(caught.value)


def test_no_accepted_size_of_any_known_model_means_two_profiles() -> None:
    for model in catalogue():
        for profile in model.geometry.profiles if model.geometry else ():
            assert model.geometry is not None
            assert resolve_profile(model.geometry, profile.name) is profile
            for size in accepted_sizes(model.geometry, profile):
                name = MigProfile(
                    profile.name.gpu_slices,
                    profile.name.gpu_slices,
                    size,
                    profile.name.attributes,
                    profile.name.removed,
                )
                assert resolve_profile(model.geometry, name) is profile, (model.name, str(name))
