"""Checks of the GPU clients of one Node: the device plugin, what it advertises, and who is paused."""

from __future__ import annotations

from collections.abc import Iterator

from mig_manager.cli.kubectl.checking.snapshot import Check, Snapshot, Verdict
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.gpus import plugin_strategy
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operands import PAUSED, Operand, Role, gpu_operator_operands
from mig_manager.cluster.resources import advertised, labelled_replicas, wrong_counts
from mig_manager.daemon.advertised import expected_resources, shapes_now
from mig_manager.daemon.settings import environment_name
from mig_manager.daemon.status import STRATEGY_LABEL
from mig_manager.errors import MigManagerError
from mig_manager.planning.state import Inventory

_DEPLOY_PREFIX = "nvidia.com/gpu.deploy."
_STRATEGY_VARIABLE = "MIG_STRATEGY"
_CHART_PLUGIN = Operand(
    "device-plugin",
    None,
    {"app.kubernetes.io/name": "nvidia-device-plugin"},
    role=Role.DEVICE_PLUGIN,
    container="nvidia-device-plugin-ctr",
)
"""Of NVIDIA's Helm chart nvidia-device-plugin."""
_OPERANDS = (*gpu_operator_operands(), _CHART_PLUGIN)


def device_plugin(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Its pod, and whether its strategy is the one that the Node is labelled with."""
    if seen.pods is None:
        yield Check("device-plugin", node.name, Verdict.UNKNOWN, seen.unread["pods"])
        return
    plugins = _pods(seen, node, Role.DEVICE_PLUGIN)
    if not plugins:
        yield _no_plugin(seen, node)
        return
    for pod, environment in plugins:
        own = environment.get(_STRATEGY_VARIABLE, "")
        wrong = _other_strategy(seen, node, own)
        if not pod.ready and not node.in_a_run:
            logs = f"kubectl -n {pod.namespace} logs {pod.name}"
            yield Check("device-plugin", node.name, Verdict.PROBLEM, f"{pod} is not ready", logs)
        elif wrong:
            text, todo = wrong
            yield Check(
                "device-plugin", node.name, Verdict.PROBLEM, f"{pod} has the MIG strategy {own}, {text}", todo
            )
        else:
            strategy = own or node.node.meta.labels.get(STRATEGY_LABEL, "")
            words = f", strategy {strategy}" if strategy else ""
            ready = "is ready" if pod.ready else "is paused or starting, since a run is under way"
            yield Check("device-plugin", node.name, Verdict.OK, f"{pod} {ready}{words}")


def _other_strategy(seen: Snapshot, node: GpuNode, own: str) -> tuple[str, str] | None:
    """Who takes the plugin's strategy for another one, and what to do; None where nobody does."""
    labelled = node.node.meta.labels.get(STRATEGY_LABEL)
    if not own or own == labelled:
        return None
    if labelled:
        todo = "give device plugin and GPU feature discovery the same strategy, and restart both"
        return f"but the Node is labelled {STRATEGY_LABEL}={labelled}", todo
    setting = _daemons_strategy(seen, node)
    if setting in (None, own):
        return None
    variable = environment_name("mig_strategy")
    text = f"but the daemon takes it for {setting}, as the Node has no label {STRATEGY_LABEL}"
    return text, f"set {variable}={own} for the daemon, or run GPU feature discovery"


def _daemons_strategy(seen: Snapshot, node: GpuNode) -> str | None:
    """What the daemon of a Node goes by where no label tells; None where that is not known."""
    settings = [settings for pod in seen.daemons_on(node.name) if (settings := pod.settings()) is not None]
    return settings[0].mig_strategy if settings else None


def _no_plugin(seen: Snapshot, node: GpuNode) -> Check:
    if node.in_a_run:
        return Check("device-plugin", node.name, Verdict.OK, "paused: a run is under way, or was broken off")
    drivers = _pods(seen, node, Role.DRA_PLUGIN)
    if drivers:
        return Check(
            "device-plugin", node.name, Verdict.OK, f"none; {drivers[0][0]} gives GPUs to ResourceClaims"
        )
    shown = advertised(node.node)
    if shown:
        text = f"none that is known, although {', '.join(sorted(shown))} is advertised: another one runs here"
        return Check("device-plugin", node.name, Verdict.UNKNOWN, text)
    label = node.node.meta.labels.get(f"{_DEPLOY_PREFIX}device-plugin")
    text = "no device plugin runs here" + (f" ({_DEPLOY_PREFIX}device-plugin={label})" if label else "")
    return Check("device-plugin", node.name, Verdict.WARNING, text, "kubectl get daemonsets -A")


def _pods(seen: Snapshot, node: GpuNode, role: Role) -> list[tuple[Pod, dict[str, str]]]:
    """The pods of a role there, each with the variables of its containers."""
    found = []
    for each in seen.pods_on(node.name):
        pod = Pod.from_json(each)
        if any(operand.role is role and operand.owns(pod) for operand in _OPERANDS):
            containers = each["spec"].get("containers") or ()
            variables = [one for container in containers for one in container.get("env") or ()]
            found.append((pod, {one["name"]: one["value"] for one in variables if one.get("value")}))
    return found


def resources(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Whether what is advertised is what the GPUs hold."""
    inventory = seen.inventories.get(node.name)
    shown = advertised(node.node)
    if node.in_a_run:
        yield Check("resources", node.name, Verdict.OK, "not compared: a run is under way, or was broken off")
        return
    if inventory is None:
        yield Check("resources", node.name, Verdict.UNKNOWN, "what the GPUs hold is not known")
        return
    if seen.pods is not None and not _pods(seen, node, Role.DEVICE_PLUGIN) and not shown:
        yield Check("resources", node.name, Verdict.OK, "none is advertised, as no device plugin runs here")
        return
    try:
        expected = expected_resources(shapes_now(inventory), _strategy(seen, node, inventory))
    except MigManagerError as error:
        yield Check(
            "resources", node.name, Verdict.PROBLEM, error.message, "docs/troubleshooting.md#strategymismatch"
        )
        return
    replicas = {name: (count,) for name, count in labelled_replicas(node.node.meta.labels, expected).items()}
    wrong = wrong_counts(shown, expected, replicas)
    if wrong is None:
        words = ", ".join(f"{count} {name}" for name, count in sorted(shown.items())) or "none"
        yield Check("resources", node.name, Verdict.OK, f"{words}, as the GPUs hold")
    else:
        plugin = "app=nvidia-device-plugin-daemonset"
        todo = f"restart the device plugin: kubectl get pods -A -l {plugin} --field-selector spec.nodeName={node.name}"
        yield Check("resources", node.name, Verdict.PROBLEM, wrong, todo)


def _strategy(seen: Snapshot, node: GpuNode, inventory: Inventory) -> str:
    """The plugin's: as labelled, as it says itself, as the daemon takes it, or as its numbers look."""
    own = [each.get(_STRATEGY_VARIABLE, "") for _, each in _pods(seen, node, Role.DEVICE_PLUGIN)]
    known = (node.node.meta.labels.get(STRATEGY_LABEL), *own, _daemons_strategy(seen, node))
    return next(filter(None, known), None) or plugin_strategy(node, inventory)


def paused(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Whether GPU clients are away, and by whom."""
    labels = node.node.meta.labels
    deployed = {key: value for key, value in labels.items() if key.startswith(_DEPLOY_PREFIX)}
    ours = sorted(key for key, value in deployed.items() if value == PAUSED)
    others = sorted(
        f"{key}={value}" for key, value in deployed.items() if value.startswith("paused-") and key not in ours
    )
    if others:
        text = f"paused by another program: {', '.join(others)}"
        yield Check("operands", node.name, Verdict.WARNING, text, "see whether that is still at work")
    if ours and node.in_a_run:
        names = ", ".join(key.removeprefix(_DEPLOY_PREFIX) for key in ours)
        yield Check(
            "operands", node.name, Verdict.OK, f"paused by the run that the journal tells of: {names}"
        )
    elif ours:
        changes = " ".join(f"{key}=true" for key in ours)
        yield Check(
            "operands",
            node.name,
            Verdict.PROBLEM,
            f"paused by nobody who is still at work: {', '.join(ours)}",
            f"kubectl label node {node.name} {changes} --overwrite (the daemon does it at its next start)",
        )
    elif not others:
        yield Check("operands", node.name, Verdict.OK, "no GPU client is paused")
