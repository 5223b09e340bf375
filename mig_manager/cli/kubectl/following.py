"""Nodes as they change, and the pods on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeVar

from loguru import logger

from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.standing import PodUse, Standing, standings
from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject, Node
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch

T = TypeVar("T")

_FIRST_S = 30.0
"""Seconds that the first reading may take."""
_END_S = 2.0
"""Seconds that the watches are given to end."""
_TICK_S = 1.0
"""Seconds between two looks while nothing changes, for the time that passes."""


class Following:
    """Watches Nodes and their pods, as a context manager; `wait` looks at them whenever they change.

    Nothing is logged meanwhile: what there is to say of the watches, `problem` tells.
    """

    def __init__(self, api: Api, names: Collection[str] = (), selector: str | None = None) -> None:
        """Follow these Nodes, or those that a selector selects, or all that have GPUs."""
        self._names = frozenset(names)
        self._selector = selector
        self._signal = Signal()
        alone = next(iter(self._names)) if len(self._names) == 1 else ""
        nodes = Selection(
            api, collection_path("nodes"), title="Nodes", name=alone, label_selector=selector or ""
        )
        bound = f"spec.nodeName={alone}" if alone else ""
        pods = Selection(api, collection_path("pods"), title="pods", field_selector=bound)
        self._nodes = ObjectWatch(nodes, _node, self._signal)
        self._pods = ObjectWatch(pods, PodUse.from_json, self._signal)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raises ApiError where the Nodes cannot be read."""
        with ExitStack() as stack:
            logger.disable("mig_manager")
            stack.callback(logger.enable, "mig_manager")
            stack.enter_context(_running(self._nodes))
            stack.enter_context(_running(self._pods))
            self._nodes.wait_synced(Deadline.after(_FIRST_S))
            self._signal.wait(lambda: self._pods.synced or self._pods.problem, Deadline.after(_FIRST_S))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def problem(self) -> str | None:
        """Why what is shown may be old; None where all is well."""
        return self._nodes.problem

    def now(self) -> tuple[Standing, ...]:
        """How the Nodes stand, by name; those that are gone are left out."""
        found = self._nodes.objects.values()
        if self._names:
            chosen = [each for each in found if each.name in self._names]
        else:
            chosen = [each for each in found if self._selector or each.has_gpus]
        pods = tuple(self._pods.objects.values()) if self._pods.synced else None
        return standings(chosen, pods)

    def wait(self, look: Callable[[], T | None], deadline: Deadline) -> T | None:
        """As `Signal.wait`; looks once a second as well."""
        return self._signal.wait(look, deadline, every=_TICK_S)


@contextmanager
def _running(watch: ObjectWatch[Any]) -> Iterator[None]:
    try:
        watch.start()
        yield
    finally:
        watch.stop()
        if watch.alive:  # Ctrl-C may come before it is.
            watch.join(_END_S)


def _node(obj: JsonObject) -> GpuNode:
    return GpuNode(Node.from_json(obj))
