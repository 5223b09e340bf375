"""The pictures say what a plan says, in 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rich.text import Text

from mig_manager.cli.render import PLAIN, Look, change_picture, plan_picture, state_picture
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, catalogue, find_model
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, KeptInstance, ModeChange, NewComputeInstance, NewInstance
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState

MIG_MODELS = [model for model in catalogue() if model.geometry is not None]


def instance(
    profile: str, start: int, size: int, *, busy: bool = False, slices: Sequence[int] | None = None
) -> GpuInstance:
    name = MigProfile.parse(profile)
    compute = [name.gpu_slices] if slices is None else slices
    return GpuInstance(
        id=start + 7,
        profile=name,
        profile_id=0,
        placement=Placement(start, size),
        compute=tuple(ComputeInstance(None, count, None) for count in compute),
        busy=busy,
    )


def new(profile: str, start: int, size: int, slices: Sequence[int] | None = None) -> NewInstance:
    name = MigProfile.parse(profile)
    compute = [name.gpu_slices] if slices is None else slices
    placed = tuple(NewComputeInstance(count, None) for count in compute)
    return NewInstance(name, 0, Placement(start, size), placed)


def gpu_state(model: GpuModel, instances: Sequence[GpuInstance] = (), *, mig: bool = True) -> GpuState:
    gpu = GpuIdentity(0, "GPU-0", "00000000:07:00.0", model.name, model.device_ids[0], 0, True)
    return GpuState(gpu, mig, mig, model.mode_change_needs_reset, model.geometry, tuple(instances))


def plain(lines: Sequence[Text]) -> list[str]:
    return [line.plain for line in lines]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().split("|")[1:-1]]


A100 = find_model("A100-SXM4-80GB")
STAY = ModeChange(current=True, pending=True, target=True, reset=False)


def test_before_and_after_carry_signs_that_need_no_colour() -> None:
    kept = instance("1g.10gb", 0, 1, busy=True)
    gone = instance("1g.10gb+me", 1, 1, busy=True)
    state = gpu_state(A100, [kept, gone])
    plan = GpuPlan(state.gpu, STAY, (KeptInstance(kept),), (gone,), (new("3g.40gb", 4, 4, [2, 1]),))
    lines = plain(plan_picture(plan, state, PLAIN))
    before = next(index for index, line in enumerate(lines) if line.startswith("before"))
    after = next(index for index, line in enumerate(lines) if line.startswith("after"))
    assert cells(lines[before]) == ["1g.10gb", "1g.10gb", "", "", "", "", "", ""]
    assert cells(lines[before + 1])[:2] == ["= busy", "+me"]
    assert cells(lines[before + 2])[:2] == ["", "- busy"]
    assert cells(lines[after]) == ["1g.10gb", "", "", "", "3g.40gb"]
    assert cells(lines[after + 1]) == ["= busy", "", "", "", "+ 2c+1c"]


def test_a_gpu_that_stays_as_it_is_has_one_row() -> None:
    kept = instance("7g.80gb", 0, 8)
    state = gpu_state(A100, [kept])
    lines = plain(plan_picture(GpuPlan(state.gpu, STAY, (KeptInstance(kept),), (), ()), state, PLAIN))
    assert [line.split("|")[0].strip() for line in lines if "7g.80gb" in line] == ["now"]


def test_a_kept_instance_with_other_compute_instances_says_so() -> None:
    kept = instance("3g.40gb", 0, 4)
    state = gpu_state(A100, [kept])
    change = KeptInstance(kept, destroy=kept.compute, create=(NewComputeInstance(1, None),) * 2)
    text = "\n".join(plain(plan_picture(GpuPlan(state.gpu, STAY, (change,), (), ()), state, PLAIN)))
    assert "= now 1c+1c" in text


def test_mig_off_is_one_box_over_all_slices() -> None:
    off = gpu_state(A100, mig=False)
    plan = GpuPlan(off.gpu, ModeChange(False, False, True, True), (), (), (new("4g.40gb", 0, 4),))
    rows = [
        cells(line) for line in plain(plan_picture(plan, off, PLAIN)) if line.startswith(("before", "after"))
    ]
    assert rows == [["MIG off"], ["4g.40gb", "", "", "", ""]]


def test_two_moments_are_compared_by_instance_not_by_place() -> None:
    before = gpu_state(A100, [instance("1g.10gb", 0, 1), instance("1g.10gb", 1, 1)])
    fresh = GpuInstance(12, MigProfile.parse("1g.10gb"), 0, Placement(1, 1), before.instances[1].compute)
    after = gpu_state(A100, [before.instances[0], fresh])
    marks = [cells(line)[:2] for line in plain(change_picture(before, after, PLAIN)) if "=" in line]
    assert marks == [["=", "-"], ["=", "+"]]


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.key)
def test_every_profile_of_every_model_is_readable_in_80_columns(model: GpuModel) -> None:
    assert model.geometry is not None
    for profile in model.geometry.profiles:
        place = profile.placements[-1]
        lines = plain(
            state_picture(gpu_state(model, [instance(str(profile.name), place.start, place.size)]), PLAIN)
        )
        text = "".join(lines)
        head = str(profile.name).removesuffix(profile.name.suffix)
        assert head in text, lines
        assert profile.name.suffix in text, lines
        assert max(map(len, lines)) <= 80
        assert len({len(line) for line in lines[1:]}) == 1, "the box is a rectangle"


def test_ascii_stays_ascii_and_unicode_draws_the_same_boxes() -> None:
    state = gpu_state(A100, [instance("2g.20gb", 2, 2), instance("3g.40gb", 4, 4)])
    ascii_lines = plain(state_picture(state, PLAIN))
    assert all(line.isascii() for line in ascii_lines)
    drawn = plain(state_picture(state, Look(colour=True, unicode=True)))
    as_ascii = str.maketrans({"─": "-", "│": "|"} | dict.fromkeys("┌┬┐├┼┤└┴┘", "+"))
    assert [line.translate(as_ascii) for line in drawn] == ascii_lines


def test_a_gpu_without_mig_has_no_picture() -> None:
    assert state_picture(gpu_state(find_model("T4"), mig=False), PLAIN) == []
