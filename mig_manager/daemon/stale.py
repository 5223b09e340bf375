"""MIG resources of former layouts, which the kubelet shows with 0 for ever: taken out of the Node, if asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from typing import Self

from loguru import logger

from mig_manager.cluster.client import Api, object_path
from mig_manager.cluster.objects import Node
from mig_manager.cluster.resources import MIG_PREFIX, SHARED
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions, watch_node
from mig_manager.daemon.advertised import resource_name
from mig_manager.daemon.status import GPUS_ANNOTATION, STATE_LABEL, State
from mig_manager.errors import MigManagerError
from mig_manager.layouts.profile import MigProfile

_PATIENCE = 30.0
"""Seconds that a removal is tried again while the API server does not take it."""


class StaleResources:
    """Follows the whole Node in the background, from enter to exit of the context manager."""

    def __init__(self, api: Api, node: str, watching: WatchOptions) -> None:
        """Nothing is sent yet."""
        self._api = api
        self._path = f"{object_path('nodes', node)}/status"
        self._signal = Signal()
        self._watch = watch_node(api, node, self._signal, watching)
        self._stopping = False
        self._thread = threading.Thread(target=self._follow, name="stale-resources", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping = True
        self._watch.stop()
        self._signal.notify()

    def _follow(self) -> None:
        try:
            while names := self._signal.wait(self._found, Deadline.never()):
                if self._stopping:
                    return
                self._remove(names)
        except MigManagerError as error:
            logger.warning("resources of former layouts stay on the Node: {}", error.message)

    def _found(self) -> Collection[str] | None:
        if self._stopping:
            return ("",)
        node = self._watch.sole
        return None if node is None else stale_resources(node) or None

    def _remove(self, names: Collection[str]) -> None:
        gone = dict.fromkeys(names)
        body = {"status": {"capacity": gone, "allocatable": gone}}
        node = Node.from_json(self._api.patch(self._path, body, deadline=Deadline.after(_PATIENCE)))
        logger.info("resources of former layouts taken out of the Node: {}", ", ".join(names))
        # What the watch shows is older than this answer for a moment.
        self._signal.wait(
            lambda: self._stopping or not set(names) & set(self._shown(node)), Deadline.after(_PATIENCE)
        )

    def _shown(self, otherwise: Node) -> Collection[str]:
        return (self._watch.sole or otherwise).capacity


def stale_resources(node: Node) -> tuple[str, ...]:
    """The MIG resources that a Node shows with 0, and of which its GPUs have no instance; by name.

    None of them while the GPUs are not what the Node's label asks for: then they are about to change.
    """
    if node.meta.labels.get(STATE_LABEL) != State.SUCCESS:
        return ()
    try:
        gpus = json.loads(node.meta.annotations.get(GPUS_ANNOTATION, ""))
        present = {
            resource_name(MigProfile.parse(device))
            for gpu in gpus
            for instance in gpu["instances"]
            for device in instance["compute"]
        }
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(
        sorted(
            name
            for name, count in node.capacity.items()
            if name.startswith(MIG_PREFIX)
            and not count
            and not node.allocatable.get(name)
            and name.removesuffix(SHARED) not in present
        )
    )
