"""The checkpoint file: the MIG modes and instances of a node, GPU by GPU.

It is the file that nvidia-mig-parted writes (its checkpoint format v1), with three keys more, which that tool
passes over: `Model`, `Profile`, and `Placement` of compute instances. `ProfileID` is not NVML's profile id, but
the number of the profile in its header: NVML_GPU_INSTANCE_PROFILE_*, NVML_COMPUTE_INSTANCE_PROFILE_*.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mig_manager.cli.documents import Document
from mig_manager.cli.errors import InputError
from mig_manager.cli.fields import Field, parse_json, read_text
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.selectors import parse_uuid
from mig_manager.planning.geometry import InstanceProfile, Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

_SHARED = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only one there is."""
_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}
"""Slices by NVML_COMPUTE_INSTANCE_PROFILE_*; 7 is 1_SLICE_REV1, 8 a second profile of 7 slices."""


@dataclass(frozen=True, slots=True)
class SavedInstance:
    """A GPU instance as the file has it."""

    enum: int
    """NVML_GPU_INSTANCE_PROFILE_*."""
    name: str | None
    """Its profile in words; None in a file of nvidia-mig-parted."""
    placement: Placement
    compute: tuple[ComputeInstance, ...]
    """Without placements in a file of nvidia-mig-parted."""
    field: Field
    """Where it stands."""


@dataclass(frozen=True, slots=True)
class SavedGpu:
    """A GPU as the file has it."""

    uuid: str
    model: str | None
    """None in a file of nvidia-mig-parted."""
    enabled: bool
    instances: tuple[SavedInstance, ...]
    field: Field
    """Where it stands."""


def checkpoint_document(inventory: Inventory) -> Document:
    """The GPUs as a checkpoint. GPUs without MIG are left out.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE; an instance has a profile that cannot be named.
    """
    devices = [_device(state) for state in inventory.gpus if state.gpu.mig_capable]
    return {"Version": "v1", "MigState": {"Devices": devices}}


def write_checkpoint(path: Path, text: str) -> None:
    """Write the file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_checkpoint(path: Path) -> tuple[SavedGpu, ...]:
    """Read a checkpoint file; `-` is stdin.

    Raises:
        InputError: the file cannot be read, or is no checkpoint.
    """
    text, file = read_text(path)
    root = parse_json(text, file=file, made_by="mig-manager checkpoint")
    fields = root.mapping(required=("Version", "MigState"), any_case=True)
    if fields["Version"].text() != "v1":
        fields["Version"].fail(f"found {fields['Version'].text()!r}; only v1 is known")
    devices = fields["MigState"].mapping(required=("Devices",), any_case=True)["Devices"]
    gpus: dict[str, SavedGpu] = {}
    for item in _list(devices):
        gpu = _saved_gpu(item)
        if gpu.uuid in gpus:
            item.fail(f"has the UUID {gpu.uuid} of {gpus[gpu.uuid].field.place}")
        gpus[gpu.uuid] = gpu
    if not gpus:
        devices.fail("lists no GPU")
    return tuple(gpus.values())


def _device(state: GpuState) -> Document:
    return {
        "UUID": state.gpu.uuid,
        "Model": state.gpu.model,
        "MigMode": int(state.mig_current),
        "GpuInstances": [_instance(state, instance) for instance in state.instances],
    }


def _instance(state: GpuState, instance: GpuInstance) -> Document:
    profiles = state.geometry.profiles if state.geometry is not None else ()
    profile = next((each for each in profiles if each.profile_id == instance.profile_id), None)
    if profile is None:
        raise MigManagerError(
            Reason.UNSUPPORTED_PROFILE,
            f"GPU {state.gpu.index}: the profile of its {instance.profile} at {instance.placement.start} (ID "
            f"{instance.profile_id}) is not one that can be asked for again",
        )
    return {
        "Profile": str(instance.profile),
        "ProfileID": profile.enum,
        "Placement": _place(instance.placement),
        "ComputeInstances": [_compute(profile, compute) for compute in instance.compute],
    }


def _compute(profile: InstanceProfile, compute: ComputeInstance) -> Document:
    # The ids of compute profiles are the enum's own numbers on every GPU seen.
    enums = [offer.profile_id for offer in profile.compute if offer.slices == compute.slices]
    usual = [enum for enum, slices in _COMPUTE_SLICES.items() if slices == compute.slices]
    document: dict[str, Any] = {"ProfileID": (enums or usual)[0], "EngProfileID": _SHARED}
    if compute.placement is not None:
        document["Placement"] = _place(compute.placement)
    return document


def _place(placement: Placement) -> Document:
    return {"Start": placement.start, "Size": placement.size}


def _list(field: Field) -> list[Field]:
    """A list as Go writes it: null for an empty one."""
    return [] if field.value is None else field.items()


def _saved_gpu(field: Field) -> SavedGpu:
    fields = field.mapping(required=("UUID", "MigMode"), optional=("Model", "GpuInstances"), any_case=True)
    uuid = parse_uuid(fields["UUID"].text())
    if uuid is None:
        fields["UUID"].wrong("the UUID of a GPU, such as GPU-5d1a3e2c-0a6b-4c55-9d4c-1f0c2b3a4d5e")
    mode = fields["MigMode"].whole()
    if mode not in (0, 1):
        fields["MigMode"].fail(f"found {mode}; allowed is 0 or 1")
    instances: list[SavedInstance] = []
    for item in _list(fields["GpuInstances"]) if "GpuInstances" in fields else []:
        instance = _saved_instance(item)
        for other in instances:
            if instance.placement.mask & other.placement.mask:
                item.fail(f"overlaps {other.field.place}")
        instances.append(instance)
    if instances and not mode:
        fields["GpuInstances"].fail("a GPU with MigMode 0 has no instances; allowed is []")
    model = fields["Model"].text() if "Model" in fields else None
    return SavedGpu(uuid, model, bool(mode), tuple(instances), field)


def _saved_instance(field: Field) -> SavedInstance:
    fields = field.mapping(
        required=("ProfileID", "Placement"), optional=("Profile", "ComputeInstances"), any_case=True
    )
    listed = _list(fields["ComputeInstances"]) if "ComputeInstances" in fields else []
    compute = [_saved_compute(item) for item in listed]
    for at, (item, each) in enumerate(zip(listed, compute, strict=True)):
        for other in compute[:at]:
            if each.placement and other.placement and each.placement.mask & other.placement.mask:
                item.fail("overlaps a compute instance before it")
    return SavedInstance(
        enum=fields["ProfileID"].whole(),
        name=fields["Profile"].text() if "Profile" in fields else None,
        placement=_saved_place(fields["Placement"]),
        compute=tuple(compute),
        field=field,
    )


def _saved_compute(field: Field) -> ComputeInstance:
    fields = field.mapping(required=("ProfileID",), optional=("EngProfileID", "Placement"), any_case=True)
    slices = _COMPUTE_SLICES.get(fields["ProfileID"].whole())
    if slices is None:
        fields["ProfileID"].fail(
            f"found {fields['ProfileID'].value}; known are {', '.join(map(str, _COMPUTE_SLICES))}"
        )
    if "EngProfileID" in fields and fields["EngProfileID"].whole() != _SHARED:
        fields["EngProfileID"].fail(f"found {fields['EngProfileID'].value}; only {_SHARED} is known")
    placement = _saved_place(fields["Placement"]) if "Placement" in fields else None
    return ComputeInstance(id=None, slices=slices, placement=placement)


def _saved_place(field: Field) -> Placement:
    fields = field.mapping(required=("Start", "Size"), any_case=True)
    start, size = fields["Start"].whole(), fields["Size"].whole()
    if size < 1 or start + size > 64:
        field.fail(f"found {start}:{size}; no GPU has such slices")
    return Placement(start, size)
