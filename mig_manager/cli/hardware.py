"""The GPUs that a command works on: real ones, or simulated ones in a file."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mig_manager.cli.errors import InputError
from mig_manager.cli.output import complain
from mig_manager.errors import MigManagerError
from mig_manager.gpu.clearance import Clearance
from mig_manager.gpu.holders import Holder, in_words
from mig_manager.gpu.lock import sole_changer
from mig_manager.gpu.nvml import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NvmlCallError, NvmlSource
from mig_manager.gpu.procfs import HostFiles
from mig_manager.gpu.worker import GpuWorker
from mig_manager.host.reset import reset_gpus
from mig_manager.layouts.layout import GpuIdentity

if TYPE_CHECKING:
    from mig_manager.planning.catalogue import GpuModel
    from mig_manager.planning.plan import NodePlan

_SIMULATED_RESET_S = 60.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """Access to the GPUs of one node, open for the length of a command."""

    worker: GpuWorker
    clearance: Clearance
    """Makes way for a change."""
    reset: Callable[[Sequence[GpuIdentity]], None]
    """Resets exactly these GPUs, and those that have to be reset with them, with one command."""
    window_s: float = 0.0
    """How long processes may take to let go of what changes."""
    refuse: Callable[[NodePlan], None] = lambda plan: None
    """Raises MigManagerError where the host lets no such plan succeed."""

    @contextmanager
    def cleared(self, plan: NodePlan) -> Iterator[Callable[[], str]]:
        """Make sure that the change is possible and in nobody's way; gives who holds what it changes.

        Raises:
            MigManagerError: as `Clearance.prove` and `Clearance.obtain`.
        """
        self.clearance.prove(plan)
        self.refuse(plan)
        with self.clearance:
            self.clearance.obtain(plan, self.window_s, hindered=_tell_holders)
            yield partial(self.clearance.who, plan)
        for problem in self.clearance.problems:
            complain(problem)


def _tell_holders(holders: Sequence[Holder]) -> None:
    complain(f"waiting: {in_words(holders)}")


@contextmanager
def hardware(
    *,
    simulate: str | None,
    simulate_state: Path | None,
    driver_root: Path | None = None,
    reset_command: str | None = None,
    change: bool = False,
) -> Iterator[Hardware]:
    """Reach the GPUs; to `change` them, alone.

    Without `simulate_state` simulated GPUs are gone afterwards.

    Raises:
        InputError, MigManagerError: the options name no GPUs that can be.
    """
    command = _words(reset_command) if reset_command is not None else None
    if simulate is None and simulate_state is None:
        with _real(driver_root, command, change) as gpus:
            yield gpus
        return
    with _simulated_state(simulate, simulate_state) as state:
        source = NvmlSource(loader="mig_manager.simulation.nvml:install", argument=str(state))
        smi = (sys.executable, "-m", "mig_manager.simulation.nvidia_smi", "--state", str(state))
        with _alone(source, change), GpuWorker(source) as worker:
            # Simulated processes are seen through NVML alone; what this machine itself runs does not count.
            nowhere = state.with_name(f"{state.name}.host")
            clearance = Clearance(worker, HostFiles(nowhere, nowhere, nowhere))
            reset = partial(
                reset_gpus,
                command or (*smi, "-r", "-i", "{addresses}"),
                root=None,
                timeout_s=_SIMULATED_RESET_S,
                join=clearance.join,
                sys=nowhere,
            )
            yield Hardware(worker, clearance, reset)


def _alone(source: NvmlSource, change: bool) -> AbstractContextManager[None]:
    return sole_changer(source) if change else nullcontext()


@contextmanager
def _real(
    driver_root: Path | None, reset_command: tuple[str, ...] | None, change: bool
) -> Iterator[Hardware]:
    from mig_manager.daemon.driver import new_clearance, new_drm, new_worker, refuse_while_drm_holds, reset
    from mig_manager.daemon.settings import SettingsError, load_settings

    given: dict[str, Any] = {"node_name": "this-machine"}
    if driver_root is not None:
        given["driver_root"] = driver_root
    if reset_command is not None:
        given["reset_command"] = reset_command
    try:
        settings = load_settings(**given)
    except SettingsError as error:
        raise InputError(str(error)) from error
    worker = new_worker(settings)
    try:
        with _alone(worker.source, change), worker:
            clearance, drm = new_clearance(settings, worker), new_drm(settings)
            yield Hardware(
                worker,
                clearance,
                partial(reset, settings, clearance, drm),
                settings.holder_window,
                partial(refuse_while_drm_holds, settings),
            )
            if drm.problem:
                complain(drm.problem)
    except NvmlCallError as error:
        if error.code not in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
            raise
        hint = "On a machine without GPUs, name some to simulate: --simulate 8xA100-SXM4-80GB"
        raise MigManagerError(error.reason, f"{error.message}\n{hint}") from error


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"--reset-command {command!r}: {error}") from error
    if not words:
        raise InputError("--reset-command is empty")
    return words


def gpus_of(option: str, text: str) -> tuple[GpuModel, ...]:
    """The GPUs that an option names, such as `4xH100-80GB-HBM3,1xA30`.

    Raises:
        InputError: it cannot be read; names the option.
    """
    from mig_manager.planning.catalogue import parse_gpus

    try:
        return parse_gpus(text)
    except MigManagerError as error:
        raise InputError(f"{option} {shlex.quote(text)}: {error.message}") from error


@contextmanager
def _simulated_state(simulate: str | None, state: Path | None) -> Iterator[Path]:
    wanted = gpus_of("--simulate", simulate) if simulate is not None else None
    if state is None:
        with tempfile.TemporaryDirectory(prefix="mig-manager-") as directory:
            path = Path(directory, "gpus.json")
            _begin(path, wanted or ())
            yield path
        return
    if state.exists():
        _check(state, wanted)
    elif wanted is None:
        raise InputError(
            f"--simulate-state {state}: there is no such file; name the GPUs as well to begin one: "
            "--simulate 8xA100-SXM4-80GB"
        )
    else:
        _begin(state, wanted)
    yield state


def _begin(state: Path, gpus: Sequence[GpuModel]) -> None:
    from mig_manager.simulation.gpus import SimulatedGpus

    try:
        SimulatedGpus.create(state, gpus)
    except OSError as error:
        raise InputError(f"--simulate-state {state}: cannot be written: {error.strerror or error}") from error


def _check(state: Path, wanted: Sequence[GpuModel] | None) -> None:
    """That the file holds simulated GPUs, and the wanted ones where the user names some."""
    from mig_manager.simulation.gpu.device import RefusedError
    from mig_manager.simulation.gpus import SimulatedGpus

    try:
        found = [str(gpu["model"]) for gpu in SimulatedGpus.open(state).snapshot()["gpus"]]
    except OSError as error:
        raise InputError(f"--simulate-state {state}: cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RefusedError) as error:
        raise InputError(
            f"--simulate-state {state}: is not a file of simulated GPUs; name another file, "
            "or remove this one to begin anew"
        ) from error
    if not os.access(state.absolute().parent, os.W_OK):
        raise InputError(
            f"--simulate-state {state}: its directory cannot be written; simulated GPUs note there who uses them"
        )
    if wanted is not None and found != [gpu.name for gpu in wanted]:
        given = _counted([gpu.name for gpu in wanted])
        raise InputError(
            f"--simulate-state {state}: holds {_counted(found)}, not {given}; leave --simulate out, or name "
            "another file"
        )


def _counted(models: Sequence[str]) -> str:
    """As `--simulate` takes it."""
    return ",".join(f"{len(list(alike))}x{_title(model)}" for model, alike in groupby(models))


def _title(name: str) -> str:
    from mig_manager.planning.catalogue import catalogue

    return next((model.title for model in catalogue() if name in model.names), name)
