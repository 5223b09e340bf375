"""What a run works with: the clients of this node, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mig_manager.cluster.client import Api
from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeClient
from mig_manager.cluster.operands import Operand
from mig_manager.cluster.wait import Signal
from mig_manager.cluster.watch import WatchOptions
from mig_manager.daemon.counts import Counts
from mig_manager.daemon.permissions import Permissions
from mig_manager.daemon.progress import Progress
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.wish import Wishes
from mig_manager.gpu.worker import GpuWorker


@dataclass(frozen=True, slots=True)
class Site:
    """The node, seen from the daemon."""

    settings: Settings
    api: Api
    node: NodeClient
    events: EventRecorder
    signal: Signal
    watching: WatchOptions
    """How the watches of a run behave."""
    operands: tuple[Operand, ...]
    """The GPU clients that a change stops or starts anew."""
    wishes: Wishes
    permissions: Permissions
    counts: Counts
    progress: Progress
    new_worker: Callable[[], GpuWorker]
    """A fresh worker, not started. A run owns one, and closes it at its end."""
