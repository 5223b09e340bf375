"""A simulated GPU node with the real daemon on it, as a process of its own, and a record of what happens there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mig_manager.gpu.nvml import NvmlSource
from mig_manager.gpu.worker import GpuWorker
from mig_manager.planning.state import Inventory
from mig_manager.simulation.api.faults import Request
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.world import SimulatedCluster

CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the simulated GPUs keep their state, so that no disk takes part in the measurement."""
_PATIENCE_S = 120.0
_DAEMON = "mig-manager"


@dataclass(frozen=True, slots=True)
class Run:
    """What happened on the cluster from a label to the end of the daemon's run for it."""

    began: float
    """time.monotonic() right before the label was set."""
    changes: tuple[tuple[float, Change], ...]
    """With time.monotonic()."""

    def first(self, happened: Callable[[Change], bool], after: float = 0.0) -> float:
        """When that happened first.

        Raises:
            ValueError: it did not.
        """
        for at, change in self.changes:
            if at >= after and happened(change):
                return at
        raise ValueError("not seen in this run")


class Bed:
    """The cluster and, once started, the daemon. A context manager."""

    def __init__(self, gpus: str, *, delays: Delays | None = None) -> None:
        self.delays = delays or Delays()
        self._gpus = gpus
        self._stack = ExitStack()
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
        cluster = SimulatedCluster(self.directory, self._gpus, delays=self.delays, workloads=False)
        self.cluster = self._stack.enter_context(cluster)
        self._stack.callback(self.stop)
        self.cluster.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> int:
        """Start the daemon; gives its process id."""
        environment = {**os.environ, **self.cluster.daemon_environment()}
        with Path(self.directory, "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", "mig_manager.daemon"], env=environment, stdout=log, stderr=log
            )
        return self._daemon.pid

    def stop(self) -> None:
        """End the daemon, if it runs."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.terminate()
            daemon.wait(20)

    def inventory(self) -> Inventory:
        """What the GPUs look like now."""
        source = NvmlSource(
            loader="mig_manager.simulation.nvml:install", argument=str(self.cluster.gpus.path)
        )
        with GpuWorker(source) as worker:
            return worker.inventory()

    def requests(self) -> list[Request]:
        """What the daemon has asked of the API server since the record was cleared last."""
        return [each for each in self.cluster.api.requests.all() if each.user_agent == _DAEMON]

    def apply(self, layout: str) -> Run:
        """Set the label, and wait until the node says how that ended and everything on it is ready again.

        Raises:
            RuntimeError: it failed.
        """
        changes: list[tuple[float, Change]] = []
        leave = self.cluster.store.subscribe(lambda change: changes.append((time.monotonic(), change)))
        began = time.monotonic()

        def label(node: Object) -> Object:
            node["metadata"]["labels"][CONFIG] = layout
            return node

        def end() -> Object | None:
            """The node as the record has it, once it says how the run ended."""
            nodes = (change.object for _, change in reversed(changes) if change.resource == NODES)
            node = next(nodes, None)
            return node if node is not None and ended(node, layout) else None

        try:
            self.cluster.store.update(NODES, None, self.cluster.node, label)
            status = status_of(self.cluster.wait_for(end, f"a run for {layout}", timeout=_PATIENCE_S))
        finally:
            leave()
        if status["state"] != "success":
            raise RuntimeError(f"{layout}: {status}")
        self.cluster.wait_ready(timeout=_PATIENCE_S)
        return Run(began, tuple(changes))


def status_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """The daemon's status annotation; empty without one."""
    found: dict[str, Any] = json.loads(
        node["metadata"].get("annotations", {}).get("mig-manager/status", "{}")
    )
    return found


def ended(node: Mapping[str, Any], layout: str) -> bool:
    """Whether the node says how a run for that layout ended."""
    status, state = status_of(node), node["metadata"]["labels"].get(STATE)
    return status.get("layout") == layout and status.get("state") == state != "pending"
