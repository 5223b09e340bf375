"""What one simulated GPU model offers, and how it numbers what is created on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import ComputeProfile, Engines, GpuGeometry, InstanceProfile, Placement
from mig_manager.simulation.gpu.state import NodeState

ONE_SLICE_DOUBLE_MEMORY = 9
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2."""
ONE_SLICE_REV1 = 7
"""NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1."""
SEVEN_SLICES = 4
"""NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE."""
SEVEN_SLICES_NVL = 8
"""NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL."""


@dataclass(frozen=True, slots=True)
class ComputeOffer:
    """A compute-instance profile as a GPU instance lists it."""

    profile: ComputeProfile
    multiprocessors: int
    creatable: bool = True
    """False for a second profile of the same size that is listed, but refused with NOT_SUPPORTED."""


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU model as the simulation needs it."""

    name: str
    device_id: int
    subsystem_id: int
    architecture: str
    memory_mb: int
    needs_reset: bool
    """Whether a MIG mode change needs a reset (Ampere)."""
    geometry: GpuGeometry | None

    @property
    def profiles(self) -> tuple[InstanceProfile, ...]:
        """GPU-instance profiles; none without MIG."""
        return self.geometry.profiles if self.geometry else ()

    def profile(self, profile_id: int) -> InstanceProfile | None:
        """The GPU-instance profile of that id."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)

    def engines(self, profile: InstanceProfile) -> tuple[int, int, int, int, int]:
        """Copy, decoder, encoder, JPEG and OFA engines; 0 where the number is not known."""
        e = profile.engines
        return (e.copy or 0, e.decoder or 0, e.encoder or 0, e.jpeg or 0, e.ofa or 0)

    def multiprocessors(self, profile: InstanceProfile) -> int:
        """Multiprocessors; where the number is not known, 16 a slice."""
        return profile.multiprocessors or 16 * profile.name.gpu_slices

    def offers(self, profile: InstanceProfile, *, variants: bool) -> tuple[ComputeOffer, ...]:
        """The compute-instance profiles of such a GPU instance, by profile id.

        `variants`: newer drivers list second profiles of a size beside the base one. The NVL variant of
        seven slices cannot be created here (users report that choosing it makes the preparation fail). One
        slice with double memory has more multiprocessors than a plain slice on some models; there the REV1
        variant covers the whole GPU instance, and the plain one only a slice (seen on a 96 GB GH100).
        """
        whole = self.multiprocessors(profile)
        slices = profile.name.gpu_slices
        slice_ = min(
            (self.multiprocessors(p) for p in self.profiles if p.name.gpu_slices == 1), default=whole
        )
        found: dict[int, ComputeOffer] = {}
        for compute in profile.compute:
            fills = compute.slices == slices and profile.enum != ONE_SLICE_DOUBLE_MEMORY
            found[compute.profile_id] = ComputeOffer(
                compute, whole if fills else min(whole, compute.slices * slice_)
            )
        if profile.enum == ONE_SLICE_DOUBLE_MEMORY and whole > slice_:
            wide = ComputeProfile(ONE_SLICE_REV1, 1, 1, (Placement(0, 1),))
            found[ONE_SLICE_REV1] = ComputeOffer(wide, whole)
        base = found.get(SEVEN_SLICES)
        if variants and base is not None:
            nvl = ComputeProfile(SEVEN_SLICES_NVL, 7, base.profile.max_instances, base.profile.placements)
            found[SEVEN_SLICES_NVL] = ComputeOffer(nvl, base.multiprocessors, creatable=False)
        return tuple(found[key] for key in sorted(found))

    def instance_id(self, placement: Placement, *, swapped: bool, taken: Iterable[int]) -> int:
        """The id of a GPU instance: its place in a binary tree over the memory slices.

        The whole is 0, halves 1 and 2, quarters 3 to 6, eighths 7 to 14. On some boards the two halves are
        exchanged. Both were seen on hardware; which boards do what is not known.
        """
        assert self.geometry is not None
        slices = self.geometry.memory_slices
        parts, rest = divmod(slices, placement.size)
        start = (placement.start + slices // 2) % slices if swapped and parts > 1 else placement.start
        if rest == 0 and parts in (1, 2, 4, 8):
            return parts - 1 + start // placement.size
        return next(i for i in range(15) if i not in set(taken))

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        geometry = self.geometry
        return {
            "name": self.name,
            "device_id": self.device_id,
            "subsystem_id": self.subsystem_id,
            "architecture": self.architecture,
            "memory_mb": self.memory_mb,
            "needs_reset": self.needs_reset,
            "memory_slices": geometry.memory_slices if geometry else 0,
            "compute_slices": geometry.compute_slices if geometry else 0,
            "profiles": [_encode_profile(profile) for profile in self.profiles],
        }

    @classmethod
    def decode(cls, row: dict[str, Any]) -> Board:
        """From JSON."""
        geometry = None
        if row["profiles"]:
            geometry = GpuGeometry(
                model=row["name"],
                memory_slices=row["memory_slices"],
                compute_slices=row["compute_slices"],
                memory_mb=row["memory_mb"],
                profiles=tuple(_decode_profile(profile) for profile in row["profiles"]),
                source="catalogue",
            )
        return cls(
            name=row["name"],
            device_id=row["device_id"],
            subsystem_id=row["subsystem_id"],
            architecture=row["architecture"],
            memory_mb=row["memory_mb"],
            needs_reset=row["needs_reset"],
            geometry=geometry,
        )


def boards_of(state: NodeState) -> tuple[Board, ...]:
    """The boards of a state, decoded once for each state file."""
    known = _DECODED.get(state["id"])
    if known is None:
        known = _DECODED[state["id"]] = tuple(Board.decode(row) for row in state["boards"])
    return known


_DECODED: dict[str, tuple[Board, ...]] = {}


def _encode_profile(profile: InstanceProfile) -> dict[str, Any]:
    engines = profile.engines
    return {
        "name": str(profile.name),
        "id": profile.profile_id,
        "enum": profile.enum,
        "memory_mb": profile.memory_mb,
        "multiprocessors": profile.multiprocessors,
        "max": profile.max_instances,
        "placements": [[p.start, p.size] for p in profile.placements],
        "engines": [engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa],
        "compute": [
            [c.profile_id, c.slices, c.max_instances, [[p.start, p.size] for p in c.placements]]
            for c in profile.compute
        ],
    }


def _decode_profile(row: dict[str, Any]) -> InstanceProfile:
    return InstanceProfile(
        name=MigProfile.parse(row["name"]),
        profile_id=row["id"],
        enum=row["enum"],
        memory_mb=row["memory_mb"],
        multiprocessors=row["multiprocessors"],
        max_instances=row["max"],
        placements=tuple(Placement(*p) for p in row["placements"]),
        engines=Engines(*row["engines"]),
        compute=tuple(
            ComputeProfile(key, slices, most, tuple(Placement(*p) for p in placements))
            for key, slices, most, placements in row["compute"]
        ),
    )
