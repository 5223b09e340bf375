"""The GPU clients that run in Kubernetes beside us: stopping them for a change, and starting them again.

The GPU Operator starts each operand on the nodes whose deploy label says `true`; any other value stops it.
NVIDIA's own manager writes the same value while it works, so whoever looks at the labels understands both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mig_manager.cluster.client import Api, object_path
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline

PAUSED = "paused-for-mig-change"
"""What a deploy label says while we, or NVIDIA's manager, keep an operand away."""

_FOREIGN_PAUSE = "paused-for-"


@dataclass(frozen=True, slots=True)
class Operand:
    """One GPU client."""

    name: str
    label: str | None
    """The Node label that decides whether it runs here; None: there is none, and it cannot be paused."""
    selector: Mapping[str, str]
    """Labels of its pods; empty if it has none to wait for."""
    namespaces: tuple[str, ...] | None = None
    """Where its pods are; None: anywhere."""

    def owns(self, pod: Pod) -> bool:
        """Whether a pod is one of this operand's."""
        return (
            bool(self.selector)
            and (self.namespaces is None or pod.namespace in self.namespaces)
            and all(pod.labels.get(key) == value for key, value in self.selector.items())
        )


def gpu_operator_operands(namespace: str | None = None) -> tuple[Operand, ...]:
    """The operands of NVIDIA's GPU Operator, in the namespace where it runs them (None: anywhere)."""
    namespaces = None if namespace is None else (namespace,)
    apps = {
        "device-plugin": "nvidia-device-plugin-daemonset",
        "gpu-feature-discovery": "gpu-feature-discovery",
        "dcgm-exporter": "nvidia-dcgm-exporter",
        "dcgm": "nvidia-dcgm",
        "nvsm": "nvidia-nvsm",
    }
    return tuple(
        Operand(name, f"nvidia.com/gpu.deploy.{name}", {"app": app}, namespaces) for name, app in apps.items()
    )


def gpu_operator_validator(namespace: str | None = None) -> Operand:
    """The GPU Operator's validator: its pods are deleted after a change so that they validate again."""
    return Operand(
        "operator-validator",
        "nvidia.com/gpu.deploy.operator-validator",
        {"app": "nvidia-operator-validator"},
        None if namespace is None else (namespace,),
    )


@dataclass(frozen=True, slots=True)
class Pause:
    """What to write on the Node to stop the operands, and what to keep in the journal to undo it."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    """For the PATCH: only labels that have to change."""
    originals: Mapping[str, str] = field(default_factory=dict)
    """What each label that is paused by us said before."""


def pause(labels: Mapping[str, str], operands: Sequence[Operand], originals: Mapping[str, str]) -> Pause:
    """Stop the operands that run by a label of the Node.

    `labels` are the Node's now, `originals` those of the journal if this run has paused before (else empty).
    An absent label stays absent; `false` and the pauses of others stay as they are. A label that already says
    our value, of which the journal knows nothing, was left behind by a crash, ours or of NVIDIA's manager: it
    said `true` before.
    """
    changes: dict[str, str | None] = {}
    kept = dict(originals)
    for label in (operand.label for operand in operands):
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


def paused_operands(operands: Sequence[Operand], originals: Mapping[str, str]) -> tuple[Operand, ...]:
    """The operands that a pause with these originals stops."""
    return tuple(operand for operand in operands if operand.label in originals)


def leftovers(labels: Mapping[str, str], operands: Sequence[Operand], originals: Mapping[str, str]) -> bool:
    """Whether a pause is left on the Node that no journal knows of."""
    return any(
        operand.label is not None and operand.label not in originals and labels.get(operand.label) == PAUSED
        for operand in operands
    )


def operand_pods(pods: Iterable[Pod], operands: Sequence[Operand]) -> tuple[Pod, ...]:
    """The pods of the operands that have not ended for good, by namespace and name."""
    return tuple(sorted((p for p in pods if not p.finished and any(o.owns(p) for o in operands)), key=str))


def new_ready_pod(pods: Iterable[Pod], operand: Operand, before: frozenset[str]) -> Pod | None:
    """A pod of the operand that is Ready and is none of those `before` (uids). Clocks play no part in it."""
    return next(
        (p for p in pods if operand.owns(p) and p.ready and p.deleted is None and p.uid not in before), None
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
