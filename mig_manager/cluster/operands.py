"""The GPU clients that run in Kubernetes beside us: stopping them for a change, and starting them again.

The GPU Operator starts each operand on the nodes whose deploy label says `true`; any other value stops it.
NVIDIA's own manager writes the same value while it works, so whoever looks at the labels understands both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mig_manager.cluster.client import Api, object_path
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline

PAUSED = "paused-for-mig-change"
"""What a deploy label says while we, or NVIDIA's manager, keep an operand away."""

_FOREIGN_PAUSE = "paused-for-"


class Role(StrEnum):
    """What a GPU client means to a run."""

    CLIENT = "client"
    """It only has to be away during a change, or to start anew after it."""
    DEVICE_PLUGIN = "device-plugin"
    """It offers GPUs as resources: a run waits for what it advertises."""
    DRA_PLUGIN = "dra-plugin"
    """It offers GPUs to ResourceClaims. It goes last, for no pod with a claim can end without it."""
    VALIDATOR = "validator"
    """It is deleted after a change so that it validates again, and never paused."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One GPU client."""

    name: str
    label: str | None
    """The Node label that decides whether it runs here; None: there is none, and it cannot be paused."""
    selector: Mapping[str, str]
    """Labels of its pods; empty where only their node selector tells them."""
    namespaces: tuple[str, ...] | None = None
    """Where its pods are; None: anywhere."""
    role: Role = Role.CLIENT
    container: str | None = None
    """Name of a container that its pods have, where the labels alone do not tell them."""
    holds_gpus: bool = True
    """Whether it keeps GPUs open for as long as it runs, so that none can be reset."""

    def owns(self, pod: Pod) -> bool:
        """Whether a pod is one of this operand's, by its labels."""
        return (
            bool(self.selector)
            and (self.namespaces is None or pod.namespace in self.namespaces)
            and all(pod.labels.get(key) == value for key, value in self.selector.items())
            and (self.container is None or self.container in pod.containers)
        )

    def stops(self, pod: Pod) -> bool:
        """Whether a pod goes when this operand is paused: its own, and those of DaemonSets that go by its label."""
        return self.owns(pod) or (pod.daemon_set and self.label in pod.node_keys)


_DEPLOY = "nvidia.com/gpu.deploy."
CLIENT_LABEL = f"{_DEPLOY}client"
"""The deploy label that NVIDIA has for GPU clients of others: their pods name it in their node selector."""


def gpu_operator_operands(namespace: str | None = None) -> tuple[Operand, ...]:
    """The GPU clients of NVIDIA's GPU Operator, which runs its own in that namespace (None: anywhere).

    With them NVIDIA's DRA driver, which also comes with a chart of its own, and the clients of others that go by
    the operator's label for them. config/operands.yaml is the same list.
    """
    here = None if namespace is None else (namespace,)
    component = "kubelet-plugin"
    return (
        Operand(
            "device-plugin",
            f"{_DEPLOY}device-plugin",
            {"app": "nvidia-device-plugin-daemonset"},
            here,
            Role.DEVICE_PLUGIN,
        ),
        Operand(
            "gpu-feature-discovery",
            f"{_DEPLOY}gpu-feature-discovery",
            {"app": "gpu-feature-discovery"},
            here,
            holds_gpus=False,
        ),
        Operand("dcgm-exporter", f"{_DEPLOY}dcgm-exporter", {"app": "nvidia-dcgm-exporter"}, here),
        Operand("dcgm", f"{_DEPLOY}dcgm", {"app": "nvidia-dcgm"}, here),
        Operand("nvsm", f"{_DEPLOY}nvsm", {"app": "nvidia-nvsm"}, here),
        Operand("dcgm-exporter-dra", f"{_DEPLOY}dcgm-exporter-dra", {}),
        Operand("dcgm-dra", f"{_DEPLOY}dcgm-dra", {}),
        Operand("client", CLIENT_LABEL, {}),
        Operand(
            "dra-driver",
            f"{_DEPLOY}dra-driver",
            {"dra-driver-nvidia-gpu-component": component},
            role=Role.DRA_PLUGIN,
        ),
        Operand(
            "dra-driver-of-older-charts",
            f"{_DEPLOY}dra-driver",
            {"nvidia-dra-driver-gpu-component": component},
            role=Role.DRA_PLUGIN,
        ),
        Operand(
            "operator-validator",
            f"{_DEPLOY}operator-validator",
            {"app": "nvidia-operator-validator"},
            here,
            Role.VALIDATOR,
            holds_gpus=False,
        ),
    )


@dataclass(frozen=True, slots=True)
class Pause:
    """What to write on the Node to stop the operands, and what to keep in the journal to undo it."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    """For the PATCH: only labels that have to change."""
    originals: Mapping[str, str] = field(default_factory=dict)
    """What each label that is paused by us said before."""


def pause(labels: Mapping[str, str], operands: Sequence[Operand], originals: Mapping[str, str]) -> Pause:
    """Stop the operands that run by a label of the Node; validators stay.

    `labels` are the Node's now, `originals` those of the journal if this run has paused before (else empty).
    An absent label stays absent; `false` and the pauses of others stay as they are. A label that already says
    our value, of which the journal knows nothing, was left behind by a crash, ours or of NVIDIA's manager: it
    said `true` before.
    """
    changes: dict[str, str | None] = {}
    kept = dict(originals)
    for label in (operand.label for operand in operands if operand.role is not Role.VALIDATOR):
        value = None if label is None else labels.get(label)
        if label is None or value is None or value == "false":
            continue
        if value == PAUSED:
            kept.setdefault(label, "true")
        elif _FOREIGN_PAUSE not in value:
            kept[label] = value
            changes[label] = PAUSED
    return Pause(changes, kept)


def resume(labels: Mapping[str, str], originals: Mapping[str, str]) -> Mapping[str, str | None]:
    """What to write on the Node so that the operands run again as before.

    Only where the value is still ours: any other was set by someone else meanwhile, and stays.
    """
    return {label: value for label, value in originals.items() if labels.get(label) == PAUSED}


def unlabelled(labels: Mapping[str, str], operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """The operands that no label of this Node starts or stops; they start anew when their pods are deleted.

    Validators are among them: nothing pauses those.
    """
    return tuple(one for one in operands if one.role is Role.VALIDATOR or one.label not in labels)


def paused_operands(operands: Sequence[Operand], originals: Mapping[str, str]) -> tuple[Operand, ...]:
    """The operands that a pause with these originals stops."""
    return tuple(one for one in operands if one.role is not Role.VALIDATOR and one.label in originals)


def leftovers(
    labels: Mapping[str, str], operands: Sequence[Operand], originals: Mapping[str, str]
) -> Mapping[str, str]:
    """What the labels said before that a pause left on the Node of which no journal knows.

    A run that crashed left it, ours or of NVIDIA's manager: only what says `true` is ever paused by both.
    """
    return {
        one.label: "true"
        for one in operands
        if one.label is not None and one.label not in originals and labels.get(one.label) == PAUSED
    }


def operand_pods(pods: Iterable[Pod], operands: Sequence[Operand]) -> tuple[Pod, ...]:
    """The pods of the operands that have not ended for good, by namespace and name."""
    return tuple(sorted((p for p in pods if not p.finished and any(o.owns(p) for o in operands)), key=str))


def stopped_pods(pods: Iterable[Pod], operands: Sequence[Operand]) -> tuple[Pod, ...]:
    """The pods that a pause of the operands ends and that have not ended yet, by namespace and name."""
    return tuple(sorted((p for p in pods if not p.finished and any(o.stops(p) for o in operands)), key=str))


def new_ready_pod(pods: Iterable[Pod], operands: Sequence[Operand], before: frozenset[str]) -> Pod | None:
    """A pod of the operands that is Ready and is none of those `before` (uids). Clocks play no part in it."""
    return next(
        (p for p in operand_pods(pods, operands) if p.ready and p.deleted is None and p.uid not in before),
        None,
    )


def delete_pods(api: Api, pods: Iterable[Pod], *, deadline: Deadline | None = None) -> None:
    """Delete pods so that their controller starts them anew. One that is gone already is fine.

    Raises ApiError, but only after each has been tried.
    """
    failed: ApiError | None = None
    for pod in pods:
        try:
            api.delete(
                object_path("pods", pod.name, namespace=pod.namespace),
                {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}},
                retry_conflict=False,
                deadline=deadline,
            )
        except ApiError as error:
            if error.status not in (404, 409):
                failed = error
    if failed is not None:
        raise failed
