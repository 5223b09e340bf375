"""What the containers of the operands do."""

from __future__ import annotations

from mig_manager.simulation.node.containers import Programs, Run
from mig_manager.simulation.operands.deviceplugin import DevicePlugin
from mig_manager.simulation.operands.dradriver import DraPlugin
from mig_manager.simulation.operands.featurediscovery import FeatureDiscovery
from mig_manager.simulation.operands.validator import Validator


class Monitor:
    """Keeps every GPU open for as long as it runs, as DCGM does."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._held: tuple[int, ...] = ()

    def start(self, run: Run) -> None:
        """Open the GPUs."""
        self._run = run
        self._held = (run.services.hardware.hold(run.name, run.pod["metadata"]["uid"]),)
        run.ready()

    def stop(self) -> None:
        """Close them."""
        assert self._run is not None
        self._run.services.hardware.close(self._held)


PROGRAMS: Programs = {
    "nvidia-device-plugin": DevicePlugin,
    "gpu-feature-discovery": FeatureDiscovery,
    "gpu-kubelet-plugin": DraPlugin,
    "dcgm-exporter": Monitor,
    "nv-hostengine": Monitor,
    "nvidia-validator": Validator,
}
