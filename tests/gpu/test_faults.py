"""Whatever NVML call goes wrong: the run ends with a reason, and the GPUs hold the wanted layout or the previous.

The matrix injects each return code into each call that a transition makes. Calls that only read are sampled.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.repartition import RepartitionError, repartition
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuInstance
from mig_manager.simulation.gpus import ResetRefusedError
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node, Wanted

IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN, GPU_IS_LOST, NO_PERMISSION = 19, 23, 999, 15, 4
CODES = (IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN, GPU_IS_LOST, NO_PERMISSION)
SEVEN = "1g.10gb " * 7
READS_PER_FUNCTION = 2
"""How many calls of each reading function are tried with each code, spread over all of them."""


@dataclass(frozen=True)
class Transition:
    gpus: str
    old: tuple[Wanted, ...]
    new: tuple[Wanted, ...]
    busy: str | None = None
    """Profile of an instance of GPU 0 that both layouts hold and that a job runs on."""
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return f"{self.gpus}: {' / '.join(map(str, self.old))} -> {' / '.join(map(str, self.new))}"


TRANSITIONS = (
    Transition("1xA100-SXM4-80GB", (SEVEN,), ("3g.40gb 2g.20gb 1g.10gb",), busy="1g.10gb"),
    Transition("1xH100-80GB-HBM3", ("3g.40gb 2g.20gb 1g.10gb",), (SEVEN,), busy="1g.10gb"),
    Transition("1xH100-80GB-HBM3", ("4g.40gb 3g.40gb",), ("4g.40gb 1c.3g.40gb 2c.3g.40gb",), busy="4g.40gb"),
    Transition("1xA100-SXM4-80GB", ("7g.80gb",), ("off",)),
    Transition("1xH100-80GB-HBM3", ("off",), ("3g.40gb 3g.40gb",)),
    Transition(
        "2xA100-SXM4-80GB",
        (SEVEN, "off"),
        ("1g.10gb 1g.10gb 2g.20gb", "7g.80gb"),
        busy="1g.10gb",
        options=(("grouped_resets", False), ("resets", "work")),
    ),
    Transition("2xH100-80GB-HBM3", ("7g.80gb", "3g.40gb"), ("off", "3g.40gb 3g.40gb")),
)


class Bench:
    """A node in the state before a transition, again and again."""

    def __init__(self, node: Node, transition: Transition) -> None:
        self.node = node
        node.configure(in_use_window_s=0.05)
        node.apply(*transition.old)
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
        fresh = self.node.path.with_suffix(".start")
        fresh.write_bytes(self._start)
        os.replace(fresh, self.node.path)

    def reset(self, gpus: Sequence[GpuIdentity]) -> None:
        try:
            self.node.gpus.reset([gpu.uuid for gpu in gpus])
        except ResetRefusedError as refused:
            raise MigManagerError(Reason.GPU_IN_USE, str(refused)) from None

    def run(self) -> RepartitionError | None:
        try:
            repartition(self.node.worker, self.target, self.plan, self.before, self.reset)
        except RepartitionError as error:
            return error
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
        if error is None:
            assert self.wanted(), (case, self.holds())
            return "done"
        assert error.message, case
        if error.restored:
            assert self.holds() == self.old, (case, error, self.holds())
            assert error.reason is not Reason.ROLLBACK_FAILED, case
            return "restored"
        assert error.reason is Reason.ROLLBACK_FAILED, (case, error)
        if error.inventory is not None:
            shown = [len(state.instances) for state in error.inventory.gpus]
            assert shown == [len(instances) for _, instances in self.holds()], case
        return "rollback failed"


def cases(bench: Bench) -> Iterator[tuple[str, int, int]]:
    """Function, which call of it, return code."""
    node = bench.node
    node.gpus.record_calls()
    assert bench.run() is None
    changing = Counter(call.function for call in node.gpus.calls(changes=True))
    reading = Counter(call.function for call in node.gpus.calls(changes=False))
    for function, count in changing.items():
        for nth in range(1, count + 1):
            for code in CODES:
                yield function, nth, code
    for function, count in reading.items():
        step = max(1, count // READS_PER_FUNCTION)
        for offset, code in enumerate(CODES):
            for nth in range(1 + offset % step, count + 1, step):
                yield function, nth, code


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")

    return write


@pytest.mark.parametrize("transition", TRANSITIONS, ids=str)
def test_a_call_that_fails_once_leaves_the_wanted_or_the_previous_layout(
    make_node: MakeNode, transition: Transition, tell: Callable[[str], None]
) -> None:
    bench = Bench(make_node(transition.gpus, **dict(transition.options)), transition)
    outcomes: Counter[str] = Counter()
    for function, nth, code in list(cases(bench)):
        bench.rewind()
        bench.node.gpus.fail(function, code, nth=nth)
        outcomes[bench.check(bench.run(), (function, nth, code))] += 1
    tell(f"{outcomes.total()} faults: {dict(outcomes)}")
    assert outcomes["done"]
    assert outcomes["restored"]
    assert outcomes["rollback failed"] == 0
