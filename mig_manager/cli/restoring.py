"""A checkpoint held against the GPUs of this machine: what they shall look like again, or why they cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mig_manager.cli.checkpointfile import SavedGpu, SavedInstance
from mig_manager.cli.documents import span
from mig_manager.cli.errors import InputError
from mig_manager.layouts.models import same_model
from mig_manager.planning.compute import change_compute, new_compute
from mig_manager.planning.explain import gpu_words
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile
from mig_manager.planning.limits import binding_limits
from mig_manager.planning.profiles import in_order
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory


def saved_state(saved: Sequence[SavedGpu], now: Inventory) -> Inventory:
    """What the GPUs of a checkpoint shall look like, in the terms of this machine's GPUs.

    Raises:
        InputError: these are not the GPUs of the checkpoint; one line for each thing that differs.
    """
    here = {state.gpu.uuid: state for state in now.gpus}
    states = []
    problems: list[str] = []
    for gpu in saved:
        state = here.get(gpu.uuid)
        found = [_missing(gpu, saved, now)] if state is None else list(_differences(gpu, state))
        problems += [f"{gpu.field.file}: {text}" for text in found]
        if state is not None and not found:
            states.append(_wanted(gpu, state))
    if problems:
        raise InputError("\n".join(problems))
    return replace(now, gpus=tuple(sorted(states, key=lambda state: state.gpu.index)))


def _missing(gpu: SavedGpu, saved: Sequence[SavedGpu], now: Inventory) -> str:
    known = {each.uuid for each in saved}
    others = [f"{gpu_words(s.gpu)} {s.gpu.uuid}" for s in now.gpus if s.gpu.uuid not in known]
    beside = f"; the file lacks {', '.join(others)}" if others else ""
    model = f" ({gpu.model})" if gpu.model else ""
    return f"{gpu.field.place}: {gpu.uuid}{model} is not in this machine{beside}"


def _differences(gpu: SavedGpu, state: GpuState) -> Iterator[str]:
    here = gpu_words(state.gpu)
    if gpu.model is not None and not same_model(gpu.model, state.gpu.model):
        yield f"{gpu.field.place}.Model: found {gpu.model}; with that UUID this machine has {here}"
    elif gpu.enabled and not state.gpu.mig_capable:
        yield f"{gpu.field.place}.MigMode: {here} has no MIG"
    elif gpu.instances and state.geometry is None:
        yield (
            f"{gpu.field.place}: {here} lists no profiles while MIG is off, and the model is not in the catalogue; "
            "enable MIG first"
        )
    elif state.geometry is not None:
        problems = [text for saved in gpu.instances for text in _misfits(saved, state.geometry)]
        yield from problems or _beyond_limits(gpu, state, state.geometry)


def _misfits(saved: SavedInstance, geometry: GpuGeometry) -> Iterator[str]:
    where = saved.field.place
    profile = _profile(saved, geometry)
    if profile is None:
        offered = ", ".join(f"{each.enum} ({each.name})" for each in in_order(geometry.profiles))
        named = f" ({saved.name})" if saved.name else ""
        yield f"{where}.ProfileID: found {saved.enum}{named}; {geometry.model} has {offered}"
        return
    if saved.name is not None and saved.name != str(profile.name):
        yield f"{where}.Profile: found {saved.name}; profile {saved.enum} of {geometry.model} is {profile.name}"
    elif saved.placement not in profile.placements:
        allowed = ", ".join(map(span, profile.placements))
        yield (
            f"{where}.Placement: found memory slices {span(saved.placement)}; {profile.name} of {geometry.model} "
            f"lies at {allowed}"
        )
    elif not _compute_fits(saved, profile):
        offered = ", ".join(str(profile.name.split(each.slices)) for each in profile.compute)
        wanted = ", ".join(str(profile.name.split(each.slices)) for each in saved.compute)
        yield f"{where}.ComputeInstances: found {wanted}; a {profile.name} has room for {offered}"


def _profile(saved: SavedInstance, geometry: GpuGeometry) -> InstanceProfile | None:
    return next((each for each in geometry.profiles if each.enum == saved.enum), None)


def _compute_fits(saved: SavedInstance, profile: InstanceProfile) -> bool:
    slices = sorted((each.slices for each in saved.compute), reverse=True)
    if sum(slices) > profile.name.gpu_slices:
        return False
    return new_compute(profile, slices) is not None


def _beyond_limits(gpu: SavedGpu, state: GpuState, geometry: GpuGeometry) -> Iterator[str]:
    counts = Counter(saved.enum for saved in gpu.instances)
    asked = [counts[profile.enum] for profile in geometry.profiles]
    for limit in binding_limits(geometry, geometry.profiles, asked, state.instances)[:1]:
        yield f"{gpu.field.place}.GpuInstances: more {limit.what} than the {limit.most} of {geometry.model}"


def _wanted(gpu: SavedGpu, state: GpuState) -> GpuState:
    instances = []
    for saved in gpu.instances:
        assert state.geometry is not None
        profile = _profile(saved, state.geometry)
        assert profile is not None
        compute = _compute(saved, profile, state)
        instances.append(GpuInstance(None, profile.name, profile.profile_id, saved.placement, compute))
    instances.sort(key=lambda instance: instance.placement)
    return replace(
        state, mig_current=gpu.enabled, mig_pending=gpu.enabled, instances=tuple(instances), busy=False
    )


def _compute(saved: SavedInstance, profile: InstanceProfile, state: GpuState) -> tuple[ComputeInstance, ...]:
    """The compute instances, with places around those that can stay where the file gives none."""
    if all(each.placement is not None for each in saved.compute):
        return saved.compute
    there = next(
        (
            instance.compute
            for instance in state.instances
            if instance.profile_id == profile.profile_id and instance.placement == saved.placement
        ),
        (),
    )
    slices = sorted((each.slices for each in saved.compute), reverse=True)
    change = change_compute(profile, slices, there)
    if change is None or not there:
        return saved.compute
    return (*change.keep, *(ComputeInstance(None, each.slices, each.placement) for each in change.create))
