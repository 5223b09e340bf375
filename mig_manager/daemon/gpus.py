"""The annotation mig-manager/gpus: the GPUs as last read, for all that have no access to the node.

It is enough to plan by. All annotations of a Node share 256 KiB and travel with each of its heartbeats, so what the
catalogue tells of a model is not written: a digest shows that the reader's catalogue says the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.compact import from_compact, geometry_digest, to_compact
from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

_FACTS = ("index", "uuid", "busId", "model", "mig", "instances")
_INSTANCE_FACTS = ("profile", "start", "size", "compute")
_MOST_SLICES = 64
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a text that is no such annotation raises."""
_NO_ID = -1
"""For the profile of an instance that its GPU does not offer any more."""


class AnnotationError(ValueError):
    """The annotation cannot be read. `str(error)` says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an annotation says."""

    inventory: Inventory
    """Without the driver's version, ids of instances, UUIDs of MIG devices, and without what is busy."""
    missing: tuple[str, ...]
    """What it does not tell and had to be assumed, in words; empty as a rule."""


def gpu_facts(inventory: Inventory) -> str:
    """What makes the GPUs what they are: JSON list, one object a GPU. No version has another form of it."""
    return _compact_json([_facts(state) for state in inventory.gpus])


def facts_in(annotation: str) -> str:
    """The facts of an annotation that this version has written, or an older one; empty where it has none."""
    try:
        gpus = json.loads(annotation)
        facts = [{key: gpu[key] for key in _FACTS} for gpu in gpus]
        for gpu in facts:
            gpu["instances"] = [{key: one[key] for key in _INSTANCE_FACTS} for one in gpu["instances"]]
    except _NONSENSE:
        return ""
    return _compact_json(facts)


def gpus_annotation(inventory: Inventory) -> str:
    """The annotation: the facts, and what else a plan needs."""
    documents: list[dict[str, Any]] = []
    told: dict[GpuGeometry, int] = {}
    for state in inventory.gpus:
        document = _facts(state)
        gpu = state.gpu
        document["pci"] = f"{gpu.device_id:08X}:{gpu.subsystem_id:08X}"
        if state.mig_pending != state.mig_current:
            document["pending"] = state.mig_pending
        if state.mode_change_needs_reset:
            document["reset"] = True
        if state.geometry is not None:
            document |= _geometry_told(state.geometry, gpu, told)
        for instance, written in zip(state.instances, document["instances"], strict=True):
            if instance.profile_id != _profile_id(state.geometry, instance.profile):
                written["id"] = instance.profile_id
            starts = [None if one.placement is None else one.placement.start for one in instance.compute]
            if starts != [place and place.start for place in _usual_places(instance)]:
                written["at"] = starts
        documents.append(document)
    return _compact_json(documents)


def inventory_from_annotation(annotation: str) -> Reading:
    """The GPUs that an annotation tells of, as far as it tells.

    Raises:
        AnnotationError: it makes no sense.
    """
    missing: list[str] = []
    states: list[GpuState] = []
    try:
        for document in json.loads(annotation):
            states.append(_state(document, states, missing))
    except _NONSENSE as error:
        raise AnnotationError(f"{type(error).__name__}: {error}") from error
    return Reading(Inventory("", tuple(states)), tuple(dict.fromkeys(missing)))


def _facts(state: GpuState) -> dict[str, Any]:
    return {
        "index": state.gpu.index,
        "uuid": state.gpu.uuid,
        "busId": state.gpu.bus_id,
        "model": state.gpu.model,
        "mig": state.mig_current if state.gpu.mig_capable else None,
        "instances": [
            {
                "profile": str(instance.profile),
                "start": instance.placement.start,
                "size": instance.placement.size,
                "compute": [str(instance.profile.split(one.slices)) for one in instance.compute],
            }
            for instance in state.instances
        ],
    }


def _geometry_told(geometry: GpuGeometry, gpu: GpuIdentity, told: dict[GpuGeometry, int]) -> dict[str, Any]:
    """The geometry: a digest where the catalogue has it, the index of a GPU that has the same, or the whole."""
    known = _catalogue_geometry(gpu)
    if known is not None and geometry_digest(known) == geometry_digest(geometry):
        assumed = {"assumed": True} if geometry.source == "catalogue" else {}
        return {"geometry": geometry_digest(geometry), **assumed}
    if geometry in told:
        return {"geometry": told[geometry]}
    told[geometry] = gpu.index
    return {"geometry": to_compact(geometry)}


def _state(document: Mapping[str, Any], before: list[GpuState], missing: list[str]) -> GpuState:
    current = document["mig"]
    gpu = _identity(document, missing)
    if current is None:
        return GpuState(gpu, False, False, False, None)
    geometry = _geometry(document, gpu, before, missing)
    pending = document.get("pending", current)
    return GpuState(
        gpu=gpu,
        mig_current=bool(current),
        mig_pending=bool(pending),
        mode_change_needs_reset=bool(document.get("reset")) if "pci" in document else _resets(gpu),
        geometry=geometry,
        instances=tuple(_instance(each, geometry) for each in document["instances"]),
    )


def _identity(document: Mapping[str, Any], missing: list[str]) -> GpuIdentity:
    ids = str(document.get("pci", "")).partition(":")
    gpu = GpuIdentity(
        index=int(document["index"]),
        uuid=str(document["uuid"]),
        bus_id=str(document["busId"]),
        model=str(document["model"]),
        device_id=int(ids[0] or "0", 16),
        subsystem_id=int(ids[2] or "0", 16),
        mig_capable=document["mig"] is not None,
    )
    if "pci" in document:
        return gpu
    missing.append("PCI ids, so that those of the model's usual board are assumed")
    missing.append("whether a change of the MIG mode is pending")
    from mig_manager.planning.catalogue import model_of

    model = model_of(gpu)
    if model is None:
        return gpu
    return replace(
        gpu,
        device_id=model.device_ids[0],
        subsystem_id=model.subsystem_ids[0] if model.subsystem_ids else 0,
    )


def _geometry(
    document: Mapping[str, Any], gpu: GpuIdentity, before: list[GpuState], missing: list[str]
) -> GpuGeometry | None:
    said = document.get("geometry")
    if isinstance(said, Mapping):
        return from_compact(said, gpu.model)
    if isinstance(said, int):
        return {state.gpu.index: state for state in before}[said].geometry
    if said is None and "pci" in document:
        return None
    known = _catalogue_geometry(gpu)
    if said is not None and known is not None and geometry_digest(known) == said:
        return known if document.get("assumed") else replace(known, source="device")
    if known is None:
        missing.append(f"the profiles of {gpu.model}, a model that this version does not know")
    elif said is None:
        missing.append("the profiles, so that those of the catalogue are assumed")
    else:
        missing.append(
            f"the profiles of {gpu.model}, which this version knows otherwise than the daemon does"
        )
    return known


def _catalogue_geometry(gpu: GpuIdentity) -> GpuGeometry | None:
    from mig_manager.planning.catalogue import model_of

    model = model_of(gpu)
    return None if model is None or model.geometry is None else replace(model.geometry, model=gpu.model)


def _resets(gpu: GpuIdentity) -> bool:
    from mig_manager.planning.catalogue import model_of

    model = model_of(gpu)
    return model is not None and model.mode_change_needs_reset


def _instance(document: Mapping[str, Any], geometry: GpuGeometry | None) -> GpuInstance:
    profile = MigProfile.parse(document["profile"])
    placement = Placement(int(document["start"]), int(document["size"]))
    if placement.start < 0 or placement.size < 1 or placement.end > _MOST_SLICES:
        raise ValueError(f"no GPU has the memory slices of {profile} at {placement.start}:{placement.size}")
    slices = [MigProfile.parse(device).compute_slices for device in document["compute"]]
    instance = GpuInstance(
        id=None,
        profile=profile,
        profile_id=int(document.get("id", _profile_id(geometry, profile))),
        placement=placement,
        compute=tuple(ComputeInstance(None, count, None) for count in slices),
    )
    usual = _usual_places(instance)
    starts = document.get("at")
    places = usual if starts is None else [_place(start, n) for start, n in zip(starts, slices, strict=True)]
    compute = zip(instance.compute, places, strict=True)
    return replace(instance, compute=tuple(replace(one, placement=place) for one, place in compute))


def _usual_places(instance: GpuInstance) -> list[Placement | None]:
    """Where its compute instances lie as a rule: one that fills it, from the first slice on; else not known."""
    whole = [one.slices for one in instance.compute] == [instance.profile.gpu_slices]
    if whole:
        return [Placement(0, instance.profile.gpu_slices)]
    return [None for _ in instance.compute]


def _place(start: int | None, slices: int) -> Placement | None:
    return None if start is None else Placement(int(start), slices)


def _profile_id(geometry: GpuGeometry | None, profile: MigProfile) -> int:
    profiles = geometry.profiles if geometry is not None else ()
    return next((each.profile_id for each in profiles if each.name == profile), _NO_ID)


def _compact_json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
