"""A plan in words, for the log and for Events."""

from __future__ import annotations

from mig_manager.planning.plan import GpuPlan, NodePlan


def plan_in_words(plan: NodePlan) -> str:
    """A plan in a line: `GPU 0 keeps 2, destroys 1x 3g.40gb, creates 3x 1g.10gb; GPU 1: nothing to do`."""
    return "; ".join(_gpu_in_words(gpu) for gpu in plan.gpus)


def _gpu_in_words(plan: GpuPlan) -> str:
    if not plan.changes:
        return f"GPU {plan.gpu.index}: nothing to do"
    parts = []
    if plan.mig.current != plan.mig.target:
        parts.append(f"turns MIG {'on' if plan.mig.target else 'off'}{' (reset)' if plan.mig.reset else ''}")
    if plan.keep:
        parts.append(f"keeps {len(plan.keep)}")
    if plan.destroy:
        parts.append("destroys " + _counted([str(one.profile) for one in plan.destroy]))
    if plan.create:
        parts.append("creates " + _counted([str(one.profile) for one in plan.create]))
    if any(kept.create or kept.destroy for kept in plan.keep):
        parts.append("changes compute instances")
    return f"GPU {plan.gpu.index} {', '.join(parts) or 'sets its pending mode'}"


def _counted(names: list[str]) -> str:
    return " + ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
