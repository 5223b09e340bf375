"""Layouts held against the GPU models of the catalogue, where there is no node to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.findings import hint
from mig_manager.layouts.layout import GpuIdentity, GpuTarget, LayoutEntry, PciFilter
from mig_manager.layouts.models import model_words, same_model
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.suggest import nearest
from mig_manager.planning.catalogue import GpuModel, catalogue
from mig_manager.planning.explain import gpu_words
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.profiles import offers_profile
from mig_manager.planning.state import GpuState, Inventory

_MOST_NAMED = 4
_EARLY = frozenset(map(MigProfile.parse, ("3g.95gb", "4g.95gb", "7g.189gb")))
"""Of a GB200 with 189 GiB that NVIDIA's layouts speak of (2025-03), and of which nothing else is published."""
_Devices = tuple[tuple[MigProfile, int], ...]


def new_node(models: Sequence[GpuModel]) -> Inventory:
    """A node with these GPUs as they come: MIG off. UUIDs stand for none, and PCI bus ids are empty."""
    return Inventory("", tuple(_new_gpu(model, index) for index, model in enumerate(models)))


def unknown_models(entry: LayoutEntry) -> tuple[tuple[str, str], ...]:
    """The model names of an entry that the catalogue does not have, each with the tail that offers near ones."""
    words = {name: " ".join(model_words(name)) for model in catalogue() for name in model.names}
    unknown = [wanted for wanted in entry.gpu_models if not any(same_model(wanted, name) for name in words)]
    near = {wanted: nearest(" ".join(model_words(wanted)), words.values(), 2) for wanted in unknown}
    return tuple(
        (wanted, hint(next(name for name in words if words[name] == text) for text in near[wanted]))
        for wanted in unknown
    )


def no_known_gpu(entry: LayoutEntry) -> MigManagerError | None:
    """Why none of the GPU models that an entry is for can become what it asks for.

    None where one can, and where the catalogue knows none of the models that it is for.
    """
    if not entry.mig_enabled or not _EARLY.isdisjoint(profile for profile, _ in entry.mig_devices):
        return None
    return _refusal(entry.device_filter, entry.gpu_models, entry.mig_devices)


@lru_cache(maxsize=1024)
def _models(filters: tuple[PciFilter, ...], names: tuple[str, ...]) -> tuple[GpuModel, ...]:
    """The models that filters let pass."""
    return tuple(
        model
        for model in catalogue()
        if (not filters or any(_passes(wanted, model) for wanted in filters))
        and (not names or any(same_model(name, known) for name in names for known in model.names))
    )


def _passes(wanted: PciFilter, model: GpuModel) -> bool:
    deciding = model.subsystem_ids if model.only_subsystems else ()
    return wanted.device_id in model.device_ids and (
        not deciding or wanted.subsystem_id is None or wanted.subsystem_id in deciding
    )


@lru_cache(maxsize=1024)
def _shapes(filters: tuple[PciFilter, ...], names: tuple[str, ...]) -> tuple[GpuModel, ...]:
    """Of these models one with MIG of each that offers the same."""
    models = _models(filters, names)
    return tuple({model.geometry.profiles: model for model in models if model.geometry is not None}.values())


@lru_cache(maxsize=4096)
def _refusal(
    filters: tuple[PciFilter, ...], names: tuple[str, ...], devices: _Devices
) -> MigManagerError | None:
    models, shapes = _models(filters, names), _shapes(filters, names)
    if not models:
        return None
    if not shapes:
        who = f"{models[0].name} has no MIG" if len(models) == 1 else f"{_none_of(models)} has MIG"
        return MigManagerError(Reason.INVALID_LAYOUT, who)
    lacking = {
        model.key: [profile for profile, _ in devices if not _offers(model, profile)] for model in shapes
    }
    for profile, _ in devices:
        if all(profile in lacks for lacks in lacking.values()):
            return MigManagerError(Reason.UNSUPPORTED_PROFILE, _no_profile(models, shapes, profile))
    able = [model for model in shapes if not lacking[model.key]]
    if not able:
        wanted = ", ".join(str(profile) for profile, _ in devices)
        return MigManagerError(Reason.UNSUPPORTED_PROFILE, f"{_none_of(models)} has all of {wanted}")
    if any(_cannot_hold(model, devices) is None for model in able):
        return None
    others = "" if len(models) == 1 else "no GPU model that has these profiles can hold them; for one, "
    return MigManagerError(Reason.IMPOSSIBLE_LAYOUT, f"{others}{_cannot_hold(able[0], devices)}")


def _offers(model: GpuModel, profile: MigProfile) -> bool:
    return model.geometry is not None and offers_profile(model.geometry, profile)


def _cannot_hold(model: GpuModel, devices: _Devices) -> str | None:
    """That a model cannot hold these devices together, in words; None where it can."""
    state = _new_gpu(model, 0)
    wanted = tuple(profile for profile, number in devices for _ in range(number))
    try:
        plan_gpu(GpuTarget(state.gpu, True, wanted, None), state)
    except MigManagerError as error:
        return error.message.replace(gpu_words(state.gpu), model.name, 1).removeprefix("GPU 0: ")
    return None


def _no_profile(models: Sequence[GpuModel], shapes: Sequence[GpuModel], profile: MigProfile) -> str:
    if len(models) == 1 and (alone := _cannot_hold(models[0], ((profile, 1),))):
        return alone
    names = (str(each.name) for model in shapes if model.geometry for each in model.geometry.profiles)
    near = nearest(str(profile.gpu_instance), names, 2)
    return f"{_none_of(models)} has a profile {profile}{hint(near)}"


def _none_of(models: Sequence[GpuModel]) -> str:
    """The subject of a sentence that says what none of them has."""
    if len(models) == len(catalogue()):
        return "no known GPU model"
    if len(models) > _MOST_NAMED:
        return f"none of the {len(models)} GPU models that it is for"
    return f"none of {', '.join(model.name for model in models)}"


def _new_gpu(model: GpuModel, index: int) -> GpuState:
    gpu = GpuIdentity(
        index=index,
        uuid=f"unknown-{index}",
        bus_id="",
        model=model.name,
        device_id=model.device_ids[0],
        subsystem_id=model.subsystem_ids[0] if model.subsystem_ids else 0,
        mig_capable=model.geometry is not None,
    )
    return GpuState(gpu, False, False, model.mode_change_needs_reset, model.geometry)
