"""The time that a change of layout cannot go below, whoever carries it out.

The floor of a change is what the slowest GPU and the pods need one after the other:

- one nvmlInit;
- on the GPU where this adds up to the most: a destroy for each compute instance and each GPU instance that
  the smallest plan destroys, nvmlDeviceSetMigMode where the mode changes, and a creation for each GPU instance
  and each compute instance that the smallest plan creates (the one that keeps what can be kept);
- one reset, where a mode change needs one (all GPUs are reset at once);
- the GPU clients' pods end, start, and the device plugin publishes.

Everything else is overhead: starting processes, further sessions, reads, requests, and waiting for anything
but these.
"""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.planning.plan import GpuPlan, NodePlan
from mig_manager.simulation.delays import Delays


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of each part."""

    init: float
    gpu: float
    """NVML calls that change the slowest GPU, and the reset."""
    end: float
    start: float
    publish: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.init + self.gpu + self.end + self.start + self.publish


def floor_of(plan: NodePlan, delays: Delays) -> Floor:
    """The floor of carrying out that plan with those delays."""
    reset = delays.reset if any(gpu.mig.reset for gpu in plan.gpus) else 0.0
    return Floor(
        init=delays.nvml["nvmlInitWithFlags"],
        gpu=max(_seconds(gpu, delays) for gpu in plan.gpus) + reset,
        end=delays.pod_end,
        start=delays.pod_start,
        publish=delays.plugin_publish,
    )


def _seconds(plan: GpuPlan, delays: Delays) -> float:
    """The calls that change one GPU."""
    cost = delays.nvml
    switches = (plan.mig.current, plan.mig.pending) != (plan.mig.target, plan.mig.target)
    created = sum(len(new.compute) for new in plan.create) + sum(len(kept.create) for kept in plan.keep)
    return (
        len(plan.lost) * cost["nvmlComputeInstanceDestroy"]
        + len(plan.destroy) * cost["nvmlGpuInstanceDestroy"]
        + switches * cost["nvmlDeviceSetMigMode"]
        + len(plan.create) * cost["nvmlDeviceCreateGpuInstanceWithPlacement"]
        + created * cost["nvmlGpuInstanceCreateComputeInstanceWithPlacement"]
    )
