"""The catalogue of known GPU models: catalogue.yaml as values.

It serves where there is no device to ask. On a device, what NVML reports always beats it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.models import model_words, same_model
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.suggest import nearest
from mig_manager.planning.geometry import ComputeProfile, Engines, GpuGeometry, InstanceProfile, Placement

_FILE = Path(__file__).with_name("catalogue.yaml")
_MOST_GPUS = 64
_LONGEST_NAME = 60
"""Longer names are cut in messages; no product has one."""
_PART = re.compile(r"(?:(?P<count>\d{1,6})\s*[x*]\s*)?(?P<name>\S.*)", re.IGNORECASE)
_FILLED = frozenset(
    {
        "memory_mb",
        "profile_id",
        "enum",
        "multiprocessors",
        "max_instances",
        "engines",
        "placements",
        "compute",
    }
)
_NEEDS_RESET = frozenset({"ampere"})
"""Architectures that change their MIG mode only with a reset (MIG User Guide, "Enable MIG Mode")."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU product."""

    key: str
    """Short and unique, such as `a100-sxm4-80gb`."""
    title: str
    """The product name without its brand, such as `A100-SXM4-80GB`; what users type. Another one where that would
    mean another product to most people."""
    names: tuple[str, ...]
    """Product names that NVML reports (nvmlDeviceGetName), the usual one first."""
    device_ids: tuple[int, ...]
    """PCI device and vendor, such as 0x20B210DE, the usual one first."""
    subsystem_ids: tuple[int, ...]
    """PCI subsystem ids seen on this product; others may exist. Empty where none is known."""
    architecture: str
    memory_mb: int
    """Total device memory, MiB."""
    mode_change_needs_reset: bool
    """Whether a change of the MIG mode takes effect only after a reset. False without MIG."""
    geometry: GpuGeometry | None
    """None: the model has no MIG."""
    assumed: frozenset[str] = frozenset()
    """Fields, here or in a profile, that were not read for this very model, only for its family."""
    only_subsystems: bool = False
    """Whether the device id is also sold with another geometry, so that the subsystem id decides."""
    called: tuple[str, ...] = ()
    """Short names by which people mean this very product, although others have those words as well."""

    @property
    def name(self) -> str:
        """The usual product name."""
        return self.names[0]


def catalogue() -> tuple[GpuModel, ...]:
    """All known models, in the order of the file."""
    return _load()


def find_model(name: str) -> GpuModel:
    """The model of that product name, or of a short form of it.

    Case, spaces, dashes and the order of the words do not matter, and words may be left out as long as one
    model is left, the NVIDIA prefix too: `a100-sxm4-80gb`, `H100-80GB-HBM3`, `B300`. `H100` is the usual one, the
    SXM board with 80 GB; `NVIDIA H100`, with the prefix, is the product that NVML calls so.

    Raises:
        MigManagerError: INVALID_LAYOUT; no model of that name, or more than one. Names near misses.
    """
    models = catalogue()
    exact = (
        *(model for model in models if _spelled(name) in map(_spelled, model.names)),
        *(model for model in models if any(same_model(name, short) for short in model.called)),
        *(model for model in models if any(same_model(name, known) for known in (*model.names, model.title))),
    )
    if exact:
        return exact[0]
    words = set(model_words(name))
    short = [
        model for model in models if words and words <= {*model_words(model.name), *model_words(model.title)}
    ]
    if len(short) == 1:
        return short[0]
    if short:
        raise MigManagerError(
            Reason.INVALID_LAYOUT,
            f"{name!r} can be any of these GPU models: {_titles(short)}. Write one of them in full.",
        )
    guesses = _near_misses(name)
    hint = f"did you mean {_titles(guesses)}?" if guesses else f"known models: {_titles(models)}."
    raise MigManagerError(Reason.INVALID_LAYOUT, f"{_clipped(name)!r} is not a known GPU model; {hint}")


def model_of(gpu: GpuIdentity) -> GpuModel | None:
    """The model of a GPU, by PCI ids, then by product name; None where the catalogue does not know it."""
    same_id = [
        model
        for model in catalogue()
        if gpu.device_id in model.device_ids
        and (not model.only_subsystems or gpu.subsystem_id in model.subsystem_ids)
    ]
    same_name = [m for m in same_id or catalogue() if any(same_model(gpu.model, name) for name in m.names)]
    found = same_name or same_id
    return found[0] if found else None


def parse_gpus(text: str) -> tuple[GpuModel, ...]:
    """The GPUs of a node, from text such as `8xA100-SXM4-80GB` or `4xH100-80GB-HBM3,1xA30`: one model a GPU.

    Raises:
        MigManagerError: INVALID_LAYOUT; names the part that cannot be read.
    """
    gpus: list[GpuModel] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise MigManagerError(
                Reason.INVALID_LAYOUT,
                f"{part.strip()!r} names no GPU; write COUNTxMODEL, such as 8xA100-SXM4-80GB, "
                "and commas between several",
            )
        count = int(match["count"] or 1)
        if count < 1 or len(gpus) + count > _MOST_GPUS:
            raise MigManagerError(
                Reason.INVALID_LAYOUT,
                f"{part.strip()!r} makes {len(gpus) + count} GPUs; a node has 1 to {_MOST_GPUS}",
            )
        gpus.extend([find_model(match["name"])] * count)
    return tuple(gpus)


def _spelled(name: str) -> tuple[str, ...]:
    """The words of a product name with its brand."""
    return tuple(re.findall(r"[a-z0-9]+", name.lower()))


def _near_misses(name: str) -> list[GpuModel]:
    """The models that a name was probably meant for, nearest first; none where it resembles no model.

    Where it names a series, only those of that series (`H100-SXM5-80GB` is some H100, though A100-SXM4-80GB
    resembles it more).
    """
    words = model_words(name)
    by_words = {" ".join(model_words(model.title)): model for model in catalogue()}
    near = [by_words[text] for text in nearest(" ".join(words), by_words)]
    series = [model for model in catalogue() if _series(model) in {*words, "".join(words)}]
    if not series:
        return near
    return [*(model for model in near if model in series), *(model for model in series if model not in near)]


def _series(model: GpuModel) -> str:
    """What a product name begins with, up to the first number: `a100`, `rtxpro6000`."""
    words = model_words(model.name)
    number = next(at for at, word in enumerate(words) if any(map(str.isdigit, word)))
    return "".join(words[: number + 1])


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "..."


@cache
def _load() -> tuple[GpuModel, ...]:
    text = _FILE.read_text(encoding="utf-8")
    # libyaml's loader is about seven times as fast; wheels of PyYAML bring it, some distributions do not.
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    compute = {slices: _compute(rows) for slices, rows in data["compute"].items()}
    return tuple(_model(row, data, compute) for row in data["models"])


def _model(
    row: Mapping[str, Any], data: Mapping[str, Any], compute: Mapping[int, tuple[ComputeProfile, ...]]
) -> GpuModel:
    table: Mapping[str, Any] = data["tables"][row["table"]] if "table" in row else row
    filled = _FILLED if row.get("assumed") == "all" else frozenset()
    geometry = None
    if "table" in row:
        geometry = _geometry(row["name"], table, data["shapes"][table["shape"]], compute, filled)
    profiles = geometry.profiles if geometry else ()
    own = {*table.get("model_assumed", ()), *row.get("model_assumed", ())}
    title = row.get("title") or re.sub(r"^(?:NVIDIA|Tesla) ", "", row["name"])
    only = row.get("only_subsystems", ())
    return GpuModel(
        key="-".join(model_words(title)),
        title=title,
        names=(row["name"],),
        device_ids=tuple(row["ids"]),
        subsystem_ids=tuple(only or row.get("subsystems", ())),
        architecture=table["architecture"],
        memory_mb=table["memory_mb"],
        mode_change_needs_reset=geometry is not None and table["architecture"] in _NEEDS_RESET,
        geometry=geometry,
        assumed=frozenset(own).union(*(profile.assumed for profile in profiles)),
        only_subsystems=bool(only),
        called=tuple(row.get("called", ())),
    )


def _geometry(
    model: str,
    table: Mapping[str, Any],
    shape: Mapping[str, Any],
    compute: Mapping[int, tuple[ComputeProfile, ...]],
    filled: frozenset[str],
) -> GpuGeometry:
    profiles = []
    for text, row in table["profiles"].items():
        name = MigProfile.parse(text)
        kind, memory_mb, multiprocessors, engines = row[:4]
        profile_id, enum, most, size, starts = shape["kinds"][kind]
        profiles.append(
            InstanceProfile(
                name=name,
                profile_id=profile_id,
                enum=enum,
                memory_mb=memory_mb,
                multiprocessors=multiprocessors,
                max_instances=most,
                placements=tuple(Placement(start, size) for start in starts),
                engines=Engines(*engines),
                compute=compute[name.gpu_slices],
                assumed=filled.union(table.get("assumed", ()), *row[4:]),
            )
        )
    return GpuGeometry(
        model=model,
        memory_slices=shape["memory_slices"],
        compute_slices=shape["compute_slices"],
        memory_mb=table["memory_mb"],
        profiles=tuple(profiles),
        source="catalogue",
    )


def _compute(rows: list[list[Any]]) -> tuple[ComputeProfile, ...]:
    return tuple(
        ComputeProfile(profile_id, slices, most, tuple(Placement(start, slices) for start in starts))
        for profile_id, slices, most, starts in rows
    )


def _titles(models: list[GpuModel] | tuple[GpuModel, ...]) -> str:
    return ", ".join(model.title for model in models)
