"""`mig-manager demo --serve`: the simulated cluster for other clients, and the daemon's log."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue

from mig_manager.cli.play.seen import in_words, offer, smallest_layout
from mig_manager.cli.play.stage import Stage
from mig_manager.cli.play.telling import Teller
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.status import CONFIG_LABEL, STATE_LABEL
from mig_manager.planning.catalogue import GpuModel
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

    `models` are the GPUs of the node, `layouts` names of layouts that suit it.

    Raises:
        DemoError: the daemon died.
    """
    _introduce(stage, teller, smallest_layout(models), layouts)
    teller.text("Ctrl-C ends it." if quiet else "Ctrl-C ends it. The log of the daemon:", "dim")
    teller.gap()

    def show() -> None:
        for line in _taken(log):
            if not quiet:
                teller.log(line)

    stage.signal.wait(show, Deadline.never())


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
        f"kubectl describe node {node}": "Events, and what the node offers",
        "kubectl get pods -A -o wide": "",
        f"kubectl -n {NAMESPACE} edit configmap {CONFIG_MAP}": "the layouts",
        budget: "to hold up a drain",
    }
    teller.commands(commands)
    teller.gap()


def _taken(lines: SimpleQueue[str]) -> Iterator[str]:
    while True:
        try:
            yield lines.get_nowait()
        except Empty:
            return
