"""What the GPUs look like now, as NVML tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mig_manager.gpu import nvml as codes
from mig_manager.gpu.device import Device, Instance
from mig_manager.gpu.nvml import Nvml, NvmlCallError, call_error, text
from mig_manager.gpu.probing import denied_twice
from mig_manager.gpu.profiles import choose_compute, most_instances, profile_name, usual_compute
from mig_manager.gpu.readings import ComputeProfileInfo, GpuProfileInfo, Process
from mig_manager.gpu.usage import processes
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.selectors import parse_bus_id
from mig_manager.planning.geometry import ComputeProfile, GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState


def find_gpus(nvml: Nvml) -> tuple[tuple[Device, GpuIdentity], ...]:
    """All GPUs by PCI bus id, numbered from 0.

    Raises:
        NvmlCallError: a GPU cannot be opened. Leaving it out would give its number to another one.
    """
    found = []
    for position in range(nvml.call("nvmlDeviceGetCount")):
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", position)
            found.append((nvml.once(position, partial(_identity, nvml, position, handle)), handle))
        except NvmlCallError as error:
            doing = f"opening GPU number {position} in NVML's order"
            raise call_error(error.function, error.code, None, doing) from None
    found.sort(key=lambda gpu: _bus_order(gpu[0].bus_id))
    gpus = [(replace(identity, index=index), handle) for index, (identity, handle) in enumerate(found)]
    return tuple((Device(nvml, gpu.uuid, gpu.index, handle), gpu) for gpu, handle in gpus)


def _identity(nvml: Nvml, position: int, handle: Any) -> GpuIdentity:
    pci = nvml.call("nvmlDeviceGetPciInfo", handle)
    return GpuIdentity(
        index=position,
        uuid=text(nvml.call("nvmlDeviceGetUUID", handle)),
        bus_id=_bus_id(pci),
        model=text(nvml.call("nvmlDeviceGetName", handle)),
        device_id=int(pci.pciDeviceId),
        subsystem_id=int(pci.pciSubSystemId),
        mig_capable=_mig_capable(Device(nvml, "", position, handle)),
    )


def _bus_id(pci: Any) -> str:
    """In NVML's usual spelling; put together from its parts where the text is none."""
    parts = f"{int(pci.domain):08X}:{int(pci.bus):02X}:{int(pci.device):02X}.0"
    return parse_bus_id(text(pci.busId)) or parts


def _bus_order(bus_id: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in bus_id.replace(".", ":").split(":"))


def _mig_capable(device: Device) -> bool:
    try:
        denied_twice(device.mig_mode)
    except NvmlCallError as error:
        if error.code in (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND):
            return False
        raise
    return True


def read_gpu(device: Device, gpu: GpuIdentity) -> GpuState:
    """The state of one GPU."""
    running = processes(device)
    outside = any(process.gpu_instance is None for process in running)
    if not gpu.mig_capable:
        return GpuState(gpu, False, False, False, None, busy=outside)
    current, pending = device.mig_mode()
    memory = device.memory()
    named = tuple((info, profile_name(info, memory)) for info in device.profiles(mig=current))
    if current and not named:
        # Instances are listed by profile: nobody can tell what is there, or that nothing is.
        function, doing = "nvmlDeviceGetGpuInstanceProfileInfo", "listing any profile with MIG on"
        raise call_error(function, codes.NOT_SUPPORTED, gpu.index, doing)
    instances: tuple[GpuInstance, ...] = ()
    offers: dict[int, tuple[ComputeProfile, ...]] = {}
    if current:
        instances, offers = _Instances(device, running).read(named)
    geometry = _geometry(device, gpu, current, memory, named, offers) if named else _known(gpu, memory)
    return GpuState(
        gpu=gpu,
        mig_current=current,
        mig_pending=pending,
        mode_change_needs_reset=device.once("before Hopper", device.before_hopper),
        geometry=geometry,
        instances=instances,
        busy=outside,
    )


def _known(gpu: GpuIdentity, memory: int) -> GpuGeometry | None:
    """From the catalogue: older drivers list no profiles while MIG is off, or no placements at all.

    `memory`: of this very card, bytes.
    """
    # Reading the catalogue takes a good part of a worker's start, and hardly any worker needs it.
    from mig_manager.planning.catalogue import model_of
    from mig_manager.planning.resized import resized

    model = model_of(gpu)
    if model is None or model.geometry is None:
        return None
    return resized(model.geometry, memory // 2**20)


class _Instances:
    """Reads the GPU instances of one GPU, per profile.

    A MIG device handle stands for a compute instance; by those, an instance without any would stay hidden.
    """

    def __init__(self, device: Device, processes: Sequence[Process]) -> None:
        self.device = device
        self.processes = processes
        self._uuids: dict[tuple[int, int], str] | None = None

    def read(
        self, named: Sequence[tuple[GpuProfileInfo, MigProfile]]
    ) -> tuple[tuple[GpuInstance, ...], dict[int, tuple[ComputeProfile, ...]]]:
        """The GPU instances by placement, and the compute profiles that they offer, by GPU profile id."""
        found: dict[tuple[int, int], GpuInstance] = {}
        offers: dict[int, tuple[ComputeProfile, ...]] = {}
        for profile, name in named:
            for instance in self.device.instances(profile.id):
                compute_profiles = instance.compute_profiles(profile.id)
                if profile.id not in offers:
                    offers[profile.id] = _offered(instance, profile, compute_profiles)
                read = self._instance(instance, name, compute_profiles)
                found[read.profile_id, read.placement.start] = read
        return tuple(sorted(found.values(), key=lambda each: each.placement)), offers

    def _instance(
        self, instance: Instance, name: MigProfile, profiles: Sequence[ComputeProfileInfo]
    ) -> GpuInstance:
        info = instance.info()
        mine = [process for process in self.processes if process.gpu_instance == info.id]
        compute: dict[int, ComputeInstance] = {}
        for profile in profiles:
            for each in instance.compute_instances(profile.id):
                inner = each.info()
                compute[inner.id] = ComputeInstance(
                    id=inner.id,
                    slices=profile.slices,
                    placement=inner.placement,
                    uuid=each.uuid() or self._uuid(info.id, inner.id),
                    busy=any(process.compute_instance == inner.id for process in mine),
                )
        return GpuInstance(
            id=info.id,
            profile=name,
            profile_id=info.profile_id,
            placement=info.placement,
            compute=tuple(compute[key] for key in sorted(compute)),
            busy=bool(mine),
        )

    def _uuid(self, instance_id: int, compute_id: int) -> str | None:
        if self._uuids is None:
            self._uuids = {key: each.uuid for key, each in self.device.mig_devices().items()}
        return self._uuids.get((instance_id, compute_id))


def _offered(
    instance: Instance, profile: GpuProfileInfo, compute: Sequence[ComputeProfileInfo]
) -> tuple[ComputeProfile, ...]:
    usual = {each.slices: each.placements for each in usual_compute(profile.slices)}
    chosen = (choose_compute(compute, slices, profile) for slices in sorted({p.slices for p in compute}))
    return tuple(
        ComputeProfile(
            info.id,
            info.slices,
            info.instances,
            instance.compute_placements(profile.id, info.id) or usual.get(info.slices, ()),
        )
        for info in chosen
        if info is not None
    )


def _geometry(
    device: Device,
    gpu: GpuIdentity,
    current: bool,
    memory: int,
    named: Sequence[tuple[GpuProfileInfo, MigProfile]],
    offers: dict[int, tuple[ComputeProfile, ...]],
) -> GpuGeometry:
    profiles: dict[MigProfile, InstanceProfile] = {}
    for info, name in named:
        if name in profiles:
            # A variant that this version cannot tell from the one before; it stays out of what we create.
            continue
        placements = device.placements(info.id, mig=current) or _known_placements(gpu, info)
        if not placements or not device.creates_at_places:
            # Nothing is created without its placement, so this is a profile that cannot be had.
            continue
        profiles[name] = InstanceProfile(
            name=name,
            profile_id=info.id,
            enum=info.enum,
            memory_mb=info.memory_mb,
            multiprocessors=info.multiprocessors,
            max_instances=most_instances(name, info, placements),
            placements=placements,
            engines=info.engines,
            compute=offers.get(info.id) or usual_compute(info.slices),
            p2p=info.p2p,
        )
    return GpuGeometry(
        model=gpu.model,
        memory_slices=max((p.end for each in profiles.values() for p in each.placements), default=0),
        compute_slices=max((info.slices for info, _ in named), default=0),
        memory_mb=memory // 2**20,
        profiles=tuple(profiles.values()),
        source="device",
    )


def _known_placements(gpu: GpuIdentity, info: GpuProfileInfo) -> tuple[Placement, ...]:
    known = _known(gpu, 0)
    for profile in known.profiles if known is not None else ():
        if (profile.profile_id, profile.enum) == (info.id, info.enum):
            return profile.placements
    return ()
