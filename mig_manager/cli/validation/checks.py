"""Layout files held against their format, against the GPU models that are known, and against kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mig_manager.daemon.advertised import expected_resources, shapes_wanted
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook, resolve
from mig_manager.layouts.findings import Finding, LayoutFileError, NothingSelectedError, clipped
from mig_manager.layouts.layout import GpuTarget, Layout, LayoutEntry, NodeTarget, Source, label_can_hold
from mig_manager.layouts.manifest import find_layouts
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.catalogue import GpuModel
from mig_manager.planning.known import new_node, no_known_gpu, unknown_models
from mig_manager.planning.planner import plan_gpu

_Findings = list[tuple[Source, Reason, str]]


class Level(StrEnum):
    """How bad a remark is. Only errors make a file invalid."""

    ERROR = "error"
    WARNING = "warning"


class Outcome(StrEnum):
    """What became of a layout on a kind of node."""

    FITS = "fits"
    NOTHING = "selects-nothing"
    """It is for other nodes, which is normal."""
    OTHERS = "for-other-nodes"
    """Nothing in it says which GPUs it is for, and it fits another of the given nodes."""
    FAILS = "does-not-fit"
    BOARDS = "names-boards"
    """Its entries name single boards by UUID or PCI bus id, and nobody knows here which model these are."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is wrong, or looks wrong."""

    level: Level
    reason: Reason
    source: Source
    path: str
    """Where in the structure: `mig-configs.NAME[0].devices`, or `layout NAME`; empty for the file as a whole."""
    text: str
    gpus: str | None = None
    """The kind of node that it is about."""


class NodeKind:
    """Nodes with the same GPUs."""

    def __init__(self, gpus: str, models: Sequence[GpuModel]) -> None:
        self.gpus = gpus
        """As the user writes them: `8xA100-SXM4-80GB`."""
        self.inventory = new_node(models)
        self._states = {state.gpu.index: state for state in self.inventory.gpus}
        self._refusals: dict[object, MigManagerError | None] = {}

    def refusal(self, target: GpuTarget) -> MigManagerError | None:
        """Why a GPU cannot become what is asked of it; None where it can. Equal GPUs are asked once."""
        key = target.gpu.model, target.mig_enabled, target.devices
        if key not in self._refusals:
            self._refusals[key] = None
            try:
                plan_gpu(replace(target, source=None), self._states[target.gpu.index])
            except MigManagerError as error:
                self._refusals[key] = error
        return self._refusals[key]


@dataclass(frozen=True, slots=True)
class Trial:
    """A layout held against a kind of node."""

    gpus: str
    outcome: Outcome
    remarks: tuple[Remark, ...] = ()
    """Why it does not fit there."""


@dataclass(frozen=True, slots=True)
class LayoutVerdict:
    """A layout, and what became of it on each kind of node."""

    name: str
    source: Source
    trials: tuple[Trial, ...]
    """Empty where it was held against none."""


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """A layout file, or one ConfigMap of a stream."""

    file: str
    name: str
    """Which ConfigMap and key; empty for a whole file."""
    layouts: tuple[LayoutVerdict, ...]
    """Empty where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said of some files."""

    files: tuple[FileVerdict, ...]
    remarks: tuple[Remark, ...]
    """By file and line."""

    @property
    def valid(self) -> bool:
        """Whether there is no error."""
        return all(remark.level is not Level.ERROR for remark in self.remarks)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What layouts are held against."""

    kinds: tuple[NodeKind, ...] = ()
    strategy: str | None = None
    """Of the device plugin on all nodes; None: do not look at it."""
    only: frozenset[str] = frozenset()
    """The layouts that matter there; empty: all."""


def check_file(text: str, file: str, fleet: Fleet) -> Verdict:
    """All findings in a layout file or a stream of manifests; `file` names it in messages."""
    try:
        found = find_layouts(text, file)
    except LayoutFileError as error:
        return unreadable(file, error)
    remarks = list(_remarks(found.findings))
    files = []
    for one in found.texts:
        layouts: tuple[LayoutVerdict, ...] = ()
        try:
            book = parse_layouts(one.text, file=file, place=one.place)
        except LayoutFileError as error:
            remarks += _remarks(error.findings)
        else:
            layouts, more = check_book(book, fleet)
            remarks += more
        files.append(FileVerdict(file, one.name, layouts))
    remarks.sort(key=lambda remark: remark.source.line)
    return Verdict(tuple(files) or (FileVerdict(file, "", ()),), tuple(remarks))


def unreadable(file: str, error: LayoutFileError) -> Verdict:
    """All that can be said of a file that cannot be read."""
    return Verdict((FileVerdict(file, "", ()),), _remarks(error.findings))


def check_book(book: LayoutBook, fleet: Fleet) -> tuple[tuple[LayoutVerdict, ...], list[Remark]]:
    """Hold every layout against every kind of node, and every entry against the known GPU models."""
    verdicts, remarks = [], []
    for layout in book.layouts.values():
        trials: list[Trial] = []
        if not fleet.only or layout.name in fleet.only:
            trials = _excused(layout, [_try(layout, kind, fleet.strategy) for kind in fleet.kinds])
        refused = [remark for trial in trials if trial.outcome is Outcome.FAILS for remark in trial.remarks]
        at = {remark.source for remark in refused}
        known = [_known(layout, entry) for entry in layout.entries if entry.source not in at]
        remarks += [*refused, *(remark for remark in known if remark is not None)]
        remarks += _doubts(layout, [trial.outcome for trial in trials])
        verdicts.append(LayoutVerdict(layout.name, layout.source, tuple(trials)))
    return tuple(verdicts), remarks


def _try(layout: Layout, kind: NodeKind, strategy: str | None) -> Trial:
    entries = tuple(entry for entry in layout.entries if not _names_boards(entry))
    if not entries:
        return Trial(kind.gpus, Outcome.BOARDS)
    try:
        target = resolve(replace(layout, entries=entries), [state.gpu for state in kind.inventory.gpus])
    except NothingSelectedError:
        return Trial(kind.gpus, Outcome.NOTHING)
    except LayoutFileError as error:
        found = [(each.source, error.reason, each.text) for each in error.findings]
    else:
        found = _refusals(target, kind)
        if strategy is not None and not found:
            found = _unadvertised(layout, target, kind, strategy)
    where = f"layout {clipped(layout.name)}"
    remarks = tuple(Remark(Level.ERROR, reason, at, where, text, kind.gpus) for at, reason, text in found)
    return Trial(kind.gpus, Outcome.FAILS if remarks else Outcome.FITS, remarks)


def _excused(layout: Layout, trials: Sequence[Trial]) -> list[Trial]:
    """What does not fit one kind of node, fits another, and does not say which it is for, is for the other."""
    anywhere = {entry.source for entry in layout.entries if not entry.device_filter and not entry.gpu_models}
    fits = any(trial.outcome is Outcome.FITS for trial in trials)
    return [
        replace(trial, outcome=Outcome.OTHERS)
        if fits and trial.outcome is Outcome.FAILS and {each.source for each in trial.remarks} <= anywhere
        else trial
        for trial in trials
    ]


def _names_boards(entry: LayoutEntry) -> bool:
    return any(isinstance(device, str) for device in entry.named)


def _refusals(target: NodeTarget, kind: NodeKind) -> _Findings:
    """Why GPUs cannot become what is asked of them, once for equal ones."""
    found: dict[object, tuple[Source, Reason, str]] = {}
    for gpu in target.gpus:
        error = kind.refusal(gpu)
        if error is not None and gpu.source is not None:
            found.setdefault((gpu.source, error.message), (gpu.source, error.reason, error.message))
    return list(found.values())


def _unadvertised(layout: Layout, target: NodeTarget, kind: NodeKind, strategy: str) -> _Findings:
    """That the device plugin cannot advertise the layout; GPUs that it leaves as they are do not count."""
    left = {state.gpu.index for state in kind.inventory.gpus if state.gpu.mig_capable} & set(target.untouched)
    shapes = [shape for shape in shapes_wanted(target, kind.inventory) if shape.index not in left]
    try:
        expected_resources(shapes, strategy)
    except MigManagerError as error:
        return [(layout.source, error.reason, error.message)]
    return []


def _known(layout: Layout, entry: LayoutEntry) -> Remark | None:
    """That no GPU model of the catalogue can be what an entry asks for."""
    error = no_known_gpu(entry)
    where = f"layout {clipped(layout.name)}"
    return (
        Remark(Level.ERROR, error.reason, entry.source, where, error.message) if error is not None else None
    )


def _doubts(layout: Layout, outcomes: Sequence[Outcome]) -> list[Remark]:
    """What is allowed, and probably not meant."""
    name = clipped(layout.name)
    found = []
    if not label_can_hold(layout.name):
        rule = "up to 63 letters, digits, -, _ and ., with a letter or digit at both ends"
        found.append(
            (layout.source, f"no label can hold this name, so no node can ask for it; allowed: {rule}")
        )
    if outcomes and set(outcomes) == {Outcome.NOTHING}:
        found.append((layout.source, "selects no GPU on any of these nodes"))
    for entry in layout.entries:
        for model, near in unknown_models(entry):
            found.append((entry.source, f"gpu-model {clipped(model)} is none that is known{near}"))
    return [Remark(Level.WARNING, Reason.INVALID_LAYOUT, at, f"layout {name}", text) for at, text in found]


def _remarks(findings: Iterable[Finding]) -> tuple[Remark, ...]:
    """Findings in what the file says."""
    return tuple(
        Remark(Level.ERROR, Reason.INVALID_LAYOUT, each.source, each.path, each.text) for each in findings
    )
