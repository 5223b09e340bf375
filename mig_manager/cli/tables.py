"""Profiles, placements and instances of GPUs, as tables for people and as documents for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from mig_manager.cli.documents import Document, devices_of, known_uuid
from mig_manager.planning.geometry import InstanceProfile, Placement
from mig_manager.planning.profiles import in_order
from mig_manager.planning.room import free_places, room_for
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState

_UNKNOWN = "-"
_PROFILE_HEAD = "GPU >NAME ID FREE/TOTAL GIB P2P SM DEC ENC CE JPEG OFA"
_PLACEMENT_HEAD = "GPU >NAME ID >PLACEMENTS >FREE"
_INSTANCE_HEAD = "GPU >NAME PROFILE INSTANCE PLACEMENT >COMPUTE >USE"
_COMPUTE_HEAD = "GPU INSTANCE >NAME PROFILE COMPUTE PLACEMENT >USE >UUID"


def profile_table(states: Sequence[GpuState]) -> list[str]:
    """The profiles that GPUs offer, with the columns of nvidia-smi mig -lgip."""
    return _table(_PROFILE_HEAD, [_profile_cells(state, each) for state in states for each in _offers(state)])


def placement_table(states: Sequence[GpuState]) -> list[str]:
    """Where instances of each profile may lie, as nvidia-smi mig -lgipp has it, and what of that is free."""
    return _table(
        _PLACEMENT_HEAD,
        [
            (
                str(state.gpu.index),
                str(profile.name),
                str(profile.profile_id),
                _places(profile.placements),
                _places(free_places(state, profile)) if state.mig_current else _UNKNOWN,
            )
            for state in states
            for profile in _offers(state)
        ],
    )


def instance_table(states: Sequence[GpuState]) -> list[str]:
    """The GPU instances, with the columns of nvidia-smi mig -lgi, and what is in each."""
    return _table(
        _INSTANCE_HEAD,
        [
            (
                str(state.gpu.index),
                str(instance.profile),
                str(instance.profile_id),
                _id(instance.id),
                _place(instance.placement),
                ", ".join(map(str, devices_of(instance))) or "none",
                "busy" if instance.busy else _UNKNOWN,
            )
            for state in states
            for instance in state.instances
        ],
    )


def compute_table(states: Sequence[GpuState]) -> list[str]:
    """The compute instances, with the columns of nvidia-smi mig -lci, and the MIG devices that they are."""
    return _table(
        _COMPUTE_HEAD,
        [
            (
                str(state.gpu.index),
                _id(instance.id),
                str(instance.profile.split(compute.slices)),
                _id(_compute_profile(state, instance, compute)),
                _id(compute.id),
                _place(compute.placement),
                "busy" if compute.busy else _UNKNOWN,
                compute.uuid or _UNKNOWN,
            )
            for state in states
            for instance in state.instances
            for compute in instance.compute
        ],
    )


def without_rows(states: Iterable[GpuState]) -> list[str]:
    """Why GPUs have no rows in a table of instances, a line each."""
    return [
        f"GPU {state.gpu.index}: {_why_empty(state)}"
        for state in states
        if not state.mig_current or not state.instances
    ]


def profile_document(states: Sequence[GpuState]) -> Document:
    """The profiles with all that is known of them."""
    return {
        "gpus": [
            {**_gpu(state), "profiles": [_profile(state, p) for p in _offers(state)]} for state in states
        ]
    }


def placement_document(states: Sequence[GpuState]) -> Document:
    """The placements of each profile; `free` is null where MIG is off."""
    return {
        "gpus": [
            {
                **_gpu(state),
                "profiles": [
                    {
                        "name": str(profile.name),
                        "id": profile.profile_id,
                        "placements": [_span(place) for place in profile.placements],
                        "free": [_span(place) for place in free_places(state, profile)]
                        if state.mig_current
                        else None,
                    }
                    for profile in _offers(state)
                ],
            }
            for state in states
        ]
    }


def instance_document(states: Sequence[GpuState]) -> Document:
    """The GPU instances with their compute instances."""
    return {
        "gpus": [
            {**_gpu(state), "instances": [_instance(state, instance) for instance in state.instances]}
            for state in states
        ]
    }


def _offers(state: GpuState) -> list[InstanceProfile]:
    return in_order(state.geometry.profiles) if state.geometry is not None else []


def _profile_cells(state: GpuState, profile: InstanceProfile) -> tuple[str, ...]:
    engines = profile.engines
    free = str(room_for(state, profile)) if state.mig_current else _UNKNOWN
    numbers = (
        profile.multiprocessors,
        engines.decoder,
        engines.encoder,
        engines.copy,
        engines.jpeg,
        engines.ofa,
    )
    return (
        str(state.gpu.index),
        str(profile.name),
        str(profile.profile_id),
        f"{free}/{profile.max_instances}",
        f"{profile.memory_mb / 1024:.2f}",
        {True: "Yes", False: "No", None: _UNKNOWN}[profile.p2p],
        *map(_id, numbers),
    )


def _profile(state: GpuState, profile: InstanceProfile) -> Document:
    engines = profile.engines
    return {
        "name": str(profile.name),
        "id": profile.profile_id,
        "free": room_for(state, profile) if state.mig_current else None,
        "total": profile.max_instances,
        "memory_mib": profile.memory_mb,
        "p2p": profile.p2p,
        "multiprocessors": profile.multiprocessors,
        "decoders": engines.decoder,
        "encoders": engines.encoder,
        "copy_engines": engines.copy,
        "jpeg": engines.jpeg,
        "ofa": engines.ofa,
    }


def _instance(state: GpuState, instance: GpuInstance) -> Document:
    return {
        "id": instance.id,
        "profile": str(instance.profile),
        "profile_id": instance.profile_id,
        **_span(instance.placement),
        "busy": instance.busy,
        "compute": [
            {
                "id": compute.id,
                "device": str(instance.profile.split(compute.slices)),
                "profile_id": _compute_profile(state, instance, compute),
                **(_span(compute.placement) if compute.placement is not None else {}),
                "uuid": compute.uuid,
                "busy": compute.busy,
            }
            for compute in instance.compute
        ],
    }


def _gpu(state: GpuState) -> Document:
    return {
        "index": state.gpu.index,
        "uuid": known_uuid(state.gpu),
        "model": state.gpu.model,
        "mig": state.mig_current,
    }


def _span(placement: Placement) -> Document:
    return {"start": placement.start, "size": placement.size}


def _compute_profile(state: GpuState, instance: GpuInstance, compute: ComputeInstance) -> int | None:
    profiles = state.geometry.profiles if state.geometry is not None else ()
    offers = (o for p in profiles if p.profile_id == instance.profile_id for o in p.compute)
    return next((offer.profile_id for offer in offers if offer.slices == compute.slices), None)


def _why_empty(state: GpuState) -> str:
    if not state.gpu.mig_capable:
        return "no MIG"
    return "no instances" if state.mig_current else "MIG is off"


def _id(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _place(placement: Placement | None) -> str:
    return _UNKNOWN if placement is None else f"{placement.start}:{placement.size}"


def _places(places: Sequence[Placement]) -> str:
    """As nvidia-smi writes them: `{0,2,4}:2`."""
    by_size = groupby(sorted(places, key=attrgetter("size", "start")), key=attrgetter("size"))
    texts = [f"{{{','.join(str(place.start) for place in alike)}}}:{size}" for size, alike in by_size]
    return " ".join(texts) or "none"


def _table(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under their names, at the right; those with a > before the name at the left."""
    titles = head.split()
    left = [title.startswith(">") for title in titles]
    names = [title.removeprefix(">") for title in titles]
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if at_left else f"{cell:>{width}}"
            for cell, width, at_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in (names, *rows)
    ]
