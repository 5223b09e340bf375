"""Whatever NVML call goes wrong: a run ends with a reason; the GPUs hold the wanted or the previous layout.

The matrix injects faults of every kind into every call that a transition makes, the reset command among them. Each
run of the tests takes a part of it, with all calls that change something and all kinds; MIG_MANAGER_ALL_FAULTS=1
takes it whole, and MIG_MANAGER_ALL_FAULTS=2/3 the second third of that.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.clearance import Clearance
from mig_manager.gpu.repartition import RepartitionError, repartition
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuInstance
from mig_manager.simulation.gpus import ResetRefusedError
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, Wanted

IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN, GPU_IS_LOST, NO_PERMISSION = 19, 23, 999, 15, 4
NOT_SUPPORTED, SUCCESS = 3, 0
KINDS = (
    (IN_USE, False),
    (INSUFFICIENT_RESOURCES, False),
    (UNKNOWN, False),
    (GPU_IS_LOST, False),
    (NO_PERMISSION, False),
    (UNKNOWN, True),
    (IN_USE, True),
    (SUCCESS, False),
    (NOT_SUPPORTED, False),
)
"""What a call answers, and whether it does its work all the same."""
ALL_FAULTS = os.environ.get("MIG_MANAGER_ALL_FAULTS", "")
WHOLE = bool(ALL_FAULTS)
PART, PARTS = (int(number) for number in ALL_FAULTS.split("/")) if "/" in ALL_FAULTS else (1, 1)
SEVEN = "1g.10gb " * 7


@dataclass(frozen=True)
class Transition:
    gpus: str
    old: tuple[Wanted, ...]
    new: tuple[Wanted, ...]
    busy: str | None = None
    """Profile of an instance of GPU 0 that both layouts hold and that a job runs on."""
    refused: tuple[int, int] | None = None
    """A placement on GPU 0 that it refuses although it offers it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the simulated node; `persistence` also makes way for the change as the daemon does, and with
    `grouped_resets` the reset command alone brings a mode change into force."""

    def __str__(self) -> str:
        return f"{self.gpus}: {' / '.join(map(str, self.old))} -> {' / '.join(map(str, self.new))}"


TRANSITIONS = (
    Transition("1xA100-SXM4-80GB", (SEVEN,), ("3g.40gb 2g.20gb 1g.10gb",), busy="1g.10gb"),
    Transition("1xH100-80GB-HBM3", ("3g.40gb 2g.20gb 1g.10gb",), (SEVEN,), busy="1g.10gb"),
    Transition("1xH100-80GB-HBM3", ("4g.40gb 3g.40gb",), ("4g.40gb 1c.3g.40gb 2c.3g.40gb",), busy="4g.40gb"),
    Transition("1xA100-SXM4-80GB", ("7g.80gb",), ("off",), options={"grouped_resets": True}),
    Transition("1xH100-80GB-HBM3", ("off",), ("3g.40gb 3g.40gb",)),
    Transition(
        "2xA100-SXM4-80GB",
        (SEVEN, "off"),
        ("1g.10gb 1g.10gb 2g.20gb", "7g.80gb"),
        busy="1g.10gb",
    ),
    Transition("2xH100-80GB-HBM3", ("7g.80gb", "3g.40gb"), ("off", "3g.40gb 3g.40gb")),
    Transition(
        "1xH100-80GB-HBM3", ("1g.10gb",), ("1g.10gb 2g.20gb 2g.20gb",), busy="1g.10gb", refused=(0, 2)
    ),
    Transition("1xA30", ("off",), ("2g.12gb 1g.6gb+me 1g.6gb",), options={"driver": "535.261.03"}),
    Transition("1xA100-SXM4-80GB", ("off",), ("3g.40gb 3g.40gb",), options={"persistence": True}),
)


class Bench:
    """A node in the state before a transition, again and again."""

    def __init__(self, node: Node, transition: Transition) -> None:
        self.node = node
        # The daemon lets a session linger as well, and no call here may be a matter of time.
        node.configure(in_use_window_s=0.05, linger_s=3600)
        node.apply(*transition.old)
        if transition.refused is not None:
            node.gpus.refuse_placement(0, *transition.refused)
        self.problems: list[str] = []
        self.persistent = bool(transition.options.get("persistence"))
        self.before = node.worker.inventory()
        self.target = node.target(*transition.new, inventory=self.before)
        self.job: GpuInstance | None = None
        if transition.busy is not None:
            plan = plan_node(self.target, self.before).gpus[0]
            self.job = next(k.instance for k in plan.keep if str(k.instance.profile) == transition.busy)
            node.run(0, self.job)
            self.before = node.worker.inventory()
        self.plan = plan_node(self.target, self.before)
        self._start = node.path.read_bytes()
        self.old = self.holds()

    def rewind(self) -> None:
        with suppress(MigManagerError):  # It may have died.
            self.node.worker.rest()
        fresh = self.node.path.with_suffix(".start")
        fresh.write_bytes(self._start)
        os.replace(fresh, self.node.path)

    def reset(self, gpus: Sequence[GpuIdentity]) -> None:
        try:
            self.node.gpus.reset([gpu.uuid for gpu in gpus])
        except ResetRefusedError as refused:
            raise MigManagerError(Reason.GPU_IN_USE, str(refused)) from None

    def run(self) -> RepartitionError | None:
        worker = self.node.worker
        with Clearance(worker, self.node.files) as clearance:
            try:
                if self.persistent:
                    clearance.obtain(self.plan, 0)
                repartition(worker, self.target, self.plan, self.before, self.reset)
            except RepartitionError as error:
                return error
            except MigManagerError as error:
                # Refused before the apply step: nothing was touched.
                return RepartitionError(error.reason, error.message, restored=True, inventory=None)
            finally:
                self.problems = clearance.problems
        return None

    def holds(self) -> list[Any]:
        """Modes, instances, placements and compute instances of all GPUs, from the simulation itself."""
        return [
            (
                gpu["mig"],
                sorted(
                    (
                        gi["start"],
                        gi["profile"],
                        sorted((ci["start"], ci["profile"]) for ci in gi["compute"]),
                    )
                    for gi in gpu["instances"]
                ),
            )
            for gpu in self.node.gpus.snapshot()["gpus"]
        ]

    def job_lives(self) -> bool:
        if self.job is None:
            return True
        return any(
            gi["id"] == self.job.id
            and [ci["uuid"] for ci in gi["compute"]] == [c.uuid for c in self.job.compute]
            for gi in self.node.gpus.snapshot()["gpus"][0]["instances"]
        )

    def wanted(self) -> bool:
        """Whether every GPU holds the devices of the target, and nothing else."""
        for target, (mode, instances) in zip(self.target.gpus, self.holds(), strict=True):
            devices = Counter(ci[1] for gi in instances for ci in gi[2])
            on = int(target.mig_enabled)
            if mode != {"current": on, "pending": on} or devices != Counter(map(str, target.devices)):
                return False
        return True

    def check(self, error: RepartitionError | None, case: object) -> str:
        """Hold what came of a run against the promises; gives a word for the statistics."""
        assert self.job_lives(), case
        if self.persistent and not self.problems:
            assert [gpu["persistence"] for gpu in self.node.gpus.snapshot()["gpus"]] == [True], case
        if error is None:
            assert self.wanted(), (case, self.holds())
            return "done"
        assert error.message, case
        if error.restored:
            assert self.holds() == self.old, (case, error, self.holds())
            assert error.reason is not Reason.ROLLBACK_FAILED, case
            return "restored"
        if error.reason is not Reason.ROLLBACK_FAILED:
            assert error.inventory is None, (case, error)
            assert "the GPUs cannot be read" in error.message, (case, error)
            return "not readable any more"
        if error.inventory is not None:
            shown = [len(state.instances) for state in error.inventory.gpus]
            assert shown == [len(instances) for _, instances in self.holds()], case
        return "rollback failed"


@dataclass(frozen=True)
class Fault:
    function: str
    nth: int
    code: int
    acts: bool


def calls(bench: Bench) -> list[tuple[str, bool, int]]:
    """The functions that the transition calls, whether they change something, and how often it calls them."""
    node = bench.node
    node.gpus.record_calls()
    assert bench.run() is None
    node.gpus.record_calls(on=False)
    found = Counter((call.function, call.changes) for call in node.gpus.calls())
    bench.rewind()
    return [(*key, count) for key, count in sorted(found.items())]


def faults(bench: Bench) -> Iterator[Fault]:
    """All kinds in all calls; or one kind in each call that changes, and in some of those that read."""
    turn = 0
    for function, changes, count in calls(bench):
        for nth in range(1, count + 1):
            turn += 1
            if not (changes or WHOLE or turn % 31 == 0):
                continue
            # A call that only reads and lies about its success would hand out what was in the buffer.
            kinds = KINDS if changes else KINDS[:5]
            for code, acts in kinds if WHOLE else [kinds[turn % len(kinds)]]:
                yield Fault(function, nth, code, acts)


TOLD: Counter[str] = Counter()
"""What came of all cases so far."""


@pytest.fixture(scope="module", autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the number of cases."""
    TOLD.clear()
    yield
    part = "the whole matrix" if WHOLE and PARTS == 1 else "a part of the matrix"
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stdout.write(f"\n{TOLD.total()} faults ({part}): {dict(TOLD)}\n")


@pytest.mark.parametrize("transition", TRANSITIONS, ids=str)
def test_a_call_that_fails_once_leaves_the_wanted_or_the_previous_layout(
    make_node: MakeNode, transition: Transition
) -> None:
    bench = Bench(make_node(transition.gpus, **transition.options), transition)
    outcomes: Counter[str] = Counter()
    for fault in list(faults(bench))[PART - 1 :: PARTS]:
        bench.rewind()
        bench.node.gpus.fail(fault.function, fault.code, nth=fault.nth, acts=fault.acts)
        outcomes[bench.check(bench.run(), fault)] += 1
    TOLD.update(outcomes)
    assert outcomes["restored"]
    assert outcomes["rollback failed"] == 0


@pytest.mark.parametrize("transition", TRANSITIONS if WHOLE else TRANSITIONS[:3:2], ids=str)
def test_a_call_that_fails_from_then_on_is_told_truthfully(
    make_node: MakeNode, transition: Transition
) -> None:
    bench = Bench(make_node(transition.gpus, **transition.options), transition)
    outcomes: Counter[str] = Counter()
    for fault in list(faults(bench))[PART - 1 :: PARTS]:
        if fault.nth % 8 != 1 or (fault.nth > 1 and not WHOLE):
            continue
        bench.rewind()
        bench.node.gpus.fail(fault.function, fault.code, nth=fault.nth, times=None, acts=fault.acts)
        outcomes[bench.check(bench.run(), fault)] += 1
    TOLD.update(outcomes)
    assert outcomes["rollback failed"] or outcomes["not readable any more"] or outcomes["restored"]


DIES: Mapping[str, Any] = {"code": None, "kills": True}
HANGS: Mapping[str, Any] = {"code": None, "seconds": 30.0}


@pytest.mark.parametrize("transition", TRANSITIONS if WHOLE else TRANSITIONS[:1], ids=str)
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({**DIES, "acts": False}, "died during .* SIGKILL"),
        ({**DIES, "acts": True}, "died during .* SIGKILL"),
        (HANGS, "has not come back"),
    ],
    ids=["dies before its work", "dies behind its work", "hangs"],
)
def test_a_worker_that_dies_or_hangs_in_a_call_leaves_the_previous_layout(
    make_node: MakeNode, transition: Transition, way: Mapping[str, Any], words: str
) -> None:
    bench = Bench(make_node(transition.gpus, **transition.options), transition)
    changing = [
        (function, count) for function, changes, count in calls(bench) if changes and function != "reset"
    ]
    bench.node.configure(call_timeout_s=1.0)
    for function, count in changing[PART - 1 :: PARTS] if WHOLE else changing[1:3]:
        for nth in sorted({1, count}):
            bench.rewind()
            bench.node.gpus.fail(function, nth=nth, **way)
            error = bench.run()
            outcome = bench.check(error, (function, nth))
            TOLD[outcome] += 1
            # Behind the read-back only persistence mode is put back, which undoes no good layout.
            told = "; ".join(bench.problems) if error is None else error.message
            assert re.search(words, told), (function, nth)
            assert outcome == ("restored" if error else "done")
