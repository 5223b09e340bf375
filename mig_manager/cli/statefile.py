"""Reads a state of GPUs from a file in the format that `export -o json` prints.

Every mistake is an InputError that names the file, the place in it (`gpus[1].instances[0].start`), what was
found and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mig_manager.cli.documents import UNKNOWN_UUID, span, usual_subsystem
from mig_manager.cli.fields import Field, parse_json, read_text
from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError
from mig_manager.layouts.selectors import parse_bus_id
from mig_manager.planning.catalogue import GpuModel, find_model, model_of
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.profiles import resolve_profile
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory


def read_state(path: Path) -> Inventory:
    """Read a state file; `-` is stdin.

    Raises:
        InputError: the file cannot be read, or does not describe GPUs that can be.
    """
    text, file = read_text(path)
    return parse_state(text, file=file)


def parse_state(text: str, *, file: str) -> Inventory:
    """Read the text of a state file.

    Raises:
        InputError: the text does not describe GPUs that can be.
    """
    document = parse_json(text, file=file, made_by="mig-manager export -o json")
    root = document.mapping(required=("version", "gpus"))
    version = root["version"].text()
    if version != "v1":
        root["version"].fail(f"found {version!r}; only v1 is known")
    states: dict[int, GpuState] = {}
    names: dict[str, int] = {}
    for position, item in enumerate(root["gpus"].items()):
        state = _gpu(item, position)
        gpu = state.gpu
        if gpu.index in states:
            item.fail(f"GPU {gpu.index} stands in the file twice")
        for key, name in (("uuid", gpu.uuid), ("bus_id", gpu.bus_id)):
            if name and names.setdefault(name, gpu.index) != gpu.index:
                item.fail(f"has the {key} {name} of GPU {names[name]}")
        states[gpu.index] = state
    if not states:
        root["gpus"].fail("lists no GPU")
    return Inventory(driver_version="", gpus=tuple(states[index] for index in sorted(states)))


def _gpu(field: Field, position: int) -> GpuState:
    fields = field.mapping(
        required=("model", "mig"),
        optional=("index", "uuid", "bus_id", "instances", "pending", "busy", "device_id", "subsystem_id"),
    )
    model, name = _model(fields)
    enabled = fields["mig"].flag()
    pending = fields["pending"].flag() if "pending" in fields else enabled
    if model.geometry is None and (enabled or pending):
        fields["mig"].fail(f"{model.names[0]} has no MIG; allowed is false")
    index = fields["index"].whole() if "index" in fields else position
    instances = _instances(fields["instances"], model.geometry) if "instances" in fields else ()
    if instances and not enabled:
        fields["instances"].fail("a GPU with MIG off has no instances; allowed is []")
    return GpuState(
        gpu=GpuIdentity(
            index=index,
            uuid=_uuid(fields) or f"{UNKNOWN_UUID}{index}",
            bus_id=_bus_id(fields),
            model=name,
            device_id=_pci_id(fields, "device_id", model.device_ids[0]),
            subsystem_id=_pci_id(fields, "subsystem_id", usual_subsystem(model)),
            mig_capable=model.geometry is not None,
        ),
        mig_current=enabled,
        mig_pending=pending,
        mode_change_needs_reset=model.mode_change_needs_reset,
        geometry=model.geometry,
        instances=instances,
        busy=fields["busy"].flag() if "busy" in fields else False,
    )


def _model(fields: dict[str, Field]) -> tuple[GpuModel, str]:
    """The model, by its name or else by its PCI ids, and the product name that NVML would report."""
    text = fields["model"].text()
    try:
        model = find_model(text)
    except MigManagerError as error:
        ids = [_pci_id(fields, key, 0) for key in ("device_id", "subsystem_id")]
        known = model_of(GpuIdentity(0, "", "", text, ids[0], ids[1], True))
        if known is None:
            fields["model"].fail(error.message)
        return known, text
    return model, model.name


def _uuid(fields: dict[str, Field]) -> str | None:
    if "uuid" not in fields or fields["uuid"].value is None:
        return None
    uuid = fields["uuid"].text()
    if not uuid.isprintable():
        fields["uuid"].wrong("a text that can be printed")
    return uuid


def _bus_id(fields: dict[str, Field]) -> str:
    if "bus_id" not in fields:
        return ""
    text = fields["bus_id"].text()
    bus_id = parse_bus_id(text)
    if bus_id is None:
        fields["bus_id"].fail(f"found {text!r}; allowed is a PCI bus id such as 00000000:07:00.0")
    return bus_id


def _pci_id(fields: dict[str, Field], key: str, usual: int) -> int:
    if key not in fields:
        return usual
    text = fields[key].text()
    if re.fullmatch("0x[0-9A-Fa-f]{1,8}", text) is None:
        fields[key].fail(f"found {text!r}; allowed is a PCI id such as 0x20B210DE")
    return int(text, 16)


def _instances(field: Field, geometry: GpuGeometry | None) -> tuple[GpuInstance, ...]:
    items = field.items()
    if geometry is None:
        if items:
            field.fail("this model has no MIG, thus no instances; allowed is []")
        return ()
    placed: list[tuple[Field, GpuInstance]] = []
    for item in items:
        fields = item.mapping(required=("profile", "start"), optional=("size", "compute", "busy"))
        profile = _profile(fields["profile"], geometry)
        instance = GpuInstance(
            id=None,
            profile=profile.name,
            profile_id=profile.profile_id,
            placement=_placement(fields, profile, geometry),
            compute=_compute(fields, profile, geometry),
            busy=fields["busy"].flag() if "busy" in fields else False,
        )
        for other, earlier in placed:
            shared = instance.placement.mask & earlier.placement.mask
            if shared:
                item.fail(
                    f"{instance.profile} at {span(instance.placement)} lies on memory slice "
                    f"{shared.bit_length() - 1}, where {other.place} ({earlier.profile} at "
                    f"{span(earlier.placement)}) lies as well"
                )
        placed.append((item, instance))
        if sum(earlier.profile == profile.name for _, earlier in placed) > profile.max_instances:
            item.fail(f"{geometry.model} holds at most {profile.max_instances} x {profile.name}")
    return tuple(sorted((instance for _, instance in placed), key=lambda instance: instance.placement))


def _profile(field: Field, geometry: GpuGeometry) -> InstanceProfile:
    try:
        return resolve_profile(geometry, MigProfile.parse(field.text()))
    except ProfileSyntaxError as error:
        field.fail(str(error))
    except MigManagerError as error:
        field.fail(error.message)


def _placement(fields: dict[str, Field], profile: InstanceProfile, geometry: GpuGeometry) -> Placement:
    start = fields["start"].whole()
    allowed = ", ".join(span(placement) for placement in profile.placements)
    fitting = [placement for placement in profile.placements if placement.start == start]
    if not fitting:
        fields["start"].fail(
            f"no {profile.name} of {geometry.model} starts at {start}; allowed slices: {allowed}"
        )
    if "size" not in fields:
        return fitting[0]
    size = fields["size"].whole()
    if Placement(start, size) not in fitting:
        fields["size"].fail(
            f"no {profile.name} of {geometry.model} has {size} slices at {start}; allowed slices: {allowed}"
        )
    return Placement(start, size)


def _compute(
    fields: dict[str, Field], profile: InstanceProfile, geometry: GpuGeometry
) -> tuple[ComputeInstance, ...]:
    busy = fields["busy"].flag() if "busy" in fields else False
    if "compute" not in fields:
        return (ComputeInstance(id=None, slices=profile.name.gpu_slices, placement=None, busy=busy),)
    offered = {item.slices: item.max_instances for item in profile.compute}
    slices: list[int] = []
    for item in fields["compute"].items():
        try:
            device = MigProfile.parse(item.text())
            holder = resolve_profile(geometry, device.gpu_instance).name
        except ProfileSyntaxError as error:
            item.fail(str(error))
        except MigManagerError as error:
            item.fail(error.message)
        if holder != profile.name or device.compute_slices not in offered:
            names = ", ".join(str(profile.name.split(count)) for count in offered)
            item.fail(f"found {device}; a {profile.name} holds {names}")
        slices.append(device.compute_slices)
        if slices.count(device.compute_slices) > offered[device.compute_slices] or (
            sum(slices) > profile.name.gpu_slices
        ):
            fields["compute"].fail(f"{_total(slices)} compute slices do not fit into a {profile.name}")
    return tuple(ComputeInstance(id=None, slices=count, placement=None, busy=busy) for count in slices)


def _total(slices: Iterable[int]) -> str:
    return " + ".join(map(str, slices))
