"""Layouts by name, and what a layout means on the GPUs of one node."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.findings import (
    MOST_FINDINGS,
    Finding,
    LayoutFileError,
    NothingSelectedError,
    clipped,
    hint,
)
from mig_manager.layouts.layout import (
    GpuIdentity,
    GpuTarget,
    Layout,
    LayoutEntry,
    NodeTarget,
    PciFilter,
    Source,
)
from mig_manager.layouts.models import model_words, same_model
from mig_manager.layouts.selectors import parse_bus_id, parse_uuid
from mig_manager.layouts.suggest import nearest

_SHOWN_NAMES = 40
_SHOWN_FILTERS = 8


@dataclass(frozen=True, slots=True)
class LayoutBook:
    """Layouts by name."""

    layouts: Mapping[str, Layout]
    file: str
    """Where they come from, for messages."""

    def get(self, name: str) -> Layout:
        """The layout of that name.

        Raises:
            MigManagerError: UNKNOWN_LAYOUT; lists the valid names, the nearest first.
        """
        layout = self.layouts.get(name)
        if layout is not None:
            return layout
        near = nearest(name, self.layouts)
        names = [*near, *(other for other in self.layouts if other not in near)]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        valid = ", ".join(map(clipped, names[:_SHOWN_NAMES])) + more
        raise MigManagerError(
            Reason.UNKNOWN_LAYOUT,
            f"layout {clipped(name)} is not in {self.file}{hint(map(clipped, near)) or '.'} Valid names: {valid}",
        )

    def merged_over(self, generated: LayoutBook) -> LayoutBook:
        """This book with the other's layouts for the names that it lacks."""
        layouts = {**self.layouts, **generated.layouts, **self.layouts}
        return LayoutBook(layouts, f"{self.file} or {generated.file}")


def resolve(layout: Layout, gpus: Sequence[GpuIdentity]) -> NodeTarget:
    """What a layout asks of each GPU of a node.

    A filter that no GPU passes is normal: that entry speaks of other nodes. `devices: all` means every
    MIG-capable GPU that passes the filters, `devices: others` each of them that no entry without it selects.
    Where MIG shall be off, a GPU without MIG is passed over.

    Raises:
        NothingSelectedError: INVALID_LAYOUT; no entry selects any GPU.
        LayoutFileError: INVALID_LAYOUT; an entry names a GPU that is not there or has no MIG, or two entries ask
            for different things. All findings, with their places.
    """
    by_name = {name: gpu for gpu in gpus for name in _names(gpu)}
    chosen: dict[int, GpuTarget] = {}
    problems: list[tuple[Source, str]] = []
    satisfied = False
    taken: set[int] = set()
    for entry in sorted(layout.entries, key=lambda entry: entry.devices == "others"):
        selected, missing = _select(entry, gpus, by_name)
        if entry.devices == "others":
            selected = [gpu for gpu in selected if gpu.index not in taken]
        else:
            taken.update(gpu.index for gpu in selected)
        problems.extend((entry.source, f"there is no GPU {name}; {_present(name, gpus)}") for name in missing)
        for gpu in selected:
            if not gpu.mig_capable:
                if entry.mig_enabled and entry.named:
                    problems.append(
                        (entry.source, f"GPU {gpu.index} ({gpu.model}) has no MIG mode to enable")
                    )
                satisfied = satisfied or not entry.mig_enabled
                continue
            target = _target(entry, gpu)
            other = chosen.setdefault(gpu.index, target)
            if (other.mig_enabled, other.devices) != (target.mig_enabled, target.devices):
                problems.append((entry.source, _conflict(target, other)))
    where = f"layout {clipped(layout.name)}"
    if problems:
        raise LayoutFileError([Finding(at, where, text) for at, text in problems[:MOST_FINDINGS]])
    if not chosen and not satisfied:
        raise NothingSelectedError([Finding(layout.source, where, _nothing_selected(layout, gpus))])
    return NodeTarget(
        layout=layout.name,
        gpus=tuple(chosen[index] for index in sorted(chosen)),
        untouched=tuple(sorted(gpu.index for gpu in gpus if gpu.index not in chosen)),
    )


def content_hash(target: NodeTarget) -> str:
    """16 hex digits over what the target means for the GPUs of this node.

    Names, comments, order and lines do not count, nor do entries for GPUs that are not here.
    """
    meaning = sorted(
        [target.gpu.uuid, target.mig_enabled, [str(profile) for profile in sorted(target.devices)]]
        for target in target.gpus
    )
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16]


def _passes(entry: LayoutEntry, gpu: GpuIdentity) -> bool:
    """Whether a GPU passes the filters of an entry: one of the ids, and one of the model names."""
    return (not entry.device_filter or any(_matches(wanted, gpu) for wanted in entry.device_filter)) and (
        not entry.gpu_models or any(same_model(model, gpu.model) for model in entry.gpu_models)
    )


def _matches(wanted: PciFilter, gpu: GpuIdentity) -> bool:
    return wanted.device_id == gpu.device_id and wanted.subsystem_id in (None, gpu.subsystem_id)


def _select(
    entry: LayoutEntry, gpus: Sequence[GpuIdentity], by_name: Mapping[int | str | None, GpuIdentity]
) -> tuple[list[GpuIdentity], list[int | str]]:
    """The GPUs that an entry means, and what it names that is not there.

    An entry whose filters no GPU passes speaks of another kind of node, and so do its indices.
    """
    passing = {gpu.index: gpu for gpu in gpus if _passes(entry, gpu)}
    if isinstance(entry.devices, str) or not passing:
        return list(passing.values()), []
    named = [by_name.get(name) for name in entry.devices]
    selected = {gpu.index: gpu for gpu in named if gpu is not None and gpu.index in passing}
    return list(selected.values()), [name for name in entry.devices if name not in by_name]


def _names(gpu: GpuIdentity) -> tuple[int | str | None, ...]:
    """What an entry can name a GPU by."""
    return gpu.index, parse_uuid(gpu.uuid), parse_bus_id(gpu.bus_id)


def _target(entry: LayoutEntry, gpu: GpuIdentity) -> GpuTarget:
    devices = tuple(profile for profile, count in entry.mig_devices for _ in range(count))
    return GpuTarget(gpu, entry.mig_enabled, devices if entry.mig_enabled else (), entry.source)


def _present(device: int | str, gpus: Sequence[GpuIdentity]) -> str:
    if isinstance(device, int):
        indices = sorted(gpu.index for gpu in gpus)
        return "the only GPU is 0" if indices == [0] else f"the GPUs are 0 to {indices[-1]}"
    names = [gpu.uuid if device.startswith("GPU-") else gpu.bus_id for gpu in gpus]
    if not any(names):
        return "the PCI bus ids of these GPUs are not known"
    return f"the GPUs are {', '.join(names)}{hint(nearest(device, names, 1))}"


def _conflict(target: GpuTarget, other: GpuTarget) -> str:
    return (
        f"this entry asks for {_wish(target)} on GPU {target.gpu.index}, but the one at {other.source} asks "
        f"for {_wish(other)}; a GPU takes one of them"
    )


def _nothing_selected(layout: Layout, gpus: Sequence[GpuIdentity]) -> str:
    if not gpus:
        return "there is no GPU on this node"
    models = dict.fromkeys(
        f"{gpu.model} (0x{gpu.device_id:08X}{'' if gpu.mig_capable else ', without MIG'})" for gpu in gpus
    )
    asked = [str(wanted) for entry in layout.entries for wanted in (*entry.device_filter, *entry.gpu_models)]
    asked = [clipped(wanted) for wanted in dict.fromkeys(asked)]
    more = f" and {len(asked) - _SHOWN_FILTERS} more" if len(asked) > _SHOWN_FILTERS else ""
    filters = f"; the layout is for {', '.join(asked[:_SHOWN_FILTERS])}{more}" if asked else ""
    words = {" ".join(model_words(gpu.model)): gpu.model for gpu in gpus}
    wishes = (model for entry in layout.entries for model in entry.gpu_models)
    near = dict.fromkeys(
        words[text] for wish in wishes for text in nearest(" ".join(model_words(wish)), words, 1)
    )
    return f"no entry selects any GPU of this node; it has {', '.join(models)}{filters}{hint(near)}"


def _wish(target: GpuTarget) -> str:
    if not target.mig_enabled:
        return "MIG off"
    if not target.devices:
        return "MIG on without devices"
    counts = {profile: target.devices.count(profile) for profile in dict.fromkeys(target.devices)}
    return ", ".join(f"{count}x {profile}" for profile, count in counts.items())
