"""GPUs that the catalogue does not know: everything about them comes from NVML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mig_manager.gpu.profiles import usual_compute
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, find_model
from mig_manager.planning.geometry import Engines, GpuGeometry, InstanceProfile, Placement

_HALVES = (Placement(0, 2), Placement(2, 2))
_WHOLE = (Placement(0, 4),)
_Row = tuple[str, int, int, int, int, int, tuple[Placement, ...]]
"""Name, profile id, enum, memory (MiB), multiprocessors, largest count, placements."""


def later_model() -> GpuModel:
    """A product of a later year: PCI id, name, profile ids, enums and sizes that nobody has heard of."""
    rows: tuple[_Row, ...] = (
        ("2g.32gb", 71, 40, 32000, 40, 2, _HALVES),
        ("2g.32gb+ray", 72, 41, 32000, 40, 1, _HALVES),
        ("4g.64gb", 70, 42, 64000, 80, 1, _WHOLE),
    )
    return _model("X9000", 0x4FFF10DE, 65536, rows)


def integrated_model() -> GpuModel:
    """A GPU that shares the memory of its host: NVML tells no size, and its profiles are called 0gb."""
    rows: tuple[_Row, ...] = (
        ("2g.0gb", 5, 1, 0, 8, 2, _HALVES),
        ("3g.0gb+gfx", 33, 17, 0, 12, 1, (Placement(0, 3),)),
        ("4g.0gb", 0, 3, 0, 16, 1, _WHOLE),
    )
    return _model("Y1", 0x4FFE10DE, 0, rows)


def _model(title: str, device_id: int, memory_mb: int, rows: Iterable[_Row]) -> GpuModel:
    name = f"NVIDIA {title}"
    profiles = tuple(
        InstanceProfile(
            MigProfile.parse(text),
            key,
            enum,
            memory,
            cores,
            most,
            places,
            Engines(2, 0, 0, 0, 0),
            usual_compute(int(text[0])),
        )
        for text, key, enum, memory, cores, most, places in rows
    )
    return replace(
        find_model("H100-80GB-HBM3"),
        key=title.lower(),
        title=title,
        names=(name,),
        device_ids=(device_id,),
        subsystem_ids=(0x123410DE,),
        memory_mb=memory_mb,
        geometry=GpuGeometry(name, 4, 4, memory_mb, profiles, "catalogue"),
    )
