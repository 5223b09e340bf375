"""Typed NVML calls on one GPU, its GPU instances and their compute instances.

Every function name is NVML's own. Handles are only valid inside the session, and a GPU's only until its MIG
mode is set: `Device.refresh` looks it up again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from ctypes import byref, c_uint
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pynvml

from mig_manager.gpu import nvml as codes
from mig_manager.gpu.nvml import Nvml, NvmlCallError, call_error, text
from mig_manager.gpu.probing import denied_twice, newest, placements
from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo, InstanceInfo
from mig_manager.planning.geometry import Engines, Placement

_T = TypeVar("_T")

_KNOWN_GPU_PROFILES = int(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
_KNOWN_COMPUTE_PROFILES = int(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
_LACKING = (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND)
"""What the GPU or the driver lacks."""
_CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
_MOST_GPU_INSTANCES = 32
"""A GPU has at most 15. Wider than the profile's instanceCount, which is wrong on A30."""
_MOST_COMPUTE_INSTANCES = 32
"""A GPU instance has at most 8."""


class Device:
    """A GPU."""

    def __init__(self, nvml: Nvml, uuid: str, index: int, handle: Any = None) -> None:
        self.nvml = nvml
        self.uuid = uuid
        self.index = index
        self._handle = handle

    def call(self, function: str, *args: object) -> Any:
        """Call a function of NVML in the name of this GPU."""
        return self.nvml.call(function, *args, gpu=self.index)

    def once(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """As Nvml.once, of this GPU."""
        return self.nvml.once((self.uuid, key), read)

    def refresh(self) -> Device:
        """Look the handle up (again) by UUID."""
        try:
            self._handle = self.call("nvmlDeviceGetHandleByUUID", self.uuid.encode())
        except NvmlCallError as error:
            if error.code not in (codes.FUNCTION_NOT_FOUND, codes.NOT_SUPPORTED):
                raise
            self._handle = self._among_all()
        return self

    def _among_all(self) -> Any:
        """The handle, where NVML must be asked for one GPU after the other."""
        for position in range(self.nvml.call("nvmlDeviceGetCount")):
            handle = self.nvml.call("nvmlDeviceGetHandleByIndex", position)
            if text(self.nvml.call("nvmlDeviceGetUUID", handle)) == self.uuid:
                return handle
        raise call_error("nvmlDeviceGetHandleByIndex", codes.NOT_FOUND, self.index, f"finding {self.uuid}")

    def mig_mode(self) -> tuple[bool, bool]:
        """Current and pending MIG mode."""
        current, pending = self.call("nvmlDeviceGetMigMode", self._handle)
        return bool(current), bool(pending)

    def set_mig_mode(self, enabled: bool) -> int:
        """Ask for a MIG mode. Gives the activation status, which explains and does not decide."""
        status = int(self.call("nvmlDeviceSetMigMode", self._handle, int(enabled)))
        # The call may unbind the device; handles and attributes from before are void.
        self.refresh()
        return status

    def memory(self) -> int:
        """Total memory, bytes; 0 where the GPU has none of its own."""
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        return 0 if memory is None else int(memory.total)

    def before_hopper(self) -> bool:
        """Whether the architecture is older than Hopper: its MIG mode changes with a reset only.

        True where nobody tells: what can be reset has been freed for a change without a reset as well.
        """
        architecture = self.ask("nvmlDeviceGetArchitecture")
        if architecture is not None and int(architecture) != pynvml.NVML_DEVICE_ARCH_UNKNOWN:
            return int(architecture) < pynvml.NVML_DEVICE_ARCH_HOPPER
        capability = self.ask("nvmlDeviceGetCudaComputeCapability")
        return capability is None or int(capability[0]) < 9

    def profiles(self, *, mig: bool) -> tuple[GpuProfileInfo, ...]:
        """The GPU-instance profiles that this GPU lists, by enum. Empty where it lists none with MIG off.

        `mig`: its current mode.
        """
        return self.once(("profiles", mig), lambda: newest(self._profile, _KNOWN_GPU_PROFILES))

    def _profile(self, enum: int, version: int) -> GpuProfileInfo:
        info = self.call("nvmlDeviceGetGpuInstanceProfileInfo", self._handle, enum, version)
        return GpuProfileInfo(
            enum=enum,
            id=info.id,
            slices=info.sliceCount,
            instances=info.instanceCount,
            multiprocessors=info.multiprocessorCount,
            memory_mb=info.memorySizeMB,
            engines=Engines(
                copy=info.copyEngineCount,
                decoder=info.decoderCount,
                encoder=info.encoderCount,
                jpeg=info.jpegCount,
                ofa=info.ofaCount,
            ),
            name=text(info.name) if hasattr(info, "name") else None,
            p2p=bool(info.isP2pSupported) if hasattr(info, "isP2pSupported") else None,
        )

    def placements(self, profile_id: int, *, mig: bool) -> tuple[Placement, ...]:
        """Where instances of a profile may lie, whatever is there now; ascending. Empty where NVML tells none.

        `mig`: the current mode.
        """

        def call(array: Any, count: Any) -> Any:
            function = "nvmlDeviceGetGpuInstancePossiblePlacements"
            return self.call(function, self._handle, profile_id, array, count)

        key = ("placements", profile_id, mig)
        return self.once(key, lambda: placements(call, pynvml.c_nvmlGpuInstancePlacement_t))

    def instances(self, profile_id: int) -> tuple[Instance, ...]:
        """The GPU instances of a profile, those without compute instances too."""
        array = (pynvml.c_nvmlGpuInstance_t * _MOST_GPU_INSTANCES)()
        count = c_uint(_MOST_GPU_INSTANCES)
        self.call("nvmlDeviceGetGpuInstances", self._handle, profile_id, array, byref(count))
        return tuple(Instance(self, handle) for handle in array[: count.value])

    def instance(self, instance_id: int) -> Instance | None:
        """The GPU instance with that id; None if there is none (any more)."""
        try:
            return Instance(self, self.call("nvmlDeviceGetGpuInstanceById", self._handle, instance_id))
        except NvmlCallError as error:
            if error.code == codes.NOT_FOUND:
                return None
            raise

    @property
    def creates_at_places(self) -> bool:
        """Whether `create` is to be had: drivers of the first branch that had MIG, R450, lack it."""
        return self.nvml.has(_CREATE)

    def create(self, profile_id: int, placement: Placement) -> Instance:
        """Create a GPU instance, always at an explicit placement."""
        where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        return Instance(self, self.call(_CREATE, self._handle, profile_id, byref(where)))

    def mig_devices(self) -> dict[tuple[int, int], MigDevice]:
        """The MIG devices by GPU-instance and compute-instance id; none where NVML does not list them."""
        found: dict[tuple[int, int], MigDevice] = {}
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            try:
                handle = self.call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, index)
                key = (
                    int(self.call("nvmlDeviceGetGpuInstanceId", handle)),
                    int(self.call("nvmlDeviceGetComputeInstanceId", handle)),
                )
                found[key] = MigDevice(self, handle, text(self.call("nvmlDeviceGetUUID", handle)))
            except NvmlCallError as error:
                # Indices have holes, which some drivers call an invalid argument.
                if error.code not in codes.NO_SUCH_THING:
                    raise
        return found

    def ask(self, function: str, *args: object) -> Any:
        """Call a function whose first argument is this GPU; None where the GPU or the driver lacks it."""
        return _ask(self, self._handle, function, args, _LACKING)

    def ask_once(self, function: str) -> Any:
        """As `ask`, for what cannot change while a session is open."""
        return self.once(function, partial(self.ask, function))


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device, as long as its session lasts."""

    parent: Device
    handle: Any
    uuid: str

    def ask(self, function: str, *args: object) -> Any:
        """As Device.ask, on this MIG device; None also where it has gone meanwhile."""
        return _ask(self.parent, self.handle, function, args, codes.NO_SUCH_THING)


class Instance:
    """A GPU instance."""

    def __init__(self, device: Device, handle: Any) -> None:
        self.device = device
        self._handle = handle

    def info(self) -> InstanceInfo:
        """Id, profile and placement."""
        return _info(self.device.call("nvmlGpuInstanceGetInfo", self._handle))

    def destroy(self) -> None:
        """Ask for its end; whether it is gone must be looked up."""
        self.device.call("nvmlGpuInstanceDestroy", self._handle)

    def compute_profiles(self, profile_id: int) -> tuple[ComputeProfileInfo, ...]:
        """The compute-instance profiles that GPU instances of this one's profile offer, by enum."""
        return self.device.once(
            ("compute profiles", profile_id),
            lambda: newest(self._compute_profile, _KNOWN_COMPUTE_PROFILES),
        )

    def _compute_profile(self, enum: int, version: int) -> ComputeProfileInfo:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        info = self.device.call(function, self._handle, enum, shared, version)
        return ComputeProfileInfo(
            enum=enum,
            id=info.id,
            slices=info.sliceCount,
            instances=info.instanceCount,
            multiprocessors=info.multiprocessorCount,
        )

    def compute_placements(self, profile_id: int, compute_id: int) -> tuple[Placement, ...]:
        """Where compute instances of profile `compute_id` may lie in GPU instances of this one's profile.

        In compute slices, whatever is there now; ascending.
        """

        def call(array: Any, count: Any) -> Any:
            function = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
            return self.device.call(function, self._handle, compute_id, array, count)

        key = ("compute placements", profile_id, compute_id)
        return self.device.once(key, lambda: placements(call, pynvml.c_nvmlComputeInstancePlacement_t))

    def compute_instances(self, profile_id: int) -> tuple[Compute, ...]:
        """The compute instances of a profile."""
        array = (pynvml.c_nvmlComputeInstance_t * _MOST_COMPUTE_INSTANCES)()
        count = c_uint(_MOST_COMPUTE_INSTANCES)
        self.device.call("nvmlGpuInstanceGetComputeInstances", self._handle, profile_id, array, byref(count))
        return tuple(Compute(self.device, handle) for handle in array[: count.value])

    def create_compute(self, profile_id: int, placement: Placement | None) -> Compute:
        """Create a compute instance; without a placement the device chooses one."""
        if placement is None:
            handle = self.device.call("nvmlGpuInstanceCreateComputeInstance", self._handle, profile_id)
        else:
            where = pynvml.c_nvmlComputeInstancePlacement_t(placement.start, placement.size)
            handle = self.device.call(
                "nvmlGpuInstanceCreateComputeInstanceWithPlacement", self._handle, profile_id, byref(where)
            )
        return Compute(self.device, handle)


class Compute:
    """A compute instance."""

    def __init__(self, device: Device, handle: Any) -> None:
        self.device = device
        self._handle = handle
        self._mig_device: Any = None

    def info(self) -> InstanceInfo:
        """Id, profile and placement (in compute slices)."""
        info = self.device.call("nvmlComputeInstanceGetInfo_v2", self._handle)
        self._mig_device = info.device
        return _info(info)

    def uuid(self) -> str | None:
        """UUID of its MIG device, where nvmlComputeInstanceInfo_t leads to it; call `info` first.

        The header calls that device the parent; drivers give the MIG device. One that gives none at all is
        passed over.
        """
        try:
            uuid = text(self.device.call("nvmlDeviceGetUUID", self._mig_device))
        except NvmlCallError as error:
            if error.code not in codes.NO_SUCH_THING:
                raise
            return None
        return uuid if uuid.startswith("MIG-") else None

    def destroy(self) -> None:
        """Ask for its end; whether it is gone must be looked up."""
        self.device.call("nvmlComputeInstanceDestroy", self._handle)


def _info(info: Any) -> InstanceInfo:
    placement = Placement(int(info.placement.start), int(info.placement.size))
    return InstanceInfo(int(info.id), int(info.profileId), placement)


def _ask(
    device: Device, handle: Any, function: str, args: tuple[object, ...], absent: Collection[int]
) -> Any:
    try:
        return denied_twice(partial(device.call, function, handle, *args))
    except NvmlCallError as error:
        if error.code in absent:
            return None
        raise
