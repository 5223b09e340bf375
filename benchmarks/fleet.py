"""How much longer a fleet takes than its slots make it, and what that costs the API server.

A hundred nodes are relabelled at once; ten may change at a time, and each change takes ten seconds. The ideal is
nodes / slots times one change. On two cores there is no room for a hundred daemons: each node is a thread that does
what a daemon does around its slot, with the same client and over HTTP, and sleeps where that would work. API server
and nodes are two processes. The requests of the change itself are not counted, for there is none.

Run: python -m benchmarks fleet
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from loguru import logger

from benchmarks._table import print_machine, print_table
from mig_manager.cluster.client import Api
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.queue import Scene
from mig_manager.cluster.slots import SlotRules, Slots
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.store import MemoryStore

_NODES = 100
_SLOTS = 10
_CHANGE_S = 10.0
_PATIENCE_S = 600.0


def main() -> None:
    """Measure and print a table."""
    print_machine()
    with tempfile.TemporaryDirectory() as directory, ApiServer(MemoryStore()) as server:
        for number in range(_NODES):
            server.store.create(NODES, {"metadata": {"name": f"gpu-{number:03}"}})
        kubeconfig = Path(directory, "kubeconfig")
        server.write_kubeconfig(kubeconfig)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_fleet, args=(kubeconfig, theirs))
        process.start()
        ours.recv()
        server.requests.clear()
        began = time.monotonic()
        ours.send(None)
        most, waits = ours.recv()
        took = time.monotonic() - began
        process.join()
        asked = Counter(f"{each.verb} {each.resource}" for each in server.requests.all())
    print_machine()
    ideal = _NODES / _SLOTS * _CHANGE_S
    each = ", ".join(f"{count / _NODES:.1f} {what}" for what, count in sorted(asked.items()))
    rows = [
        ("total time", f"{took:.1f} s", f"{ideal:g} s"),
        ("over the ideal", f"{took / ideal:.3f}", "1.05"),
        ("most nodes at once", f"{most}", f"{_SLOTS}"),
        (
            "from one change to the next on a slot, mean",
            f"{1000 * (took - ideal) / (_NODES / _SLOTS):.0f} ms",
            "",
        ),
        ("nodes that waited", f"{waits}", f"{_NODES - _SLOTS}"),
        ("requests per node", f"{asked.total() / _NODES:.1f} ({each})", ""),
    ]
    print_table([f"{_NODES} nodes, {_SLOTS} slots, {_CHANGE_S:g} s a change", "", "ideal or goal"], rows)


class _Count:
    """How many work at the moment, and how many did at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.waited = 0

    def change(self, by: int) -> None:
        with self._lock:
            self._now += by
            self.most = max(self.most, self._now)

    def wait(self, waited: bool) -> None:
        with self._lock:
            self.waited += waited


def _fleet(kubeconfig: Path, parent: Connection) -> None:
    """All nodes, in a process of their own."""
    logger.remove()
    count, go = _Count(), threading.Barrier(_NODES + 1)
    api = Api.connect(kubeconfig)
    threads = [
        threading.Thread(target=_node, args=(api, f"gpu-{number:03}", go, count)) for number in range(_NODES)
    ]
    for each in threads:
        each.start()
    go.wait()
    parent.send(None)
    parent.recv()
    go.wait()
    for each in threads:
        each.join()
    parent.send((count.most, count.waited))


def _node(api: Api, name: str, go: threading.Barrier, count: _Count) -> None:
    """One node, from its label to the end of its change."""
    node, signal = NodeClient(api, name), Signal()
    meta = node.get().meta
    rules = SlotRules()
    slots = Slots(api, signal, meta, namespace="default", limit=_SLOTS, rules=rules)
    waited = False

    def tell(scene: Scene) -> None:
        """As the daemon does it: once at first, once when it turns out that the node waits."""
        nonlocal waited
        waits = not scene.choice()
        if not (said or waits) or (waits and not waited):
            node.patch(NodeChange(annotations={"mig-manager/status": str(scene)}), deadline=patience)
        said.append(scene)
        waited = waited or waits

    said: list[Scene] = []
    go.wait()
    go.wait()
    patience = Deadline.after(_PATIENCE_S)
    slots.take(patience, tell)
    slots.confirm()
    node.patch(NodeChange(annotations={rules.journal: "{}"}, unschedulable=True), deadline=patience)
    slots.seal(patience)
    count.change(1)
    time.sleep(_CHANGE_S)
    slots.confirm()
    count.change(-1)
    node.patch(NodeChange(annotations={rules.journal: None}, unschedulable=False), deadline=patience)
    slots.close()
    count.wait(waited)


if __name__ == "__main__":
    main()
