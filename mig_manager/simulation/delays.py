"""How long things take in the simulated world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_MEASURED_NVML: Mapping[str, float] = {
    "nvmlInit_v2": 0.05,
    "nvmlInitWithFlags": 0.05,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 0.15,
    "nvmlDeviceCreateGpuInstance": 0.15,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": 0.1,
    "nvmlGpuInstanceCreateComputeInstance": 0.1,
    "nvmlGpuInstanceDestroy": 0.05,
    "nvmlComputeInstanceDestroy": 0.05,
    "nvmlDeviceSetMigMode": 1.0,
}


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds. The defaults are those with which NVIDIA's manager was measured, so that times compare."""

    pod_notice: float = 0.0
    """From binding to the node until the kubelet has seen the pod (`status.startTime`)."""
    pod_start: float = 0.5
    """From there until the containers run."""
    pod_end: float = 0.5
    """From the deletion until the containers have ended, unless the pod has its own `end-seconds`."""
    handles: float = 0.0
    """How much later than the pod itself its handles on GPUs close."""
    plugin_publish: float = 0.5
    """From the start of the device plugin's container until the kubelet knows its devices."""
    plugin_forget: float = 300.0
    """How long the kubelet counts the devices of a plugin that is gone into the capacity."""
    node_sync: float = 0.0
    """Period with which the kubelet looks whether its node's status has changed: 10 s in life. 0: at once."""
    node_report: float = 300.0
    """How long a status that does not change stays unwritten, heartbeat included: 5 min in life."""
    labels: float = 0.1
    """From the start of GPU feature discovery until its labels are on the node."""
    controller: float = 0.0
    """What every controller and the scheduler take before they act on a change."""
    restart: float = 10.0
    """The first wait before a failed container starts again; it doubles up to `restart_most`."""
    restart_most: float = 300.0
    validation: float = 1.0
    """How often the operator's validator looks again for what it waits for: 5 s in life, 30 times."""
    reset: float = 5.0
    """A reset of GPUs."""
    boot: float = 120.0
    """From the end of everything on the node until its kubelet runs again; a guess."""
    nvml: Mapping[str, float] = field(default_factory=lambda: _MEASURED_NVML)
    """By NVML function."""

    @classmethod
    def fast(cls) -> Delays:
        """For tests: everything takes a moment, in the order in which it would in life."""
        return cls(
            pod_start=0.02,
            pod_end=0.02,
            plugin_publish=0.02,
            labels=0.01,
            restart=0.05,
            restart_most=0.2,
            validation=0.02,
            reset=0.02,
            boot=0.05,
            nvml={},
        )

    @classmethod
    def demo(cls) -> Delays:
        """For people to watch: as measured, with a shorter reset and a kubelet that syncs twice a second."""
        return cls(node_sync=0.5, restart=2.0, restart_most=10.0, reset=1.5, boot=5.0)
