"""A geometry in few letters, for places where every byte counts, and whether two geometries plan alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import ComputeProfile, Engines, GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.profiles import accepted_sizes

_MOST_SLICES = 64
"""No GPU has nearly as many; more is taken for nonsense."""


def to_compact(geometry: GpuGeometry) -> dict[str, Any]:
    """A geometry as a JSON value. What no plan needs is left out: multiprocessors, copy engines, p2p.

    `profiles` has a row a profile: name, id, enum, MiB, most instances, placements, the numbers of decoders, encoders,
    JPEG and OFA engines, and the position in `compute` of what such an instance offers.
    """
    offers: dict[str, int] = {}
    rows = []
    for each in geometry.profiles:
        offer = " ".join(map(_compute_text, each.compute))
        number = offers.setdefault(offer, len(offers))
        places = _places_text(each.placements)
        numbers = (each.profile_id, each.enum, each.memory_mb, each.max_instances)
        rows.append([str(each.name), *numbers, places, list(_limiting(each.engines)), number])
    slices = [geometry.memory_slices, geometry.compute_slices]
    return {"memory": geometry.memory_mb, "slices": slices, "profiles": rows, "compute": list(offers)}


def from_compact(values: Mapping[str, Any], model: str) -> GpuGeometry:
    """The geometry of a GPU of that product name.

    Raises ValueError, KeyError or TypeError where that makes no sense.
    """
    offers = [tuple(map(_compute_profile, text.split())) for text in values["compute"]]
    memory_slices, compute_slices = map(_slices, values["slices"])
    return GpuGeometry(
        model=model,
        memory_slices=memory_slices,
        compute_slices=compute_slices,
        memory_mb=int(values["memory"]),
        profiles=tuple(_profile(row, offers) for row in values["profiles"]),
        source="device",
    )


@lru_cache(maxsize=32)
def geometry_digest(geometry: GpuGeometry) -> str:
    """8 hex digits: equal for two geometries of which every plan is the same."""
    meaning = [geometry.memory_slices, geometry.compute_slices]
    profiles = sorted(
        [
            each.profile_id,
            str(each.name),
            sorted(accepted_sizes(geometry, each)),
            each.max_instances,
            _places_text(each.placements),
            list(_limiting(each.engines)),
            [[one.slices, one.max_instances, _places_text(one.placements)] for one in each.compute],
        ]
        for each in geometry.profiles
    )
    return hashlib.sha256(json.dumps([meaning, profiles]).encode()).hexdigest()[:8]


def _limiting(engines: Engines) -> tuple[int | None, ...]:
    return engines.decoder, engines.encoder, engines.jpeg, engines.ofa


def _profile(row: Sequence[Any], offers: Sequence[tuple[ComputeProfile, ...]]) -> InstanceProfile:
    name, profile_id, enum, memory_mb, most, places, (decoder, encoder, jpeg, ofa), offer = row
    return InstanceProfile(
        name=MigProfile.parse(name),
        profile_id=int(profile_id),
        enum=int(enum),
        memory_mb=int(memory_mb),
        multiprocessors=None,
        max_instances=int(most),
        placements=_places(places),
        engines=Engines(None, _number(decoder), _number(encoder), _number(jpeg), _number(ofa)),
        compute=offers[offer],
    )


def _compute_text(compute: ComputeProfile) -> str:
    """`1:2*3=0,2:2`: profile id 1, two slices, at most three, at 0 and 2 with two slices each."""
    places = _places_text(compute.placements)
    return f"{compute.profile_id}:{compute.slices}*{compute.max_instances}={places}"


def _compute_profile(text: str) -> ComputeProfile:
    head, _, places = text.partition("=")
    profile_id, _, counts = head.partition(":")
    slices, _, most = counts.partition("*")
    return ComputeProfile(int(profile_id), _slices(slices), int(most), _places(places))


def _places_text(places: Iterable[Placement]) -> str:
    """`0,1,2:1;0:4`: of one slice at 0, 1 and 2, of four slices at 0. The order stays."""
    runs = groupby(places, key=attrgetter("size"))
    return ";".join(f"{','.join(str(place.start) for place in run)}:{size}" for size, run in runs)


def _places(text: str) -> tuple[Placement, ...]:
    found = []
    for run in text.split(";") if text else ():
        starts, _, size = run.partition(":")
        found += [Placement(int(start), _slices(size)) for start in starts.split(",")]
    if any(not 0 <= place.start <= _MOST_SLICES for place in found):
        raise ValueError(f"placements {text!r} lie on no GPU")
    return tuple(found)


def _slices(value: str | int) -> int:
    count = int(value)
    if not 0 <= count <= _MOST_SLICES:
        raise ValueError(f"{count} slices are on no GPU")
    return count


def _number(value: int | None) -> int | None:
    return None if value is None else int(value)
