"""The story that the demo plays: five acts, each with one command of a user and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import yaml

from mig_manager import __version__
from mig_manager.cli.play.chronicle import Chronicle
from mig_manager.cli.play.seen import (
    changes,
    in_a_line,
    in_words,
    is_operand,
    kept,
    mig_devices,
    names,
    offer,
    settled,
    smallest_layout,
)
from mig_manager.cli.play.stage import DemoError, Stage
from mig_manager.cli.play.telling import Teller
from mig_manager.cluster.client import object_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.status import CONFIG_LABEL, STATE_LABEL, State, Status
from mig_manager.errors import Reason
from mig_manager.gpu.worker import GpuWorker
from mig_manager.planning.catalogue import GpuModel
from mig_manager.planning.state import Inventory
from mig_manager.simulation.examples import layout_file
from mig_manager.simulation.world import CONFIG_KEY, CONFIG_MAP, NAMESPACE

_EVENT_S = 30.0
_MIXED = "mixed"
_UUID = len("MIG-12345678")


@dataclass(frozen=True, slots=True)
class _Act:
    """An act that has been played."""

    title: str
    status: Status
    seconds: float
    before: Inventory
    after: Inventory
    chronicle: Chronicle


class Story:
    """Plays on a stage that is ready; raises DemoError as soon as an act ends otherwise than it should."""

    def __init__(self, stage: Stage, teller: Teller, worker: GpuWorker, models: Sequence[GpuModel]) -> None:
        """`worker` looks at the same simulated GPUs; `models` are those, at least one of them with MIG."""
        self._stage = stage
        self._teller = teller
        self._worker = worker
        self._models = models
        self._node = stage.cluster.node
        self._acts: list[_Act] = []

    def play(self) -> None:
        """All acts, from beginning to end."""
        self._introduce()
        self._smallest()
        self._mixed()
        self._edited()
        self._typo()
        self._disabled()
        self._sum_up()

    # The acts.

    def _smallest(self) -> None:
        act = self._label("Many small instances", smallest_layout(self._models))
        self._expect(act, any(state.instances for state in act.after.gpus), "GPUs with instances")

    def _mixed(self) -> None:
        title = "Larger instances beside small ones: what is there already stays"
        lines = _mixed_text(layout_file(self._models))
        act = self._label(title, _MIXED, lambda: self._teller.block(lines))
        self._expect(act, bool(kept(act.before, act.after)), "instances that stay")

    def _edited(self) -> None:
        now, edited = (layout_file(self._models, edited=edited) for edited in (False, True))
        path = object_path("configmaps", CONFIG_MAP, namespace=NAMESPACE)
        before = self._acts[-1].status
        act = self._play(
            "Somebody edits the layout: it is applied again, without a label",
            _MIXED,
            f"kubectl -n {NAMESPACE} edit configmap {CONFIG_MAP}",
            lambda: self._stage.api.patch(path, {"data": {CONFIG_KEY: edited}}),
            show=lambda: self._teller.difference(_mixed_text(now), _mixed_text(edited)),
        )
        self._expect(act, act.status.hash != before.hash, "another meaning of the layout")
        self._expect(act, bool(kept(act.before, act.after)), "instances that stay")

    def _typo(self) -> None:
        right = smallest_layout(self._models)
        wrong = right[:-2] + right[:-3:-1]
        act = self._label("A typo: nothing is touched, and the Node says why", wrong, state=State.FAILED)
        self._expect(act, act.status.reason is Reason.UNKNOWN_LAYOUT, str(Reason.UNKNOWN_LAYOUT))
        self._expect(act, right in (act.status.message or ""), f"the nearest name, {right}")
        self._expect(
            act, not act.chronicle.cordoned and mig_devices(act.before) == mig_devices(act.after), "no change"
        )

    def _disabled(self) -> None:
        act = self._label("And back to whole GPUs", "all-disabled")
        self._expect(act, not any(state.mig_current for state in act.after.gpus), "MIG off everywhere")

    # How an act is played.

    def _label(
        self,
        title: str,
        layout: str,
        show: Callable[[], None] | None = None,
        *,
        state: State = State.SUCCESS,
    ) -> _Act:
        """An act in which somebody sets the label."""
        path = object_path("nodes", self._node)
        return self._play(
            title,
            layout,
            f"kubectl label node {self._node} {CONFIG_LABEL}={layout} --overwrite",
            lambda: self._stage.api.patch(path, {"metadata": {"labels": {CONFIG_LABEL: layout}}}),
            show=show,
            state=state,
        )

    def _play(
        self,
        title: str,
        layout: str,
        command: str,
        do: Callable[[], object],
        *,
        show: Callable[[], None] | None = None,
        state: State = State.SUCCESS,
    ) -> _Act:
        stage, teller = self._stage, self._teller
        teller.heading(f"{len(self._acts) + 1} of 5", title)
        teller.command(command)
        if show is not None:
            show()
            teller.gap()
        before, pods = self._worker.inventory(), dict(stage.pods)
        chronicle = Chronicle(stage, teller.moment)
        do()
        with teller.busy("the daemon is at work"):
            status = stage.wait_for(chronicle.look, f"the end of {layout}")
            stage.signal.wait(lambda: chronicle.look() and chronicle.announced, Deadline.after(_EVENT_S))
        act = _Act(title, status, chronicle.seconds, before, self._worker.inventory(), chronicle)
        self._acts.append(act)
        self._expect(act, status.layout == layout, f"a run for {layout}")
        self._expect(act, status.state is state, state)
        self._expect(act, stage.node["metadata"]["labels"][STATE_LABEL] == state, f"the label {state}")
        teller.gap()
        self._show_outcome(act, pods)
        return act

    def _show_outcome(self, act: _Act, pods_before: dict[str, JsonObject]) -> None:
        teller, chronicle = self._teller, act.chronicle
        teller.change(act.before, act.after)
        if len(chronicle.phases) > 1:
            teller.phases(chronicle.phases)
        if mig_devices(act.before) != mig_devices(act.after):
            for line in kept(act.before, act.after):
                teller.fact("kept", line)
        if chronicle.evicted:
            teller.fact("evicted", names(chronicle.evicted.values()))
        left = [
            pod
            for uid, pod in pods_before.items()
            if uid in self._stage.pods and not is_operand(pod) and pod["spec"].get("nodeName")
        ]
        teller.fact("left", names(left))
        self._settle()
        teller.fact("now", in_a_line(self._stage.pods.values()))

    def _expect(self, act: _Act, holds: bool, what: str) -> None:
        if not holds:
            status = act.status
            why = f" ({status.reason}: {status.message})" if status.reason else ""
            raise DemoError(
                f"{act.title!r} did not end as it should: expected {what}; the Node says {status.state}"
                f"{why} for layout {status.layout}\n{self._stage.daemon.last_lines()}"
            )

    # What there is.

    def _introduce(self) -> None:
        stage, teller = self._stage, self._teller
        self._settle()
        models = [state.gpu.model for state in self._worker.inventory().gpus]
        teller.text(
            f"mig-manager {__version__}: the real daemon on a simulated node. The GPUs are simulated below NVML, "
            "the cluster behind its HTTP API, and what follows is read from there."
        )
        teller.gap()
        operands = sorted(pod["metadata"]["labels"]["app"] for pod in stage.pods.values() if is_operand(pod))
        gpus = ", ".join(f"{len(list(alike))} x {name}" for name, alike in groupby(models))
        teller.fact("node", f"{self._node}: {gpus}; offers {in_words(offer(stage.node))}")
        teller.fact("clients", ", ".join(dict.fromkeys(operands)))
        teller.fact("pods", in_a_line(self._stage.pods.values()))
        teller.fact("daemon", f"pid {stage.daemon.pid}, at {stage.cluster.api.url}")

    def _sum_up(self) -> None:
        teller = self._teller
        teller.heading("", "The end")
        for number, act in enumerate(self._acts, start=1):
            counts = changes(act.before, act.after)
            teller.fact(
                str(number), f"{act.status.layout:<14} {act.status.state:<8} {act.seconds:5.1f} s  {counts}"
            )
        teller.gap()
        teller.text("Go on with your own kubectl, on other GPUs, or without any cluster:")
        teller.command(
            "mig-manager demo --serve",
            "mig-manager demo --gpus 4xH100-80GB-HBM3,1xA30",
            "mig-manager plan --simulate 8xH200 -c all-balanced",
        )

    def _settle(self) -> None:
        """Wait until every workload runs, or waits for something that the node does not have."""
        self._stage.wait_for(
            lambda: settled(self._stage.node, self._stage.pods.values()), "the workload pods"
        )


def _mixed_text(file: str) -> list[str]:
    """The layout `mixed` of a layout file, as it stands there."""
    layout = yaml.safe_load(file)["mig-configs"][_MIXED]
    return yaml.safe_dump({_MIXED: layout}, sort_keys=False).splitlines()
