"""Reads the snapshot. What a user may not read is left out, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from mig_manager import __version__
from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.checking.daemonpods import Account, DaemonPod, daemon_pods
from mig_manager.cli.kubectl.checking.snapshot import Snapshot
from mig_manager.cli.kubectl.cluster import GpuNode, find_nodes, nobody, pod_objects
from mig_manager.cluster.access import denied
from mig_manager.cluster.claims import GPU_DRIVER, served_version
from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.gpus import AnnotationError, inventory_from_annotation
from mig_manager.daemon.permissions import EVENT, Need, needs
from mig_manager.daemon.status import GPUS_ANNOTATION
from mig_manager.planning.state import Inventory

T = TypeVar("T")

_ADMISSION = "admissionregistration.k8s.io/v1"
_PATIENCE_S = 15.0
_FINISHED = ("Succeeded", "Failed")


def read_snapshot(api: Api, names: Sequence[str] | None, selector: str | None) -> Snapshot:
    """The cluster as it is now.

    Raises:
        InputError: as `find_nodes`, or the selector selects no Node.
        ApiError: Nodes may not be listed, or the API server does not answer.
    """
    nodes = find_nodes(api, names, selector)
    if selector and not nodes:
        raise InputError(nobody(selector))
    unread: dict[str, str] = {}

    def read(what: str, look: Callable[[], T]) -> T | None:
        try:
            return look()
        except ApiError as error:
            unread[what] = "the API server does not know of these" if error.status == 404 else error.message
            return None

    pods = read("pods", lambda: _active(pod_objects(api)))
    daemons = daemon_pods(pods or ())
    return Snapshot(
        now=datetime.now(UTC),
        version=__version__,
        kubernetes=read("kubernetes", lambda: str(api.get("/version").get("gitVersion", ""))) or "",
        nodes=nodes,
        inventories=_inventories(nodes),
        pods=pods,
        slices=read("slices", lambda: _slices(api)),
        policies=read(
            "policies", lambda: _items(api, collection_path("validatingadmissionpolicies", group=_ADMISSION))
        ),
        bindings=read(
            "bindings",
            lambda: _items(api, collection_path("validatingadmissionpolicybindings", group=_ADMISSION)),
        ),
        missing=read("missing", lambda: _missing(api, daemons)),
        complaints=read("events", lambda: _complaints(api)) or (),
        unread=unread,
    )


def _active(pods: Iterable[JsonObject]) -> tuple[JsonObject, ...]:
    return tuple(each for each in pods if (each.get("status") or {}).get("phase") not in _FINISHED)


def _items(api: Api, path: str, query: Mapping[str, str] | None = None) -> tuple[JsonObject, ...]:
    return tuple(api.get(path, query).get("items") or ())


def _slices(api: Api) -> tuple[JsonObject, ...]:
    version = served_version(api)
    if version is None:
        return ()
    query = {"fieldSelector": f"spec.driver={GPU_DRIVER}"}
    return _items(api, collection_path("resourceslices", group=version), query)


def _complaints(api: Api) -> tuple[str, ...]:
    query = {"fieldSelector": f"involvedObject.kind=Node,reason={EVENT}"}
    events = _items(api, collection_path("events", namespace="default"), query)
    return tuple(dict.fromkeys(str(each.get("message", "")) for each in events))


def _inventories(nodes: Iterable[GpuNode]) -> Mapping[str, Inventory]:
    found = {}
    for node in nodes:
        try:
            text = node.node.meta.annotations.get(GPUS_ANNOTATION, "")
            found[node.name] = inventory_from_annotation(text).inventory
        except AnnotationError:
            continue
    return found


def _missing(api: Api, daemons: Sequence[DaemonPod]) -> Mapping[Account, tuple[Need, ...]]:
    """What each account lacks, asked for one of its pods: settings may differ, but hardly do."""
    found: dict[Account, tuple[Need, ...]] = {}
    for pod in daemons:
        settings = pod.settings()
        if pod.account in found or settings is None:
            continue
        needed = needs(settings)
        lacking = denied(
            api,
            [each.permission for each in needed],
            user=pod.account.user,
            deadline=Deadline.after(_PATIENCE_S),
        )
        found[pod.account] = tuple(each for each in needed if each.permission in lacking)
    return found
