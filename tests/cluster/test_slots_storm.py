"""Fifty nodes that want one of five slots, while they lose power, come back, and the API server stumbles.

Two observers that know nothing of slots watch the promise: one counts the Nodes that carry a journal at every
change in the API server's store, the other the nodes that are at work at every moment. MIG_MANAGER_STORMS says how
many storms there are; by default one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from mig_manager.cluster.client import Api
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.slots import SlotLostError, SlotRules
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import NODES
from tests.cluster.cluster import Cluster
from tests.cluster.slotusers import JOURNAL, Fleet, SlotUser

LIMIT = 5
NODES_IN_ALL = 50
RULES = SlotRules(lease_s=4.0, abandoned_s=600.0, roll_call_s=3.0)
LONGEST_S = 900.0


class Begun:
    """Nodes with a journal, as the store has them."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.most = 0

    def __call__(self, change: Change) -> None:
        if change.resource != NODES:
            return
        meta = change.object["metadata"]
        if change.type != "DELETED" and JOURNAL in (meta.get("annotations") or {}):
            self.now.add(meta["name"])
        else:
            self.now.discard(meta["name"])
        self.most = max(self.most, len(self.now))


class AtWork:
    """Nodes that do what cannot be undone at this moment; a node that lost power does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: set[str] = set()
        self.most = 0
        self.runs = 0

    def work(self, user: SlotUser, seconds: float) -> None:
        with self._lock:
            self._now.add(user.name)
            self.most = max(self.most, len(self._now))
        try:
            user.signal.pause(seconds)
        finally:
            with self._lock:
                self._now.discard(user.name)
                self.runs += 1


class Node:
    """A node that wants one run done; `run` starts its process, also after it has died."""

    def __init__(self, fleet: Fleet, name: str, at_work: AtWork) -> None:
        self.name = name
        self.done = threading.Event()
        self._fleet = fleet
        self._at_work = at_work
        self.user: SlotUser | None = None

    def run(self) -> None:
        self.user = self._fleet.user(self.name, limit=LIMIT, rules=RULES)
        self.user.start(self._change, LONGEST_S)

    def _change(self, user: SlotUser) -> None:
        """One run, tried again where the slot was lost or the API server did not do its part."""
        while True:
            try:
                user.begin()
                self._at_work.work(user, random.uniform(0.05, 0.3))
                user.slots.confirm()
                self._at_work.work(user, random.uniform(0.05, 0.3))
                user.write_journal(False)
            except (SlotLostError, ApiError):
                if user.api.dead:
                    return
                user.write_journal(False)
                user.slots.close()
                user.take(LONGEST_S)
            else:
                user.slots.close()
                self.done.set()
                return


@pytest.fixture
def quiet() -> Iterator[None]:
    logger.disable("mig_manager.cluster")
    yield
    logger.enable("mig_manager.cluster")


@pytest.fixture
def fleet(api: Api, kubeconfig: Path, cluster: Cluster, quiet: None) -> Iterator[Fleet]:
    made = Fleet(api, kubeconfig, cluster.namespace)
    yield made
    made.close()


def trouble(chance: random.Random) -> Fault:
    """Something that goes wrong with one of the next requests about Leases or Nodes."""
    path = chance.choice(["leases", "leases/mig-manager-slot", "/nodes/"])
    how: Callable[[], Fault] = chance.choice(
        [
            lambda: Fault("PATCH|POST|DELETE", path, how="cut"),
            lambda: Fault(".*", path, how="drop"),
            lambda: Fault(".*", path, status=503),
            lambda: Fault("PATCH", path, status=409),
            lambda: Fault(".*", path, delay_s=chance.uniform(0.1, 0.8)),
        ]
    )
    return how()


@pytest.mark.parametrize("seed", range(1, int(os.environ.get("MIG_MANAGER_STORMS", "1")) + 1))
def test_never_more_than_the_limit_whoever_dies(fleet: Fleet, simulation: ApiServer, seed: int) -> None:
    chance = random.Random(seed)
    begun, at_work = Begun(), AtWork()
    leave = simulation.store.subscribe(begun)
    nodes = [Node(fleet, f"storm-{seed}-{number:02}", at_work) for number in range(NODES_IN_ALL)]
    for each in nodes:
        each.run()
    dead: list[tuple[float, Node]] = []
    kills = 0
    end = time.monotonic() + LONGEST_S
    while not all(each.done.is_set() for each in nodes):
        late = [] if time.monotonic() < end else [each for each in nodes if not each.done.is_set()]
        assert not late, [(each.name, each.user and each.user.error) for each in late]
        time.sleep(0.1)
        simulation.faults.clear()  # Those that have met nothing: the last nodes would meet them all.
        simulation.faults.add(trouble(chance))
        alive = [
            each for each in nodes if not each.done.is_set() and each not in [corpse for _, corpse in dead]
        ]
        if alive and kills < NODES_IN_ALL:
            victim = chance.choice(alive)
            assert victim.user is not None
            victim.user.die()
            kills += 1
            dead.append((time.monotonic() + chance.choice([0.0, 1.0, 10.0]), victim))
        for back in [each for each in dead if each[0] <= time.monotonic()]:
            dead.remove(back)
            back[1].run()
    leave()
    simulation.faults.clear()
    assert begun.most <= LIMIT
    assert at_work.most <= LIMIT
    assert max(begun.most, at_work.most) == LIMIT, "the slots were used"
    assert kills == NODES_IN_ALL
    assert begun.now == set()
    assert [name for name in fleet.leases() if "slot" in name] == []
