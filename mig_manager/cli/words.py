"""A plan in words, GPU by GPU, with its pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.text import Text

from mig_manager.cli.documents import assumed_fields, known_uuid, span
from mig_manager.cli.render import Look, legend, plan_picture, plan_rows, state_picture, state_row
from mig_manager.errors import MigManagerError
from mig_manager.layouts.layout import GpuIdentity, GpuTarget, Layout, LayoutEntry
from mig_manager.layouts.models import same_model
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import GpuPlan, NodePlan
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

_Placed = tuple[MigProfile, Placement]


def plan_lines(plan: NodePlan, inventory: Inventory, layout: Layout | None, look: Look) -> list[Text]:
    """Everything that a person wants to know about a plan. GPUs that look alike share one picture.

    `layout` says why GPUs are untouched; None: nothing is told of those.
    """
    states = {state.gpu.index: state for state in inventory.gpus}
    groups: dict[object, list[GpuPlan]] = {}
    for item in plan.gpus:
        rows = plan_rows(item, states[item.gpu.index])
        groups.setdefault((item.gpu.model, item.mig, rows), []).append(item)
    lines: list[Text] = []
    for alike in groups.values():
        lines += [*_gpu_lines(alike, states[alike[0].gpu.index], look), Text()]
    if plan.untouched and layout is not None:
        lines += [*_untouched([states[index].gpu for index in plan.untouched], layout), Text()]
    if plan.changes:
        lines += [legend(look), Text()]
    return [*lines, summary(plan)]


def summary(plan: NodePlan) -> Text:
    """The whole plan in one line."""
    changed = [item for item in plan.gpus if item.changes]
    if not changed:
        return Text(f"{plan.layout}: nothing to do, the GPUs already look like this", "bold")
    kept, gone, new = _totals(plan)
    parts = [
        f"{_count(len(changed), 'GPU')} of {len(plan.gpus) + len(plan.untouched)} changed",
        f"{_count(kept, 'instance')} kept, {gone} destroyed, {new} created",
    ]
    resets = [item.gpu.index for item in changed if item.mig.reset]
    parts.append(f"reset of {gpu_numbers(resets)}" if resets else "no reset")
    return Text(f"{plan.layout}: {'; '.join(parts)}", "bold")


def trial_lines(trials: Mapping[str, NodePlan | MigManagerError]) -> list[Text]:
    """A table: which of several layouts fit, and how many instances and GPUs each would change."""
    width = max([len("LAYOUT"), *map(len, trials)])
    lines = [Text(f"{'LAYOUT':<{width}}  FITS  KEEP  DESTROY  CREATE  MODE  RESET", "bold")]
    for name, outcome in trials.items():
        line = Text(f"{name:<{width}}  ")
        if isinstance(outcome, MigManagerError):
            line.append(f"{'no':<4}  ", "red")
            line.append(f"{outcome.reason}: {gist(outcome.message)}")
        else:
            line.append(f"{'yes':<4}  ", "green")
            modes = sum(item.mig.switches for item in outcome.gpus)
            cells = (*_totals(outcome), modes, sum(item.mig.reset for item in outcome.gpus))
            line.append(
                "  ".join(f"{cell or '-':>{size}}" for cell, size in zip(cells, (4, 7, 6, 4, 5), strict=True))
            )
        lines.append(line)
    return lines


def state_lines(inventory: Inventory, look: Look) -> list[Text]:
    """The GPUs as they are. GPUs that look alike share one picture."""
    groups: dict[object, list[GpuState]] = {}
    for state in inventory.gpus:
        key = (state.gpu.model, state.mig_current, state.mig_pending, state.busy, state_row(state))
        groups.setdefault(key, []).append(state)
    lines: list[Text] = []
    for alike in groups.values():
        lines.append(_head([state.gpu for state in alike]))
        state = alike[0]
        if state.mig_current != state.mig_pending:
            lines.append(
                Text(f"  mode     MIG {_on(state.mig_current)}; {_on(state.mig_pending)} after a reset")
            )
        if state.geometry is None:
            lines.append(Text("  mode     no MIG", "dim"))
        lines += [*state_picture(state, look), Text()]
    return lines[:-1]


def difference_lines(plan: NodePlan, *, mode_only: bool) -> list[str]:
    """Where the GPUs do not look like the layout that was planned; empty where they do."""
    findings: dict[str, list[int]] = {}
    for item in plan.gpus:
        found: list[str] = []
        mig = item.mig
        if mig.switches:
            found.append(f"MIG is {_on(mig.current)}, the layout wants {_on(mig.target)}")
        if mig.pending != mig.target and mig.pending != mig.current:
            found.append(f"MIG will be {_on(mig.pending)} after a reset, the layout wants {_on(mig.target)}")
        if mig.target and not mode_only:
            gone = [(old.profile, old.placement) for old in item.destroy]
            new = [(new.profile, new.placement) for new in item.create]
            other = [
                (kept.instance.profile, kept.instance.placement)
                for kept in item.keep
                if kept.destroy or kept.create
            ]
            found += [f"beyond the layout: {_placed(gone)}"] * bool(gone)
            found += [f"lacks {_counted(new)}"] * bool(new)
            found += [f"other compute instances in {_placed(other)}"] * bool(other)
        for text in found:
            findings.setdefault(text, []).append(item.gpu.index)
    return [f"{gpu_numbers(indices)}: {text}" for text, indices in findings.items()]


def room_left(plan: GpuPlan, state: GpuState) -> tuple[MigProfile, ...]:
    """The plain profiles of which one more would find a place beside what the plan leaves, largest first."""
    if state.geometry is None or not plan.mig.target:
        return ()
    left = [(item.instance.profile, item.instance.profile_id, item.instance.placement) for item in plan.keep]
    left += [(item.profile, item.profile_id, item.placement) for item in plan.create]
    taken = 0
    for *_, placement in left:
        taken |= placement.mask
    after = replace(
        state,
        mig_current=True,
        mig_pending=True,
        instances=tuple(map(_whole, sorted(left, key=lambda item: item[2]))),
    )
    free = [
        profile.name
        for profile in state.geometry.profiles
        if not profile.name.suffix and any(not place.mask & taken for place in profile.placements)
    ]
    return tuple(sorted(name for name in free if _fits_beside(after, name)))


def _whole(left: tuple[MigProfile, int, Placement]) -> GpuInstance:
    profile, profile_id, placement = left
    return GpuInstance(
        None, profile, profile_id, placement, (ComputeInstance(None, profile.gpu_slices, None),)
    )


def _fits_beside(state: GpuState, profile: MigProfile) -> bool:
    devices = tuple(sorted((*(item.profile for item in state.instances), profile)))
    try:
        return not plan_gpu(GpuTarget(state.gpu, True, devices, None), state).destroy
    except MigManagerError:
        return False


def _gpu_lines(alike: Sequence[GpuPlan], state: GpuState, look: Look) -> list[Text]:
    plan = alike[0]
    lines = [_head([item.gpu for item in alike]), Text(f"  mode     {_mode(plan)}")]
    lines += _list("keep", [(item.instance.profile, item.instance.placement) for item in plan.keep])
    lines += _list("destroy", [(item.profile, item.placement) for item in plan.destroy])
    lines += _list("create", [(item.profile, item.placement) for item in plan.create])
    recomputed = [item for item in plan.keep if item.destroy or item.create]
    lines += _list("compute", [(item.instance.profile, item.instance.placement) for item in recomputed])
    busy = [(item.profile, item.placement) for item in plan.destroy if item.busy]
    lines += _list("in use!", busy, "bold red")
    room = room_left(plan, state)
    if room:
        lines.append(Text(f"  room for one of {', '.join(map(str, room))}", "dim"))
    assumed = assumed_fields(plan, state)
    if assumed:
        lines.append(Text(f"  assumed  as in the model's family: {', '.join(assumed)}", "yellow"))
    return [*lines, *plan_picture(plan, state, look)]


def _head(gpus: Sequence[GpuIdentity]) -> Text:
    head = Text()
    head.append(gpu_numbers([gpu.index for gpu in gpus]), "bold")
    head.append(f"  {gpus[0].model}")
    uuid = known_uuid(gpus[0])
    if len(gpus) == 1 and uuid is not None:
        head.append(f"  {uuid}", "dim")
    return head


def _mode(plan: GpuPlan) -> str:
    mig = plan.mig
    current, target = _on(mig.current), _on(mig.target)
    how = ", by a reset of the GPU" if mig.reset else ""
    if mig.switches:
        return f"MIG {current} -> {target}{how}"
    if mig.pending != mig.target:
        return f"MIG {current}; a pending change is taken back{how}"
    return f"MIG {current}" + ("" if plan.changes else "; nothing to do")


def _list(label: str, items: Sequence[_Placed], style: str = "") -> list[Text]:
    return [Text(f"  {label:<8} {_placed(items)}", style)] if items else []


def _placed(items: Sequence[_Placed]) -> str:
    places: dict[MigProfile, list[str]] = {}
    for profile, placement in items:
        places.setdefault(profile, []).append(span(placement))
    return "; ".join(f"{len(at)} x {profile} at {', '.join(at)}" for profile, at in sorted(places.items()))


def _counted(items: Sequence[_Placed]) -> str:
    counts = Counter(profile for profile, _ in items)
    return ", ".join(f"{count} x {profile}" for profile, count in sorted(counts.items()))


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _untouched(gpus: Sequence[GpuIdentity], layout: Layout) -> list[Text]:
    groups: dict[tuple[str, str], list[GpuIdentity]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.model, _why_untouched(gpu, layout)), []).append(gpu)
    lines = []
    for (_, why), alike in groups.items():
        head = _head(alike)
        head.append(f"  untouched: {why}")
        lines.append(head)
    return lines


def _why_untouched(gpu: GpuIdentity, layout: Layout) -> str:
    if not gpu.mig_capable:
        return "it has no MIG"
    if not any(_passes(gpu, entry) for entry in layout.entries):
        return "no entry's device-filter or gpu-model lets it pass"
    return "no entry lists it"


def _passes(gpu: GpuIdentity, entry: LayoutEntry) -> bool:
    by_id = not entry.device_filter or any(
        item.device_id == gpu.device_id and item.subsystem_id in (None, gpu.subsystem_id)
        for item in entry.device_filter
    )
    return by_id and (not entry.gpu_models or any(same_model(gpu.model, name) for name in entry.gpu_models))


def gist(message: str) -> str:
    """What a message comes to, without its place in the file and its explanations."""
    first = re.sub(r"^\S+:\d+: ", "", message.splitlines()[0])
    return re.split(r"[;.] ", first)[0]


def _totals(plan: NodePlan) -> tuple[int, int, int]:
    """Instances kept, destroyed, created."""
    return (
        sum(len(item.keep) for item in plan.gpus),
        sum(len(item.destroy) for item in plan.gpus),
        sum(len(item.create) for item in plan.gpus),
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
