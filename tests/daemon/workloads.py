"""Pods on the simulated node that make a run wait, and what lets it go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from mig_manager.cli.main import command_line
from mig_manager.simulation.gpu.gate import Gate
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import DAEMON_SETS, DEPLOYMENTS, POD_DISRUPTION_BUDGETS, PODS
from mig_manager.simulation.workloads import NAMESPACE, deployment, disruption_budget, pod_spec
from tests.daemon.node import LAYOUTS, OPERATOR, PATIENCE, GpuNode, real_control_plane

_PACE = 1 if real_control_plane() is None else 6
"""How much longer the control plane takes than the simulated one."""
QUICK = {
    "MIG_MANAGER_DRAIN_TIMEOUT": f"{0.5 * _PACE}",
    "MIG_MANAGER_DRAIN_MARGIN": f"{1.0 * _PACE}",
    "MIG_MANAGER_OPERAND_TIMEOUT": f"{3 * _PACE}",
    "MIG_MANAGER_RESOURCES_TIMEOUT": f"{20 * _PACE}",
    "MIG_MANAGER_IN_USE_WINDOW": "0.3",
    "MIG_MANAGER_HOLDER_WINDOW": "0.3",
    "MIG_MANAGER_RETRY_FIRST": "600",
}
"""Settings with which failures come soon, but not before a busy machine has done its part; retries do not come."""
NO_PLUGIN = {**QUICK, "MIG_MANAGER_RESOURCES_TIMEOUT": f"{1.5 * _PACE}"}
"""For runs that wait in vain for a device plugin."""
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
_BUDGET = "web-guard"
_DEPLOY = "nvidia.com/gpu.deploy."
_PLUGIN = "nvidia-device-plugin-daemonset"
_STUCK = "simulation.mig-manager/stuck"


def web(node: GpuNode) -> str:
    """A Deployment of one pod that holds every MIG device of layout `small`; gives its name once it runs."""
    spec = pod_spec("example/image", {"nvidia.com/mig-1g.10gb": 14}, terminationGracePeriodSeconds=1)
    node.cluster.store.create(DEPLOYMENTS, deployment("web", 1, spec))
    return str(node.wait(lambda: running(node, "web"), "the pod of web"))


def running(node: GpuNode, name: str, namespace: str = NAMESPACE) -> str | None:
    """The name of a running pod whose name begins so."""
    for each, pod in node.pods(namespace).items():
        if each.startswith(name) and pod.get("status", {}).get("phase") == "Running":
            return each
    return None


def guard(node: GpuNode) -> None:
    """The pod of `web`, and a PodDisruptionBudget that lets nobody evict it."""
    web(node)
    node.cluster.store.create(POD_DISRUPTION_BUDGETS, disruption_budget(_BUDGET, "web", minAvailable=1))

    def counted() -> bool:
        budget = node.cluster.store.get(POD_DISRUPTION_BUDGETS, NAMESPACE, _BUDGET)
        return bool(budget and budget.get("status"))

    node.wait(counted, "the budget's status")


def unguard(node: GpuNode) -> None:
    """Let the pod go."""
    node.cluster.store.delete(POD_DISRUPTION_BUDGETS, NAMESPACE, _BUDGET)


def mark_stuck(node: GpuNode, namespace: str, name: str, how: str | None = "process") -> None:
    """Let a pod never end; None: let it end after all."""

    def change(pod: Object) -> Object:
        notes = pod["metadata"].setdefault("annotations", {})
        notes.pop(_STUCK, None)
        if how is not None:
            notes[_STUCK] = how
        return pod

    node.cluster.store.update(PODS, namespace, name, change)


@contextmanager
def amid_the_apply(node: GpuNode, layout: str = "balanced", *, nth: int = 1) -> Iterator[Gate]:
    """A run for that layout stands still for the length of the block, where it creates an instance."""
    with node.cluster.gpus.hold_calls(CREATE, nth=nth) as gate:
        node.label(layout)
        gate.wait(PATIENCE)
        yield gate


def end_amid_a_call(node: GpuNode, gate: Gate) -> int:
    """SIGTERM to a daemon one of whose NVML calls is held, and comes back now; gives the exit status."""
    told = "SIGTERM: ending"
    before = node.logged().count(told)
    node.daemon.terminate()
    node.eventually(lambda: node.logged().count(told) > before, "the signal to be heard")
    time.sleep(0.2)  # It says so right before it does.
    gate.open()
    return node.daemon.wait(PATIENCE)


def stick_operand(node: GpuNode) -> str:
    """Let the DCGM exporter never end; gives its pod's name."""
    name = str(node.wait(lambda: running(node, "nvidia-dcgm-exporter", OPERATOR), "the exporter"))
    mark_stuck(node, OPERATOR, name)
    return name


def made_as_new(
    node: GpuNode, settings: Mapping[str, str] = MappingProxyType({}), *, at_rest: bool = False
) -> GpuNode:
    """Undo what a test has done to a node that several share: it has layout `small` again, and the daemon runs.

    `settings` are for a daemon that has to be started. `at_rest`: any layout that has been applied will do.
    """
    store = node.cluster.store
    if node.cluster.simulated:
        node.cluster.api.faults.clear()
    node.cluster.gpus.clear_faults()
    node.cluster.gpus.change_options(resets="work")
    unguard(node)
    store.delete(DEPLOYMENTS, NAMESPACE, "web")
    for pod in store.list(PODS)[0]:
        mark_stuck(node, pod["metadata"]["namespace"], pod["metadata"]["name"], None)
    node.wait(lambda: not node.pods(), "the end of the pods")
    node.set_layouts(LAYOUTS)
    if not node.runs:
        # What it has left behind would end with its container.
        for pid in node.cluster.gpus.sessions():
            os.kill(pid, signal.SIGKILL)
        node.forget()
        node.start(**settings)
        node.eventually(lambda: "on node" in node.logged(), "the start")
    if node.state != "success" or "mig-manager/journal" in node.annotations:
        node.label(None)
        node.wait(lambda: node.state is None, "the node to be let go")
    deploy = dict.fromkeys(node.deploy_labels)
    first = {key: value for key, value in node.first_labels.items() if key.startswith(_DEPLOY)}
    node.patch_node(labels={**deploy, **first}, unschedulable=False)
    if not at_rest or node.state is None:
        node.becomes("small")
    node.cluster.wait_ready()
    node.forget()
    return node


def break_plugin(node: GpuNode, how: str = "start-seconds") -> Callable[[], None]:
    """Let no device plugin that starts from now on become ready; gives what ends that.

    With `publish-seconds`, it becomes ready and offers nothing.
    """

    def start_after(seconds: str) -> None:
        def change(daemon_set: Object) -> Object:
            daemon_set["spec"]["updateStrategy"] = {"type": "OnDelete"}
            meta = daemon_set["spec"]["template"]["metadata"]
            meta["annotations"] = {f"simulation.mig-manager/{how}": seconds}
            return daemon_set

        node.cluster.store.update(DAEMON_SETS, OPERATOR, _PLUGIN, change)

    start_after("600")
    return lambda: start_after("0.02")


def unlabel_plugin(node: GpuNode) -> None:
    """Run the device plugin as its own Helm chart does: without a deploy label."""

    def change(daemon_set: Object) -> Object:
        daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {}
        return daemon_set

    node.cluster.store.update(DAEMON_SETS, OPERATOR, _PLUGIN, change)
    node.patch_node(labels={"nvidia.com/gpu.deploy.device-plugin": None})
    node.cluster.wait_ready()


def by_hand(node: GpuNode, *arguments: str) -> None:
    """Somebody changes instances on GPU 0."""
    assert command_line([*arguments, "--gpu", "0", "--simulate-state", str(node.cluster.gpus.path)]) == 0
