"""What the error of an impossible layout says, checked claim by claim against exhaustive search."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement, product

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Engines, GpuGeometry, Placement
from mig_manager.planning.planner import plan_gpu
from tests.planning.geometries import A30, A100, FOUR, ODD, RTX, state, target
from tests.planning.oracle import layouts, placements

GEOMETRIES = {"A30": A30, "FOUR": FOUR, "ODD": ODD}

MESSAGE = re.compile(
    r"config\.yaml:12: GPU 0 \(Test GPU\) can't hold (?P<asked>[^;:]+)"
    r"(?:; (?P<core>[^;:]+) is already too much)?: (?P<why>.+)\. The most of it that fits: (?P<most>.+)\."
)
INSTANCES = re.compile(r"(\d+) GPU instances of (\S+) are needed for that")
MEMORY = re.compile(r"that makes (\d+) memory slices, and the GPU has (\d+)")
LIMIT = re.compile(r"that makes (\d+) ([^(,]+?)(?: \((.+)\))?, and the GPU can have (\d+)")
ENGINES = {"decoders": "decoder", "encoders": "encoder", "JPEG engines": "jpeg", "OFA engines": "ofa"}


def read(text: str) -> Counter[MigProfile]:
    """`2x3g.40gb + 1x1g.10gb`."""
    if text == "nothing":
        return Counter()
    parts = [part.split("x", 1) for part in text.split(" + ")]
    return Counter({MigProfile.parse(name): int(number) for number, name in parts})


@cache
def fits(name: str, devices: tuple[MigProfile, ...]) -> bool:
    if all(device.whole for device in devices):
        return any(True for _ in placements(GEOMETRIES[name], [str(device) for device in devices]))
    return bool(layouts(GEOMETRIES[name], devices))


def parts_of(counts: Counter[MigProfile]) -> Iterator[tuple[MigProfile, ...]]:
    kinds = sorted(counts)
    for numbers in product(*(range(counts[kind] + 1) for kind in kinds)):
        yield tuple(kind for kind, number in zip(kinds, numbers, strict=True) for _ in range(number))


def fewest(name: str, counts: Counter[MigProfile], gpu_instance: MigProfile) -> int:
    """How many GPU instances hold the devices of that kind, by trying all groupings on a GPU with room."""
    devices = [device for device in counts.elements() if device.gpu_instance == gpu_instance]
    geometry = GEOMETRIES[name]
    profile = next(profile for profile in geometry.profiles if profile.name == gpu_instance)
    size = profile.placements[0].size
    roomy = replace(
        profile,
        placements=tuple(Placement(number * size, size) for number in range(len(devices))),
        max_instances=len(devices),
        engines=Engines(None, None, None, None, None),
    )
    geometry = replace(geometry, profiles=(roomy,))
    return min((len(layout) for layout in layouts(geometry, devices)), default=0)


def check_message(name: str, devices: Sequence[MigProfile], message: str) -> None:
    geometry = GEOMETRIES[name]
    match = MESSAGE.fullmatch(message)
    assert match is not None, message
    asked = Counter(devices)
    assert read(match["asked"]) == asked
    core = read(match["core"] or match["asked"])
    assert not fits(name, tuple(sorted(core.elements()))), message
    for device in core:
        less = core - Counter({device: 1})
        assert fits(name, tuple(sorted(less.elements()))), message
    most = read(match["most"])
    assert most <= asked
    assert fits(name, tuple(sorted(most.elements()))), message
    for part in parts_of(asked):
        assert len(part) <= most.total() or not fits(name, part), (message, part)
    check_reason(geometry, name, core, match["why"])


def check_reason(geometry: GpuGeometry, name: str, core: Counter[MigProfile], why: str) -> None:
    profiles = {str(profile.name): profile for profile in geometry.profiles}
    needs = {str(one.gpu_instance): fewest(name, core, one.gpu_instance) for one in core}
    for number, profile in INSTANCES.findall(why):
        assert needs[profile] == int(number), why
    memory = MEMORY.search(why)
    if memory:
        slices = sum(count * profiles[profile].placements[0].size for profile, count in needs.items())
        assert int(memory[1]) == slices > int(memory[2]) == geometry.memory_slices, why
    limit = LIMIT.search(why) if not memory else None
    if limit:
        if limit[2].startswith("instances of "):
            profile = limit[2].removeprefix("instances of ")
            assert (int(limit[1]), int(limit[4])) == (needs[profile], profiles[profile].max_instances), why
        else:
            engine = ENGINES[limit[2]]
            used = sum(count * getattr(profiles[profile].engines, engine) for profile, count in needs.items())
            most = max(getattr(profile.engines, engine) for profile in geometry.profiles)
            assert (int(limit[1]), int(limit[4])) == (used, most), why
        assert int(limit[1]) > int(limit[4])
    else:
        for profile in needs:
            assert f"{profile} takes " in why


@pytest.mark.parametrize(("name", "most"), [("ODD", 4), ("FOUR", 4), ("A30", 4)])
def test_every_claim_about_an_impossible_layout_is_true(name: str, most: int) -> None:
    geometry = GEOMETRIES[name]
    kinds = [profile.name.split(kind.slices) for profile in geometry.profiles for kind in profile.compute]
    if name == "A30":
        kinds = [kind for kind in kinds if kind.whole or kind.gpu_slices == 4]
    impossible = 0
    for number in range(1, most + 1):
        for devices in combinations_with_replacement(sorted(kinds), number):
            if number == most and not all(device.whole for device in devices[1:]):
                continue
            if fits(name, devices):
                continue
            impossible += 1
            with pytest.raises(MigManagerError) as caught:
                plan_gpu(target(devices), state(geometry))
            assert caught.value.reason is Reason.IMPOSSIBLE_LAYOUT
            check_message(name, devices, caught.value.message)
    assert impossible > 20


@pytest.mark.parametrize(
    ("geometry", "devices", "words"),
    [
        (
            A100,
            ["3g.40gb", "3g.40gb", "1g.10gb"],
            "2x3g.40gb + 1x1g.10gb: 3g.40gb takes memory slices 0-3 or 4-7, 1g.10gb takes one of the memory "
            "slices 0-6; that makes 9 memory slices, and the GPU has 8. "
            "The most of it that fits: 2x3g.40gb.",
        ),
        (
            A100,
            ["4g.40gb", "4g.40gb", "1g.10gb"],
            "2x4g.40gb + 1x1g.10gb; 2x4g.40gb is already too much: 4g.40gb takes memory slices 0-3. "
            "The most of it that fits: 1x4g.40gb + 1x1g.10gb.",
        ),
        (
            A100,
            ["1g.10gb"] * 1000,
            "1000x1g.10gb; 8x1g.10gb is already too much: 1g.10gb takes one of the memory slices 0-6. "
            "The most of it that fits: 7x1g.10gb.",
        ),
        (
            A100,
            ["2c.3g.40gb"] * 3,
            "3x2c.3g.40gb: 3 GPU instances of 3g.40gb are needed for that; 3g.40gb takes memory "
            "slices 0-3 or 4-7; that makes 12 memory slices, and the GPU has 8. The most of it that fits: "
            "2x2c.3g.40gb.",
        ),
        (
            RTX,
            ["1g.24gb+me.all", "1g.24gb"],
            "1x1g.24gb + 1x1g.24gb+me.all: that makes 5 decoders (1g.24gb has 1, 1g.24gb+me.all has 4), and "
            "the GPU can have 4. The most of it that fits: 1x1g.24gb.",
        ),
    ],
)
def test_the_message_reads_well(geometry: GpuGeometry, devices: list[str], words: str) -> None:
    with pytest.raises(MigManagerError) as caught:
        plan_gpu(target(devices), state(geometry))
    assert caught.value.message == f"config.yaml:12: GPU 0 (Test GPU) can't hold {words}"
