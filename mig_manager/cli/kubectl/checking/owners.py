"""Check of who else makes or gives away MIG devices on a Node. Two owners of one GPU undo each other's work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mig_manager.cli.kubectl.checking.daemonpods import nvidias_managers
from mig_manager.cli.kubectl.checking.snapshot import Check, Snapshot, Verdict
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.claims import ResourceSlice
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.resources import advertised


@dataclass(frozen=True, slots=True)
class _Other:
    """A program that partitions GPUs by itself, and how it is known; one of the marks is enough."""

    name: str
    pods: Mapping[str, str]
    node_labels: Mapping[str, str]
    annotation: str = ""


_OTHERS = (
    _Other("InstaSlice", {"name": "instaslice-daemonset"}, {}),
    _Other("nos", {}, {"nos.nebuly.com/gpu-partitioning": "mig"}),
    _Other("HAMi", {"app.kubernetes.io/component": "hami-device-plugin"}, {}, "hami.io/node-nvidia-register"),
)
"""Sources: the manifests of openshift/instaslice-operator, nebuly-ai/nos and Project-HAMi/HAMi."""
_HOW = {"HAMi": "in its MIG mode it makes and destroys instances itself"}
_PARTITIONS = "it makes and destroys instances itself"


def owners(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Other owners of the GPUs."""
    pods = seen.pods_on(node.name)
    found = [*_nvidias(seen, node, pods), *_partitioners(node, pods), *_dra(seen, node)]
    if not found and seen.pods is None:
        yield Check("owners", node.name, Verdict.UNKNOWN, seen.unread["pods"])
    else:
        yield from found or [Check("owners", node.name, Verdict.OK, "no other owner of its GPUs is seen")]


def _nvidias(seen: Snapshot, node: GpuNode, pods: tuple[JsonObject, ...]) -> Iterator[Check]:
    theirs = nvidias_managers(pods)
    if theirs and (seen.daemons_on(node.name) or node.status is not None):
        yield Check(
            "owners",
            node.name,
            Verdict.PROBLEM,
            f"NVIDIA's own mig-manager runs here too ({', '.join(theirs)}), and follows the same label",
            "set migManager.enabled=false in the values of NVIDIA's GPU Operator (docs/gpu-operator.md)",
        )


def _partitioners(node: GpuNode, pods: tuple[JsonObject, ...]) -> Iterator[Check]:
    meta = node.node.meta
    for other in _OTHERS:
        by_pod = [each["metadata"]["name"] for each in pods if other.pods and _has(each, other.pods)]
        by_label = other.node_labels and other.node_labels.items() <= meta.labels.items()
        if by_pod or by_label or (other.annotation and other.annotation in meta.annotations):
            seen_by = by_pod[0] if by_pod else other.annotation or ", ".join(other.node_labels)
            verdict = Verdict.WARNING if other.name in _HOW else Verdict.PROBLEM
            text = f"{other.name} has these GPUs too ({seen_by}): {_HOW.get(other.name, _PARTITIONS)}"
            yield Check("owners", node.name, verdict, text, "keep one of the two away from this node")


def _has(pod: JsonObject, labels: Mapping[str, str]) -> bool:
    return bool(labels.items() <= (pod["metadata"].get("labels") or {}).items())


def _dra(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """NVIDIA's DRA driver: a fellow where it gives away what is there, a rival where it makes instances."""
    slices = [each for each in seen.slices or () if each["spec"].get("nodeName") == node.name]
    devices = [device for each in slices for device in ResourceSlice.from_json(each).devices]
    if any(device.uuid is None for device in devices):
        yield Check(
            "owners",
            node.name,
            Verdict.PROBLEM,
            "NVIDIA's DRA driver makes MIG devices itself here, once they are claimed",
            "switch its feature gate DynamicMIG off, or keep mig-manager away from this node",
        )
    shown = advertised(node.node)
    if devices and shown:
        yield Check(
            "owners",
            node.name,
            Verdict.WARNING,
            f"a device plugin ({', '.join(sorted(shown))}) and NVIDIA's DRA driver ({len(devices)} devices) give away "
            "the same GPUs",
            "let one of the two serve this node",
        )
