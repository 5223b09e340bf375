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
    """Why an entry asks for what cannot be.

    Each known GPU model that its filters let pass has to take it; without filters, one of all models. None also where
    the catalogue knows none of the models that it is for.
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
    if models and not shapes:
        return MigManagerError(Reason.INVALID_LAYOUT, f"{models[0].name} has no MIG")
    if filters or names:
        # Each of the models that an entry names has to take it.
        return next((error for model in shapes if (error := _cannot_hold(model, devices))), None)
    for profile, _ in devices:
        if not any(_offers(model, profile) for model in shapes):
            return MigManagerError(Reason.UNSUPPORTED_PROFILE, _no_profile(shapes, profile))
    able = [model for model in shapes if all(_offers(model, profile) for profile, _ in devices)]
    if not able:
        wanted = ", ".join(str(profile) for profile, _ in devices)
        return MigManagerError(Reason.UNSUPPORTED_PROFILE, f"no known GPU model has all of {wanted}")
    first: MigManagerError | None = None
    for model in able:
        error = _cannot_hold(model, devices)
        if error is None:
            return None
        first = first or error
    words = f"no GPU model that has these profiles can hold them; for one, {first.message if first else ''}"
    return MigManagerError(Reason.IMPOSSIBLE_LAYOUT, words)


def _offers(model: GpuModel, profile: MigProfile) -> bool:
    return model.geometry is not None and offers_profile(model.geometry, profile)


def _cannot_hold(model: GpuModel, devices: _Devices) -> MigManagerError | None:
    """Why a model cannot hold these devices together; None where it can."""
    state = _new_gpu(model, 0)
    wanted = tuple(profile for profile, number in devices for _ in range(number))
    try:
        plan_gpu(GpuTarget(state.gpu, True, wanted, None), state)
    except MigManagerError as error:
        words = error.message.replace(gpu_words(state.gpu), model.name, 1).removeprefix("GPU 0: ")
        return MigManagerError(error.reason, words)
    return None


def _no_profile(shapes: Sequence[GpuModel], profile: MigProfile) -> str:
    names = (str(each.name) for model in shapes if model.geometry for each in model.geometry.profiles)
    near = nearest(str(profile.gpu_instance), names, 2)
    return f"no known GPU model has a profile {profile}{hint(near)}"


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
