"""What GPUs offer, in the form that layouts are generated from."""

from __future__ import annotations

from mig_manager.layouts.generate import GeneratorInput
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.state import GpuState, Inventory


def offers(inventory: Inventory) -> tuple[GeneratorInput, ...]:
    """Each GPU with its profiles and the largest number of instances of each."""
    return tuple(GeneratorInput(state.gpu, _profiles(state)) for state in inventory.gpus)


def _profiles(state: GpuState) -> tuple[tuple[MigProfile, int], ...]:
    profiles = state.geometry.profiles if state.geometry is not None else ()
    return tuple((profile.name, profile.max_instances) for profile in profiles)
