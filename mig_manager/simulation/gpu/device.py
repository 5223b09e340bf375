"""The rules of one simulated GPU: modes, resets, and what can be created and destroyed when.

Where NVIDIA's documents are silent, the stricter behaviour is built; docstrings say where.
"""

from __future__ import annotations

import uuid

from pynvml import (
    NVML_ERROR_IN_USE,
    NVML_ERROR_INSUFFICIENT_RESOURCES,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_RESET_REQUIRED,
    NVML_SUCCESS,
)

from mig_manager.planning.geometry import InstanceProfile, Placement
from mig_manager.simulation.gpu.board import ComputeOffer, boards_of
from mig_manager.simulation.gpu.driver import knows_profile, lists_variants
from mig_manager.simulation.gpu.state import (
    ClientState,
    ComputeInstanceState,
    GpuInstanceState,
    NodeState,
)
from mig_manager.simulation.gpu.statefile import process_start

_NAMES = uuid.UUID("5b0c7c0e-2f5c-4f0f-9a4e-8d2f1f7e6a11")


class RefusedError(Exception):
    """The GPU or the driver says no: `code` is an nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Device:
    """One GPU of a node's state. Changes go into that state."""

    def __init__(self, state: NodeState, index: int) -> None:
        self.state = state
        self.index = index
        self.gpu = state["gpus"][index]
        self.board = boards_of(state)[self.gpu["board"]]

    # What it offers

    def profile(self, profile_id: int) -> InstanceProfile:
        """The profile of that id; INVALID_ARGUMENT for one that this GPU and driver do not have."""
        profile = self.board.profile(profile_id)
        if profile is None or not knows_profile(self.state, profile.enum):
            raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
        return profile

    def compute_offers(self, gi: GpuInstanceState) -> tuple[ComputeOffer, ...]:
        """The compute-instance profiles that a GPU instance lists."""
        return self.board.offers(self.profile(gi["profile"]), variants=lists_variants(self.state))

    def compute_offer(self, gi: GpuInstanceState, profile_id: int) -> ComputeOffer:
        """One of them by profile id; INVALID_ARGUMENT where the GPU instance has no such profile."""
        for offer in self.compute_offers(gi):
            if offer.profile.profile_id == profile_id:
                return offer
        raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)

    def require_mig(self) -> None:
        """NOT_SUPPORTED unless MIG mode is on."""
        if not self.board.profiles or not self.gpu["current"]:
            raise RefusedError(NVML_ERROR_NOT_SUPPORTED)

    # Room

    def capacity(self, profile: InstanceProfile) -> int:
        """How many more instances of a profile fit beside what exists."""
        free, end = 0, 0
        for placement in sorted(self._free(profile), key=lambda p: p.end):
            if placement.start >= end:
                free, end = free + 1, placement.end
        return max(0, min(free, self._allowance(profile)))

    def compute_capacity(self, gi: GpuInstanceState, offer: ComputeOffer) -> int:
        """How many more compute instances of a profile fit into a GPU instance."""
        same = sum(ci["profile"] == offer.profile.profile_id for ci in gi["compute"])
        free, end = 0, 0
        for placement in sorted(self._free_compute(gi, offer), key=lambda p: p.end):
            if placement.start >= end:
                free, end = free + 1, placement.end
        return max(0, min(free, offer.profile.max_instances - same))

    def _occupied(self) -> int:
        mask = 0
        for gi in self.gpu["instances"]:
            mask |= Placement(gi["start"], gi["size"]).mask
        return mask

    def _free(self, profile: InstanceProfile) -> list[Placement]:
        occupied = self._occupied()
        return [placement for placement in profile.placements if not placement.mask & occupied]

    def _allowance(self, profile: InstanceProfile) -> int:
        """How many more the counts allow: instances of the profile, compute slices, media engines.

        Copy engines are shared out by slice and never run short; media engines do, which is why a GPU takes
        only one +me instance.
        """
        geometry = self.board.geometry
        assert geometry is not None
        present = [self.profile(gi["profile"]) for gi in self.gpu["instances"]]
        limits = [profile.max_instances - sum(p.profile_id == profile.profile_id for p in present)]
        slices = geometry.compute_slices - sum(p.name.gpu_slices for p in present)
        limits.append(slices // profile.name.gpu_slices)
        for engine, need in enumerate(self.board.engines(profile)):
            if engine == 0 or need == 0:
                continue
            whole = max(self.board.engines(p)[engine] for p in geometry.profiles)
            limits.append((whole - sum(self.board.engines(p)[engine] for p in present)) // need)
        return min(limits)

    def _default_placement(self, profile: InstanceProfile) -> Placement:
        """Where the driver puts an instance when nobody says.

        NVIDIA documents only that the driver chooses. This rule gives every published sequence but one: the
        free placement that takes away the fewest placements of any profile, the lowest start among equals.
        It makes some sets fail in some orders, as hardware does.
        """
        occupied = self._occupied()
        open_ = [p for other in self.board.profiles for p in other.placements if not p.mask & occupied]
        free = self._free(profile)
        if not free:
            raise RefusedError(NVML_ERROR_INSUFFICIENT_RESOURCES)
        return min(free, key=lambda p: (sum(bool(p.mask & other.mask) for other in open_), p.start))

    def _free_compute(self, gi: GpuInstanceState, offer: ComputeOffer) -> list[Placement]:
        occupied = 0
        for ci in gi["compute"]:
            occupied |= Placement(ci["start"], ci["size"]).mask
        return [placement for placement in offer.profile.placements if not placement.mask & occupied]

    # Instances

    def create_instance(self, profile_id: int, placement: Placement | None) -> GpuInstanceState:
        """Make a GPU instance, at the driver's choice without a placement."""
        self.require_mig()
        profile = self.profile(profile_id)
        if placement is not None and placement not in profile.placements:
            raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
        if self._allowance(profile) < 1:
            raise RefusedError(NVML_ERROR_INSUFFICIENT_RESOURCES)
        place = placement or self._default_placement(profile)
        if place.mask & self._occupied() or [place.start, place.size] in self.gpu["refused"]:
            raise RefusedError(NVML_ERROR_INSUFFICIENT_RESOURCES)
        taken = [gi["id"] for gi in self.gpu["instances"]]
        gi = GpuInstanceState(
            id=self.board.instance_id(place, swapped=self.gpu["swapped"], taken=taken),
            profile=profile_id,
            start=place.start,
            size=place.size,
            serial=self._next_serial(),
            compute=[],
        )
        self.gpu["instances"].append(gi)
        self.gpu["instances"].sort(key=lambda instance: instance["id"])
        return gi

    def destroy_instance(self, gi: GpuInstanceState) -> None:
        """Take a GPU instance away; IN_USE while it has compute instances or somebody uses it."""
        self.require_mig()
        if gi["compute"] or any(client["gi"] == gi["id"] for client in self.clients()):
            raise RefusedError(NVML_ERROR_IN_USE)
        self.gpu["instances"].remove(gi)

    def create_compute(
        self, gi: GpuInstanceState, profile_id: int, placement: Placement | None
    ) -> ComputeInstanceState:
        """Make a compute instance, at the lowest free place without a placement."""
        self.require_mig()
        offer = self.compute_offer(gi, profile_id)
        if not offer.creatable:
            raise RefusedError(NVML_ERROR_NOT_SUPPORTED)
        if placement is not None and placement not in offer.profile.placements:
            raise RefusedError(NVML_ERROR_INVALID_ARGUMENT)
        free = self._free_compute(gi, offer)
        if self.compute_capacity(gi, offer) < 1 or (placement is not None and placement not in free):
            raise RefusedError(NVML_ERROR_INSUFFICIENT_RESOURCES)
        place = placement or min(free)
        taken = {ci["id"] for ci in gi["compute"]}
        key = next(i for i in range(8) if i not in taken)
        serial = self._next_serial()
        ci = ComputeInstanceState(
            id=key,
            profile=profile_id,
            start=place.start,
            size=place.size,
            uuid=self._mig_uuid(gi["id"], key, serial),
            index=0,
            serial=serial,
        )
        gi["compute"].append(ci)
        gi["compute"].sort(key=lambda instance: instance["id"])
        # Creating numbers the MIG devices anew, by GPU and compute instance; destroying leaves holes.
        for index, device in enumerate(ci for gi in self.gpu["instances"] for ci in gi["compute"]):
            device["index"] = index
        return ci

    def destroy_compute(self, gi: GpuInstanceState, ci: ComputeInstanceState) -> None:
        """Take a compute instance away; IN_USE while somebody uses it or holds its GPU instance."""
        self.require_mig()
        for client in self.clients():
            if client["gi"] == gi["id"] and client["ci"] in (ci["id"], None):
                raise RefusedError(NVML_ERROR_IN_USE)
        gi["compute"].remove(ci)

    def _next_serial(self) -> int:
        self.state["serial"] += 1
        return self.state["serial"]

    def _mig_uuid(self, gi: int, ci: int, serial: int) -> str:
        name = f"{self.gpu['uuid']}/{gi}/{ci}"
        if self.state["options"]["mig_uuids"] == "fresh":
            name += f"/{self.state['id']}/{serial}"
        return f"MIG-{uuid.uuid5(_NAMES, name)}"

    # Mode and reset

    def clients(self) -> list[ClientState]:
        """Who uses this GPU in particular."""
        return [client for client in self.state["clients"] if client["gpu"] == self.index]

    def holders(self, *, besides: int | None = None) -> list[str]:
        """What keeps this GPU from being reset, in words; the process `besides` does not count.

        An open NVML session holds every GPU. Persistence mode counts too: nvidia-persistenced keeps the
        device open for it, and users report resets refused until it is off.
        """
        state = self.state
        found = [
            f"process {s['pid']} (NVML session)"
            for s in state["sessions"]
            if s["pid"] != besides and process_start(s["pid"]) == s["started"]
        ]
        found += [
            f"process {c['pid']} ({c['name']})" for c in state["clients"] if c["gpu"] in (self.index, None)
        ]
        if self.gpu["persistence"]:
            found.append("nvidia-persistenced")
        if state["options"]["drm"]:
            found.append("nvidia_drm")
        return found

    def set_mode(self, mode: int, caller: int) -> tuple[int, bool]:
        """Ask for a MIG mode: the activation status, and whether the GPU was reset on the way.

        A mode change with instances in place, or with a process on the GPU, is not activated on any
        generation (not documented). Where it is not activated, it stays pending.
        """
        gpu = self.gpu
        gpu["pending"] = mode
        if gpu["current"] == mode:
            return NVML_SUCCESS, False
        if gpu["instances"] or self.clients():
            return NVML_ERROR_IN_USE, False
        if not self.board.needs_reset:
            gpu["current"] = mode
            return NVML_SUCCESS, False
        options = self.state["options"]
        if options["passthrough"] or options["resets"] == "unsupported":
            return NVML_ERROR_RESET_REQUIRED, False
        if options["resets"] == "refused" or options["grouped_resets"] or self.holders(besides=caller):
            return NVML_ERROR_IN_USE, False
        self.reset()
        return NVML_SUCCESS, True

    def reset(self) -> None:
        """What a reset does: instances go, the pending mode holds, every handle is stale."""
        self.gpu["instances"] = []
        self.gpu["current"] = self.gpu["pending"]
        self.gpu["lost"] = False
        self.gpu["epoch"] += 1

    def restart(self) -> None:
        """What a reload of the driver or a reboot does. From Hopper on, no mode outlives the driver."""
        if not self.board.needs_reset:
            self.gpu["pending"] = 0
        self.reset()
