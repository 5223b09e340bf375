"""Of all layouts that would serve a waiting pod the one that harms least is proposed."""

from __future__ import annotations

import pytest

from mig_manager.cli.kubectl.explaining.diagnosis import diagnose
from mig_manager.cli.kubectl.explaining.scene import Place, Scene
from mig_manager.daemon.advertised import profile_of, resource_name
from mig_manager.planning.catalogue import catalogue
from tests.cli.kubectl.scenes import MIG, place, pod

SMALL, LARGE, MEDIA, GPU = f"{MIG}1g.10gb", f"{MIG}3g.40gb", f"{MIG}1g.10gb.me", "nvidia.com/gpu"
FULL = {SMALL: {f"ml/job-{number}": 1 for number in range(7)}}
THREE = {SMALL: {"ml/a": 2, "ml/b": 1}}
WHOLE = {GPU: {"ml/training": 1}}


@pytest.mark.parametrize(
    ("wants", "places", "expected"),
    [
        pytest.param(
            {LARGE: 1},
            (place(users=FULL), place("gpu-2"), place("gpu-3", layout="all-disabled", users=WHOLE)),
            ("gpu-2", "all-balanced", (), ()),
            id="where nobody is evicted",
        ),
        pytest.param(
            {LARGE: 1},
            (place(users=THREE),),
            ("gpu-1", "all-balanced", (), ("ml/a", "ml/b")),
            id="which instances the pods hold is not known",
        ),
        pytest.param(
            {LARGE: 1},
            (place(gpus="2xA100-SXM4-80GB", layout="all-disabled", users=WHOLE),),
            ("gpu-1", "all-3g.40gb", ("ml/training",), ()),
            id="a layout for all GPUs takes the used one too",
        ),
        pytest.param(
            {f"{MIG}2g.20gb": 1},
            (
                place(layout="all-3g.40gb"),
                place("gpu-2", layout="all-balanced", users={f"{MIG}2g.20gb": {"ml/a": 1}}),
            ),
            ("gpu-1", "all-balanced", (), ()),
            id="the node that keeps the most",
        ),
        pytest.param({SMALL: 8}, (place(layout="all-3g.40gb"),), None, id="more than any layout has"),
        pytest.param({LARGE: 1}, (place(runs_to="all-2g.20gb"),), None, id="no second run on top of one"),
        pytest.param({LARGE: 1}, (place(known=False),), None, id="GPUs of which nothing is known"),
        pytest.param(
            {GPU: 2},
            (place(layout="all-disabled", strategy="single"),),
            ("gpu-1", "all-3g.40gb", (), ()),
            id="strategy single: MIG devices count as GPUs",
        ),
    ],
)
def test_the_cheapest_layout_is_proposed(
    wants: dict[str, int], places: tuple[Place, ...], expected: tuple[object, ...] | None
) -> None:
    found = diagnose(Scene(pod(wants), places)).remedies
    first = found[0] if found else None
    assert (first and (first.node, first.layout, first.evicts, first.may_evict)) == expected


def test_what_is_not_certain_is_said_so() -> None:
    known, guessed = place(users=FULL), place("gpu-2", doubts=("why",))
    found = diagnose(Scene(pod({LARGE: 1}), (known, guessed))).remedies
    assert [(each.node, each.doubts) for each in found] == [("gpu-2", ("why",)), ("gpu-1", ())]
    unseen = diagnose(Scene(pod({LARGE: 1}), (known,), usage_known=False)).remedies
    assert [each.leaving for each in unseen] == [None]


def test_the_profile_of_every_resource_is_read_back() -> None:
    profiles = {each.name for model in catalogue() if model.geometry for each in model.geometry.profiles}
    assert {profile_of(resource_name(profile)) for profile in profiles} == profiles
    assert profile_of(f"{MEDIA}.shared") == profile_of(MEDIA)
    assert [profile_of(name) for name in (GPU, f"{MIG}1g", "example.com/mig-1g.10gb")] == [None] * 3
