"""A plan in words, for the log and for Events."""

from __future__ import annotations

from collections.abc import Mapping

from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.plan import GpuPlan, NodePlan


def plan_in_words(plan: NodePlan) -> str:
    """A plan in a line, GPUs alike together: `GPUs 0-3: keep 2, destroy 1x 3g.40gb, create 3x 1g.10gb`."""
    alike: dict[str, list[int]] = {}
    for gpu in plan.gpus:
        alike.setdefault(_gpu_in_words(gpu), []).append(gpu.gpu.index)
    return "; ".join(f"{gpu_numbers(indices)}: {words}" for words, indices in alike.items())


def span(seconds: float) -> str:
    """A length of time, as exact as a reader wants it: `0.4 s`, `12 s`, `7 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(counts: Mapping[str, int]) -> str:
    """Resources as a line lists them: `nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 7`; zeros left out."""
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()) if count) or "none"


def _gpu_in_words(plan: GpuPlan) -> str:
    if not plan.changes:
        return "nothing to do"
    parts = []
    if plan.mig.switches:
        parts.append(f"turn MIG {'on' if plan.mig.target else 'off'}{' (reset)' if plan.mig.reset else ''}")
    if plan.keep:
        parts.append(f"keep {len(plan.keep)}")
    if plan.destroy:
        parts.append("destroy " + _counted([str(one.profile) for one in plan.destroy]))
    if plan.create:
        parts.append("create " + _counted([str(one.profile) for one in plan.create]))
    if any(kept.create or kept.destroy for kept in plan.keep):
        parts.append("change compute instances")
    return ", ".join(parts) or "set the pending mode"


def _counted(names: list[str]) -> str:
    return " + ".join(f"{names.count(name)}x {name}" for name in sorted(set(names), key=names.index))
