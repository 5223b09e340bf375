"""The annotation mig-manager/gpus: who reads it plans as the daemon does, and knows what it does not tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.daemon.gpus import (
    AnnotationError,
    facts_in,
    gpu_facts,
    gpus_annotation,
    inventory_from_annotation,
)
from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity, GpuTarget, NodeTarget
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, catalogue, find_model
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory
from tests.planning.geometries import FOUR, ODD

CAPABLE = tuple(model for model in catalogue() if model.geometry is not None)
A_HUNDRED, UNKNOWN = find_model("A100-SXM4-80GB"), "NVIDIA Z900"


def geometry_of(model: GpuModel) -> GpuGeometry:
    assert model.geometry is not None
    return model.geometry


def identity(
    index: int, model: str, device_id: int, subsystem_id: int = 0, *, mig: bool = True
) -> GpuIdentity:
    return GpuIdentity(index, f"GPU-{index}", f"00000000:0{index}:00.0", model, device_id, subsystem_id, mig)


def read(inventory: Inventory) -> Inventory:
    reading = inventory_from_annotation(gpus_annotation(inventory))
    assert reading.missing == ()
    return reading.inventory


@st.composite
def geometries(draw: st.DrawFn) -> tuple[GpuModel | None, GpuGeometry]:
    """What a driver may say of a model: the catalogue's, something near it, or a model that nobody knows."""
    model = draw(st.sampled_from([*CAPABLE, None]))
    if model is None:
        return None, draw(st.sampled_from([FOUR, ODD]))
    geometry = replace(geometry_of(model), source="device")
    if draw(st.booleans()):
        left_out = draw(st.integers(0, len(geometry.profiles) - 1))
        kept = geometry.profiles[:left_out] + geometry.profiles[left_out + 1 :]
        geometry = replace(geometry, memory_mb=geometry.memory_mb - draw(st.integers(0, 700)), profiles=kept)
    return model, geometry


@st.composite
def instances(draw: st.DrawFn, geometry: GpuGeometry) -> tuple[GpuInstance, ...]:
    found: list[GpuInstance] = []
    taken = 0
    for _ in range(draw(st.integers(0, 4))):
        profile: InstanceProfile = draw(st.sampled_from(geometry.profiles))
        place: Placement = draw(st.sampled_from(profile.placements))
        if place.mask & taken:
            continue
        taken |= place.mask
        part = draw(st.sampled_from([*profile.compute, None]))
        starts = () if part is None else part.placements[: draw(st.integers(1, part.max_instances))]
        compute = tuple(ComputeInstance(None, start.size, start) for start in starts)
        # An id that its GPU does not offer is of a variant that this driver does not list.
        profile_id = draw(st.sampled_from([profile.profile_id, profile.profile_id, 77]))
        found.append(GpuInstance(None, profile.name, profile_id, place, compute))
    return tuple(sorted(found, key=lambda one: one.placement))


@st.composite
def gpus(draw: st.DrawFn, index: int) -> GpuState:
    model, geometry = draw(geometries())
    gpu = identity(index, UNKNOWN, 0xABCD10DE)
    if model is not None:
        subsystem = draw(st.sampled_from([*model.subsystem_ids, 0x1]))
        subsystem = model.subsystem_ids[0] if model.only_subsystems else subsystem
        gpu = identity(index, model.name, draw(st.sampled_from(model.device_ids)), subsystem)
    current, pending, resets = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    there = draw(instances(geometry)) if current else ()
    return GpuState(gpu, current, pending, resets, geometry, there)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Inventory, NodeTarget]:
    states = [draw(gpus(index)) for index in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        states.append(replace(states[0], gpu=replace(states[0].gpu, index=2, uuid="GPU-2")))
    states.append(GpuState(identity(3, "NVIDIA L4", 0x27B810DE, mig=False), False, False, False, None))
    targets = [
        target for state in states[:-1] if (target := draw(st.none() | targets_for(state))) is not None
    ]
    return Inventory("", tuple(states)), NodeTarget("wanted", tuple(targets), ())


@st.composite
def targets_for(draw: st.DrawFn, state: GpuState) -> GpuTarget:
    assert state.geometry is not None
    names = [profile.name for profile in state.geometry.profiles]
    names += [one.split(1) for one in names] + [MigProfile.parse("7g.79gb"), MigProfile.parse("1g.9gb")]
    devices = sorted(draw(st.lists(st.sampled_from(names), max_size=4)))
    enabled = draw(st.booleans())
    return GpuTarget(state.gpu, enabled, tuple(devices) if enabled else (), None)


def planned(target: NodeTarget, inventory: Inventory) -> NodePlan | str:
    try:
        return plan_node(target, inventory)
    except MigManagerError as error:
        return f"{error.reason}: {error.message}"


@settings(max_examples=60)
@given(nodes())
def test_what_is_read_back_plans_as_the_original(made: tuple[Inventory, NodeTarget]) -> None:
    inventory, target = made
    before = replace(inventory, gpus=tuple(named(state) for state in inventory.gpus))
    after = read(before)
    assert [state.gpu for state in after.gpus] == [state.gpu for state in before.gpus]
    assert planned(target, after) == planned(target, before)
    assert facts_in(gpus_annotation(before)) == gpu_facts(before)


def named(state: GpuState) -> GpuState:
    """As the daemon has it: a driver's geometry bears the product name."""
    assert state.geometry is None or state.geometry.model
    geometry = state.geometry
    return state if geometry is None else replace(state, geometry=replace(geometry, model=state.gpu.model))


@pytest.mark.parametrize("model", CAPABLE, ids=lambda model: model.key)
def test_a_node_of_eight_known_gpus_cut_small_takes_little_room(model: GpuModel) -> None:
    geometry = replace(geometry_of(model), model=model.name, source="device")
    smallest = min(geometry.profiles, key=lambda each: each.name.gpu_slices)
    there = tuple(
        GpuInstance(
            None, smallest.name, smallest.profile_id, place, (ComputeInstance(None, 1, Placement(0, 1)),)
        )
        for place in smallest.placements[: smallest.max_instances]
    )
    states = [
        GpuState(identity(index, model.name, model.device_ids[0]), True, True, True, geometry, there)
        for index in range(8)
    ]
    inventory = Inventory("", tuple(states))
    more = len(gpus_annotation(inventory)) - len(gpu_facts(inventory))
    assert more < 8 * 80
    strange = tuple(replace(state, gpu=replace(state.gpu, model=UNKNOWN, device_id=1)) for state in states)
    assert len(gpus_annotation(Inventory("", strange))) - len(gpu_facts(Inventory("", strange))) < 2500


def old(*instances: GpuInstance, model: str = A_HUNDRED.name) -> str:
    """As versions before wrote it."""
    geometry = geometry_of(A_HUNDRED)
    state = GpuState(identity(0, model, 0, 0), True, True, True, geometry, tuple(instances))
    return gpu_facts(Inventory("", (state,)))


SMALL = GpuInstance(
    None, MigProfile.parse("1g.10gb"), 19, Placement(6, 1), (ComputeInstance(None, 1, Placement(0, 1)),)
)


def test_the_facts_have_the_form_that_every_version_wrote() -> None:
    """A digest of them stands in the status, and must outlive an upgrade."""
    assert facts_in(old(SMALL)) == old(SMALL)
    assert old(SMALL) == (
        '[{"index":0,"uuid":"GPU-0","busId":"00000000:00:00.0","model":"NVIDIA A100-SXM4-80GB","mig":true,'
        '"instances":[{"profile":"1g.10gb","start":6,"size":1,"compute":["1g.10gb"]}]}]'
    )


def test_an_older_annotation_is_read_by_the_catalogue_and_says_what_is_missing() -> None:
    reading = inventory_from_annotation(old(SMALL))
    (state,) = reading.inventory.gpus
    assert (state.gpu.device_id, state.mode_change_needs_reset) == (A_HUNDRED.device_ids[0], True)
    assert state.instances == (SMALL,)
    assert state.geometry == A_HUNDRED.geometry
    assert [text.split(",")[0] for text in reading.missing] == [
        "PCI ids",
        "whether a change of the MIG mode is pending",
        "the profiles",
    ]


def test_an_older_annotation_of_an_unknown_model_has_no_profiles() -> None:
    reading = inventory_from_annotation(old(SMALL, model=UNKNOWN))
    (state,) = reading.inventory.gpus
    assert (state.geometry, len(state.instances)) == (None, 1)
    assert f"the profiles of {UNKNOWN}, a model that this version does not know" in reading.missing


def test_a_catalogue_that_says_something_else_is_noticed() -> None:
    geometry = replace(geometry_of(A_HUNDRED), model=A_HUNDRED.name, source="device")
    state = GpuState(identity(0, A_HUNDRED.name, A_HUNDRED.device_ids[0]), True, True, True, geometry)
    written: list[dict[str, Any]] = json.loads(gpus_annotation(Inventory("", (state,))))
    written[0]["geometry"] = "00000000"
    reading = inventory_from_annotation(json.dumps(written))
    assert reading.inventory.gpus[0].geometry is not None
    assert reading.missing == (
        f"the profiles of {A_HUNDRED.name}, which this version knows otherwise than the daemon does",
    )


def changed(path: Sequence[str | int], value: object) -> str:
    gpus = json.loads(gpus_annotation(inventory_from_annotation(old(SMALL)).inventory))
    here: Any = gpus
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return json.dumps(gpus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "null",
        '{"index": 0}',
        "[" * 100_000,
        changed([0, "instances", 0, "profile"], "huge"),
        changed([0, "instances", 0, "start"], 10**9),
        changed([0, "instances", 0, "size"], 0),
        changed([0, "instances", 0, "at"], [0, 1, 2]),
        changed([0, "index"], float("inf")),
        changed([0, "pci"], "zebra"),
        changed([0, "geometry"], 7),
        changed([0, "geometry"], {"memory": 1, "slices": [10**9, 1], "profiles": [], "compute": []}),
    ],
    ids=lambda text: text[:40],
)
def test_what_makes_no_sense_is_one_error(text: str) -> None:
    with pytest.raises(AnnotationError):
        inventory_from_annotation(text)
