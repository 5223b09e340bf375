"""The GPUs that a command works on: real ones, or simulated ones in a file."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mig_manager.cli.errors import InputError
from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.worker import GpuWorker
from mig_manager.host.driver import find_library, reset_gpus
from mig_manager.layouts.layout import GpuIdentity

_RESET_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """Open access to the GPUs of one node."""

    worker: GpuWorker
    reset_command: tuple[str, ...]
    """With `{gpus}` for the comma-joined UUIDs."""
    reset_root: Path | None

    def reset(self, gpus: Sequence[GpuIdentity]) -> None:
        """Reset exactly these GPUs, in one command."""
        reset_gpus(self.reset_command, gpus, root=self.reset_root, timeout_s=_RESET_TIMEOUT_S)


@contextmanager
def hardware(
    *,
    simulate: str | None,
    simulate_state: Path | None,
    driver_root: Path | None = None,
    reset_command: str | None = None,
) -> Iterator[Hardware]:
    """Reach the GPUs for the length of one command.

    Without `simulate_state` simulated GPUs are gone afterwards.
    """
    if simulate is None and simulate_state is None:
        command = tuple(shlex.split(reset_command)) if reset_command else _reset_command()
        with GpuWorker(NvmlSource(library=find_library(driver_root))) as worker:
            yield Hardware(worker, command, driver_root)
        return
    with _simulated_state(simulate, simulate_state) as state:
        source = NvmlSource(loader="mig_manager.simulation.nvml:install", argument=str(state))
        smi = (sys.executable, "-m", "mig_manager.simulation.nvidia_smi", "--state", str(state))
        with GpuWorker(source) as worker:
            yield Hardware(worker, (*smi, "--gpu-reset", "-i", "{gpus}"), None)


@contextmanager
def _simulated_state(simulate: str | None, state: Path | None) -> Iterator[Path]:
    from mig_manager.planning.catalogue import parse_gpus
    from mig_manager.simulation.gpus import SimulatedGpus

    models = parse_gpus(simulate) if simulate is not None else None
    if state is None:
        with tempfile.TemporaryDirectory(prefix="mig-manager-") as directory:
            path = Path(directory) / "gpus.json"
            SimulatedGpus.create(path, models or ())
            yield path
    elif models is None:
        if not state.exists():
            raise InputError(
                f"--simulate-state {state}: there is no such file; name the GPUs as well to begin one: "
                "--simulate 8xA100-SXM4-80GB"
            )
        yield state
    elif state.exists():
        yield state
    else:
        SimulatedGpus.create(state, models)
        yield state


def _reset_command() -> tuple[str, ...]:
    raise NotImplementedError
