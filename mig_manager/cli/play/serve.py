"""`mig-manager demo --serve`: the simulated cluster for other clients, and the daemon's log."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue

from mig_manager.cli.play.seen import in_words, offer, smallest_layout
from mig_manager.cli.play.stage import Stage
from mig_manager.cli.play.telling import Teller
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.status import CONFIG_LABEL, STATE_LABEL
from mig_manager.planning.catalogue import GpuModel
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.world import CONFIG_MAP, NAMESPACE


def serve(
    stage: Stage,
    teller: Teller,
    models: Iterable[GpuModel],
    layouts: Iterable[str],
    log: SimpleQueue[str],
    *,
    quiet: bool,
) -> None:
    """Say how to reach the cluster, then show the log of the daemon, until Ctrl-C.

    A daemon that ends is started again, as the kubelet does it. `models` are the GPUs of the node, `layouts`
    names of layouts that suit it.
    """
    _introduce(stage, teller, smallest_layout(models), layouts)
    teller.text("Ctrl-C ends it." if quiet else "Ctrl-C ends it. The log of the daemon:", "dim")
    teller.gap()

    def show() -> None:
        for line in _taken(log):
            if not quiet:
                teller.log(line)

    def ended() -> str | None:
        how = stage.daemon.end
        show()
        return how

    stage.signal.interrupt = None
    backoff = BackOff(stage.cluster.delays)
    while True:
        how = stage.signal.wait(ended, Deadline.never())
        wait_s = backoff.after_end()
        when = f"in {wait_s:g} s" if wait_s else "at once"
        last = f" {stage.daemon.last_lines()}" if quiet else ""
        teller.gap()
        teller.text(f"The daemon {how}; it is started again {when}, as the kubelet does.{last}", "yellow")
        stage.signal.wait(show, Deadline.after(wait_s))
        stage.start_daemon()
        backoff.started()
        teller.text(f"It has pid {stage.daemon.pid} now.", "yellow")
        teller.gap()


class BackOff:
    """How long the kubelet waits before it starts a container again: at first not at all, then ever longer.

    What ran for twice the longest wait has its earlier ends forgotten.
    """

    def __init__(self, delays: Delays, clock: Callable[[], float] = time.monotonic) -> None:
        """The container has just started."""
        self._first, self._most = delays.restart, delays.restart_most
        self._clock = clock
        self._ends = 0
        self._started = clock()

    def started(self) -> None:
        """It runs again."""
        self._started = self._clock()

    def after_end(self) -> float:
        """It has ended: the seconds to wait."""
        if self._clock() - self._started > 2 * self._most:
            self._ends = 0
        self._ends += 1
        return 0.0 if self._ends == 1 else min(self._first * 2.0 ** (self._ends - 2), self._most)


def _introduce(stage: Stage, teller: Teller, example: str, layouts: Iterable[str]) -> None:
    node = stage.cluster.node
    teller.heading("", "A simulated cluster, with the real daemon on its node")
    teller.gap()
    teller.fact("node", f"{node}, offers {in_words(offer(stage.node))}")
    teller.fact("layouts", ", ".join(layouts))
    teller.fact("API", f"{stage.cluster.api.url}; files in {stage.directory}")
    teller.gap()
    teller.text("In another terminal:")
    teller.gap()
    budget = "kubectl -n ml create pdb inference --selector app=inference --min-available 2"
    commands = {
        f"export KUBECONFIG={shlex.quote(str(stage.cluster.kubeconfig))}": "",
        f"kubectl get nodes -L {CONFIG_LABEL},{STATE_LABEL}": "",
        f"kubectl label node {node} {CONFIG_LABEL}={example} --overwrite": "",
        "kubectl mig web": "its GPUs as a page in the browser",
        f"kubectl describe node {node}": "Events, and what the node offers",
        "kubectl get pods -A -o wide": "",
        f"kubectl -n {NAMESPACE} edit configmap {CONFIG_MAP}": "the layouts",
        budget: "to hold up a drain",
        f"kill -9 {stage.daemon.pid}": "the daemon; it is started again",
    }
    teller.commands(commands)
    teller.gap()


def _taken(lines: SimpleQueue[str]) -> Iterator[str]:
    while True:
        try:
            yield lines.get_nowait()
        except Empty:
            return
