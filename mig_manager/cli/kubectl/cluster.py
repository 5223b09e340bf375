"""The cluster as its user may see it: Nodes with what mig-manager says on them, and their pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mig_manager.cli.errors import InputError
from mig_manager.cluster.client import SERVICE_ACCOUNT, Api, collection_path
from mig_manager.cluster.objects import JsonObject, Node, Pod
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.session import Kubeconfig, ServiceAccount, unusable, usual_kubeconfig
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Status,
)
from mig_manager.layouts.findings import hint
from mig_manager.layouts.suggest import nearest

_PRESENT_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Of GPU feature discovery, and of node feature discovery for NVIDIA's PCI vendor id."""
_SHOWN_NAMES = 12
_NODE_WORDS = ("node", "nodes", "no")
"""What kubectl takes before the slash of a Node's name."""


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A Node, and what mig-manager says on it."""

    node: Node

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.meta.name

    @property
    def wanted(self) -> str:
        """The layout that its label asks for; empty without."""
        return self.node.meta.labels.get(CONFIG_LABEL, "")

    @property
    def state(self) -> str:
        """The state label: `pending`, `success`, `failed`, `rebooting`; empty without."""
        return self.node.meta.labels.get(STATE_LABEL, "")

    @property
    def status(self) -> Status | None:
        """The status annotation; None where there is none that can be read."""
        return Status.from_json(self.node.meta.annotations.get(STATUS_ANNOTATION))

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The annotation mig-manager/gpus as `daemon.gpus.gpus_annotation` writes it; empty without."""
        return _json_list(self.node.meta.annotations.get(GPUS_ANNOTATION))

    @property
    def layouts(self) -> list[str]:
        """Names of layouts that the node can take now, as the daemon has found; empty without."""
        return _json_list(self.node.meta.annotations.get(LAYOUTS_ANNOTATION))

    @property
    def takes_no_layout(self) -> bool:
        """Whether the daemon has found that it can take none now: its layout file cannot be used, or it has no MIG."""
        return self.node.meta.annotations.get(LAYOUTS_ANNOTATION) == "[]"

    @property
    def in_a_run(self) -> bool:
        """Whether something is to be put back there: a run is under way, or was broken off."""
        return JOURNAL_ANNOTATION in self.node.meta.annotations

    @property
    def has_gpus(self) -> bool:
        """Whether anything says that it has GPUs."""
        meta = self.node.meta
        ours = CONFIG_LABEL in meta.labels or STATUS_ANNOTATION in meta.annotations
        labelled = any(meta.labels.get(label) == "true" for label in _PRESENT_LABELS)
        return ours or labelled or bool(self.gpus) or bool(advertised(self.node))


def not_a_selector(error: ApiError, selector: str | None) -> InputError | None:
    """What to say instead of a refusal of Nodes, if it is the selector that the API server cannot read."""
    if not selector or error.status != 400:
        return None
    why = error.message.partition(": 400: ")[2] or error.message
    return InputError(f"the selector (-l) {selector!r} cannot be read: {why}")


def _json_list(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def connect(kubeconfig: Path | None, context: str | None) -> Api:
    """Reach the cluster as kubectl does; in a pod without kubeconfig, by its service account.

    Raises:
        InputError: the kubeconfig cannot be read or used, or has no such context.
    """
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import list_kube_config_contexts

    file = usual_kubeconfig() if kubeconfig is None else str(kubeconfig)
    if kubeconfig is not None and not kubeconfig.exists():
        raise InputError(f"there is no kubeconfig {kubeconfig}")
    try:
        contexts = [each["name"] for each in list_kube_config_contexts(file)[0]]  # type: ignore[no-untyped-call]
    except ConfigException:
        in_pod = kubeconfig is None and context is None and SERVICE_ACCOUNT.is_dir()
        return _api(ServiceAccount(SERVICE_ACCOUNT) if in_pod else Kubeconfig(kubeconfig, context))
    except unusable():
        return _api(Kubeconfig(kubeconfig, context))
    if context is not None and context not in contexts:
        raise InputError(f"there is no context {context!r} in the kubeconfig{_choices(context, contexts)}")
    return _api(Kubeconfig(kubeconfig, context))


def _api(credentials: ServiceAccount | Kubeconfig) -> Api:
    try:
        return Api(credentials)
    except ApiError as error:
        raise InputError(error.message) from error


def namespace_of(kubeconfig: Path | None, context: str | None) -> str:
    """The namespace that commands work in where none is named: that of the context, as kubectl has it."""
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import list_kube_config_contexts

    file = usual_kubeconfig() if kubeconfig is None else str(kubeconfig)
    try:
        contexts, current = list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    except ConfigException:
        inside = SERVICE_ACCOUNT / "namespace"
        return inside.read_text(encoding="utf-8").strip() if inside.is_file() else "default"
    named = next((each for each in contexts if each["name"] == context), current)
    return str(named["context"].get("namespace") or "default")


def find_nodes(
    api: Api, names: Sequence[str] | None = None, selector: str | None = None
) -> tuple[GpuNode, ...]:
    """Nodes by name; with a selector those that it selects; with neither all that have GPUs. Sorted by name.

    A name may have `node/` before it, as `-o name` prints it, or what else kubectl takes there.

    Raises:
        InputError: there is no Node of such a name, names and a selector are given, or the selector makes no sense.
        ApiError: the API server refuses.
    """
    if names and selector:
        raise InputError("name Nodes or give a selector (-l), not both")
    query = {"labelSelector": selector} if selector else None
    try:
        listed = api.get(collection_path("nodes"), query)
    except ApiError as error:
        raise not_a_selector(error, selector) or error from None
    nodes = {each["metadata"]["name"]: GpuNode(Node.from_json(each)) for each in listed["items"]}
    names = [_bare(name) for name in names or ()]
    for name in names:
        if name not in nodes:
            raise InputError(f"there is no Node {name!r}{_choices(name, nodes)}")
    chosen = set(names) if names else {name for name in nodes if selector or nodes[name].has_gpus}
    return tuple(nodes[name] for name in sorted(chosen))


def _bare(name: str) -> str:
    kind, _, bare = name.partition("/")
    return bare if kind in _NODE_WORDS else name


def nobody(selector: str | None) -> str:
    """What to say where there is no Node to speak of."""
    return f"no Node has labels {selector}" if selector else "there is no Node with GPUs"


def find_pods(api: Api, node: str | None = None) -> tuple[Pod, ...]:
    """Pods that have not finished: of one node, or of all namespaces and nodes. Raises ApiError."""
    return tuple(pod for each in pod_objects(api, node) if not (pod := Pod.from_json(each)).finished)


def pod_objects(api: Api, node: str | None = None) -> list[JsonObject]:
    """Pods as the API has them: of one node, or of all. Raises ApiError."""
    query = {"fieldSelector": f"spec.nodeName={node}"} if node else None
    found: list[JsonObject] = api.get(collection_path("pods"), query)["items"]
    return found


def _choices(word: str, choices: Sequence[str] | dict[str, GpuNode]) -> str:
    near = nearest(word, choices)
    if near:
        return hint(near)
    shown = sorted(choices)[:_SHOWN_NAMES]
    more = f" and {len(choices) - len(shown)} more" if len(choices) > len(shown) else ""
    return f"; there are: {', '.join(shown)}{more}" if shown else "; there is none"
