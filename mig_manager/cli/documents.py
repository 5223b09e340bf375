"""The documents that the commands print as JSON or YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import LayoutBook
from mig_manager.layouts.layout import GpuIdentity, LayoutEntry
from mig_manager.layouts.models import same_model
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import GpuModel, model_of
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, KeptInstance, NewInstance, NodePlan
from mig_manager.planning.state import GpuInstance, GpuState, Inventory

Document = dict[str, Any]

_PLAIN = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

UNKNOWN_UUID = "unknown-"
"""What the UUIDs begin with that stand in for missing ones; every GPU of a node needs its own."""

_SHARED_BY_SHAPE = frozenset({"compute", "engines", "placements"})


def plan_document(plan: NodePlan, inventory: Inventory) -> Document:
    """A feasible plan, as `plan -o json` prints it.

    `mig` has `pending` only where the mode waits for a reset: that alone is a change, whatever else stays.
    """
    states = {state.gpu.index: state for state in inventory.gpus}
    return {
        "layout": plan.layout,
        "feasible": True,
        "reason": None,
        "message": None,
        "gpus": [_gpu_plan(item, states[item.gpu.index]) for item in plan.gpus],
        "untouched": list(plan.untouched),
    }


def refusal_document(layout: str | None, error: MigManagerError) -> Document:
    """A layout that these GPUs cannot take, or that cannot be read, in the same shape."""
    return {
        "layout": layout,
        "feasible": False,
        "reason": str(error.reason),
        "message": error.message,
        "gpus": [],
        "untouched": [],
    }


def state_document(inventory: Inventory) -> Document:
    """The GPUs as they are, as `export -o json` prints them and `plan --current` reads them.

    Keys beyond the usual ones stand only where the usual ones would not tell: `bus_id` where it is known,
    `pending` where the MIG mode waits for a reset, `busy` where a process runs on the whole GPU, `device_id` and
    `subsystem_id` where the model has several.
    """
    return {"version": "v1", "gpus": [_gpu_state(state) for state in inventory.gpus]}


def layout_document(inventory: Inventory, name: str) -> str:
    """The GPUs as they are, as a layout file with one layout.

    GPUs that look alike share an entry. GPUs without MIG are left out. Compute instances appear by their
    names (`1c.3g.40gb`); a GPU instance without any is not a MIG device and cannot be written down.
    """
    groups: dict[tuple[bool, tuple[str, ...]], list[GpuState]] = {}
    capable = [state for state in inventory.gpus if state.gpu.mig_capable]
    for state in capable:
        devices = sorted(device for item in state.instances for device in devices_of(item))
        groups.setdefault((state.mig_current, tuple(map(str, devices))), []).append(state)
    lines = ["version: v1", "mig-configs:", f"  {_yaml_text(name)}:"]
    for (enabled, profiles), states in groups.items():
        indices = [state.gpu.index for state in states]
        models = dict.fromkeys(state.gpu.model for state in states)
        lines += [
            f"    # {', '.join(models)}",
            f"    - devices: {'all' if len(groups) == 1 else indices}",
            f"      mig-enabled: {str(enabled).lower()}",
        ]
        if enabled:
            counts = {profile: profiles.count(profile) for profile in profiles}
            lines.append("      mig-devices:" + ("" if counts else " {}"))
            lines += [f"        {profile}: {count}" for profile, count in counts.items()]
    if not groups:
        lines += ["    # no GPU of this node has MIG", "    - devices: all", "      mig-enabled: false"]
    return "\n".join(lines) + "\n"


def book_document(book: LayoutBook, gpus: Sequence[GpuIdentity]) -> str:
    """Generated layouts as a layout file, in the part of the format that nvidia-mig-parted reads as well.

    Entries of models become entries with the device ids of those GPUs; where a device id is not theirs alone,
    and where an entry lists UUIDs, the GPUs stand by index.
    """
    lines = ["version: v1", "mig-configs:"]
    for layout in book.layouts.values():
        lines.append(f"  {_yaml_text(layout.name)}:")
        for entry in layout.entries:
            lines += _entry_lines(entry, gpus)
    return "\n".join(lines) + "\n"


def known_uuid(gpu: GpuIdentity) -> str | None:
    """The UUID of a GPU; None where the file that the GPU was read from gives none."""
    return None if gpu.uuid.startswith(UNKNOWN_UUID) else gpu.uuid


def usual_subsystem(model: GpuModel | None) -> int:
    """The PCI subsystem id that a GPU of that model has where a state file says nothing; 0 where none is known."""
    return model.subsystem_ids[0] if model is not None and model.subsystem_ids else 0


def devices_of(instance: GpuInstance) -> list[MigProfile]:
    """The MIG devices that an instance holds."""
    return [instance.profile.split(item.slices) for item in instance.compute]


def span(placement: Placement) -> str:
    """The slices of a placement: `4`, `0-3`."""
    return str(placement.start) if placement.size == 1 else f"{placement.start}-{placement.end - 1}"


def _gpu_plan(plan: GpuPlan, state: GpuState) -> Document:
    document: Document = {
        "index": plan.gpu.index,
        "uuid": known_uuid(plan.gpu),
        "model": plan.gpu.model,
        "mig": {"current": plan.mig.current, "target": plan.mig.target, "reset": plan.mig.reset},
        "keep": [_kept(item) for item in plan.keep],
        "destroy": [_instance(item) for item in plan.destroy],
        "create": [_new(item) for item in plan.create],
    }
    if plan.mig.pending != plan.mig.current:
        document["mig"]["pending"] = plan.mig.pending
    assumed = assumed_fields(plan, state)
    if assumed:
        document["assumed"] = list(assumed)
    return document


def assumed_fields(plan: GpuPlan, state: GpuState) -> tuple[str, ...]:
    """What the plan takes for granted: fields of the catalogue that were only read for the model's family.

    Empty where no more is assumed than what every GPU of the same shape shares.
    """
    if state.geometry is None or state.geometry.source == "device":
        return ()
    used = {item.profile for item in plan.create} | {item.instance.profile for item in plan.keep}
    assumed = {name for item in state.geometry.profiles if item.name in used for name in item.assumed}
    return tuple(sorted(assumed)) if assumed - _SHARED_BY_SHAPE else ()


def _kept(kept: KeptInstance) -> Document:
    slices = [item.slices for item in kept.stays]
    slices += [item.slices for item in kept.create]
    return _placed(kept.instance.profile, kept.instance.placement, slices)


def _instance(instance: GpuInstance) -> Document:
    return _placed(instance.profile, instance.placement, [item.slices for item in instance.compute])


def _new(new: NewInstance) -> Document:
    return _placed(new.profile, new.placement, [item.slices for item in new.compute])


def _placed(profile: MigProfile, placement: Placement, slices: Sequence[int]) -> Document:
    document: Document = {"profile": str(profile), "start": placement.start, "size": placement.size}
    if list(slices) != [profile.gpu_slices]:
        document["compute"] = _names(profile, slices)
    return document


def _names(profile: MigProfile, slices: Iterable[int]) -> list[str]:
    return [str(profile.split(count)) for count in sorted(slices, reverse=True)]


def _gpu_state(state: GpuState) -> Document:
    document: Document = {"index": state.gpu.index, "uuid": known_uuid(state.gpu)}
    if state.gpu.bus_id:
        document["bus_id"] = state.gpu.bus_id
    document |= {"model": state.gpu.model, "mig": state.mig_current}
    if state.mig_pending != state.mig_current:
        document["pending"] = state.mig_pending
    if state.busy:
        document["busy"] = True
    model = model_of(state.gpu)
    named = model is not None and any(same_model(name, state.gpu.model) for name in model.names)
    if model is None or not named or state.gpu.device_id not in model.device_ids[:1]:
        document["device_id"] = f"0x{state.gpu.device_id:08X}"
    if state.gpu.subsystem_id != usual_subsystem(model):
        document["subsystem_id"] = f"0x{state.gpu.subsystem_id:08X}"
    document["instances"] = [
        {
            "profile": str(item.profile),
            "start": item.placement.start,
            "size": item.placement.size,
            "compute": _names(item.profile, [compute.slices for compute in item.compute]),
            "busy": item.busy,
        }
        for item in state.instances
    ]
    return document


def _entry_lines(entry: LayoutEntry, gpus: Sequence[GpuIdentity]) -> list[str]:
    """One generated entry."""
    chosen = [
        gpu
        for gpu in gpus
        if (entry.devices == "all" or gpu.uuid in entry.devices)
        and (not entry.gpu_models or any(same_model(model, gpu.model) for model in entry.gpu_models))
    ]
    ids = dict.fromkeys(gpu.device_id for gpu in chosen)
    alone = all(gpu in chosen for gpu in gpus if gpu.device_id in ids)
    lines = [f"    # {', '.join(dict.fromkeys(gpu.model for gpu in chosen))}"] if entry.gpu_models else []
    if entry.devices == "all" and not entry.gpu_models:
        lines.append("    - devices: all")
    elif alone and entry.devices == "all":
        listed = ", ".join(f'"0x{device_id:08X}"' for device_id in ids)
        lines += [f"    - device-filter: [{listed}]", "      devices: all"]
    else:
        lines.append(f"    - devices: {[gpu.index for gpu in chosen]}")
    lines.append(f"      mig-enabled: {str(entry.mig_enabled).lower()}")
    if entry.mig_enabled:
        lines.append("      mig-devices:" + ("" if entry.mig_devices else " {}"))
        lines += [f"        {profile}: {count}" for profile, count in entry.mig_devices]
    return lines


def _yaml_text(text: str) -> str:
    """A text as YAML writes it: quoted where it would be read as something else."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text)
