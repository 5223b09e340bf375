"""Reads what `diagnose` needs. A user who may only read the own pods gets as much as that tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from mig_manager.cli.choice import all_layouts
from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.cluster import GpuNode, find_nodes, pod_objects
from mig_manager.cli.kubectl.explaining.labels import inventory_from_labels
from mig_manager.cli.kubectl.explaining.scene import Claim, Place, Scene
from mig_manager.cli.kubectl.gpus import gpus_of
from mig_manager.cli.kubectl.meaning import Meanings
from mig_manager.cli.kubectl.use import Tenant
from mig_manager.cluster.claims import GPU_DRIVER, served_version
from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError
from mig_manager.layouts.findings import hint
from mig_manager.layouts.suggest import nearest
from mig_manager.planning.state import Inventory

T = TypeVar("T")

_FORBIDDEN = (401, 403)
_SHOWN_NAMES = 3


def read_scene(api: Api, namespace: str, name: str) -> Scene:
    """Everything about a pod.

    Raises:
        InputError: there is no such pod.
        ApiError: the API server refuses the pod, or does not answer.
    """
    pod = _pod(api, namespace, name)
    nodes = _allowed(lambda: find_nodes(api))
    pods = None if nodes is None else _allowed(lambda: pod_objects(api))
    meanings = Meanings(api)
    tenants = None if pods is None else _by_node(pods)
    places = [
        _place(node, None if tenants is None else tenants.get(node.name, ()), meanings)
        for node in nodes or ()
    ]
    claims = tuple(_claims(api, pod))
    pools = _allowed(lambda: _pools(api)) if claims else None
    return Scene(pod, None if nodes is None else tuple(places), pods is not None, claims, pools or {})


def _by_node(pods: Iterable[JsonObject]) -> Mapping[str, tuple[Tenant, ...]]:
    """Pods that have not finished, by their Node."""
    found: dict[str, list[Tenant]] = {}
    for tenant in map(Tenant.from_json, pods):
        if not tenant.pod.finished:
            found.setdefault(tenant.pod.node, []).append(tenant)
    return {node: tuple(tenants) for node, tenants in found.items()}


def _allowed(read: Callable[[], T]) -> T | None:
    """What it reads; None where that is forbidden. Raises ApiError for all else."""
    try:
        return read()
    except ApiError as error:
        if error.status not in _FORBIDDEN:
            raise
        return None


def _pod(api: Api, namespace: str, name: str) -> JsonObject:
    try:
        return api.get(object_path("pods", name, namespace=namespace))
    except ApiError as error:
        if error.status != 404:
            raise
    listed = _allowed(lambda: api.get(collection_path("pods", namespace=namespace)))
    names = [each["metadata"]["name"] for each in (listed or {}).get("items") or ()]
    # Who names a Deployment or a Job means one of its pods.
    meant = [each for each in names if each.startswith(f"{name}-")][:_SHOWN_NAMES]
    near = hint(meant or nearest(name, names)) or ("" if names else f"; there is no pod in {namespace!r}")
    raise InputError(
        f"there is no pod {name!r} in namespace {namespace!r}{near or '; -n names another namespace'}"
    )


def _place(node: GpuNode, tenants: tuple[Tenant, ...] | None, meanings: Meanings) -> Place:
    inventory: Inventory | None
    try:
        reading = gpus_of(node)
        inventory, doubts = reading.inventory, [f"the node does not tell {each}" for each in reading.missing]
    except InputError:
        inventory = inventory_from_labels(node.node)
        doubts = ["its GPUs are taken from the labels of GPU feature discovery"]
    if inventory is None:
        return Place(node, tenants)
    written = meanings.written(node)
    if written.book is None and node.takes_no_layout:
        return Place(node, tenants, inventory=inventory)
    if written.book is None:
        doubts.append(f"its layouts are taken to be those of its hardware ({written.words})")
    if written.unread:
        doubts.append(f"that name may have another meaning in {written.unread}")
    book = all_layouts(written.book, inventory)
    return Place(node, tenants, inventory=inventory, book=book, doubts=tuple(doubts))


def _claims(api: Api, pod: JsonObject) -> Iterator[Claim]:
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    version = _allowed(lambda: served_version(api)) if entries else None
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    namespace = pod["metadata"].get("namespace", "")

    def read(plural: str, name: str) -> JsonObject | None:
        if version is None:
            return None
        return _found(api, object_path(plural, name, namespace=namespace, group=version))

    for entry in entries:
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        template = entry.get("resourceClaimTemplateName")
        if name:
            yield Claim(entry["name"], name, template, read("resourceclaims", name))
        elif entry["name"] not in made:
            there = template is not None and read("resourceclaimtemplates", template) is not None
            yield Claim(entry["name"], None, template, template_exists=there)


def _found(api: Api, path: str) -> JsonObject | None:
    """The object there; an empty one where it may not be read, None where there is none."""
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        if error.status in _FORBIDDEN:
            return {}
        raise


def _pools(api: Api) -> Mapping[str, int]:
    version = served_version(api)
    if version is None:
        return {}
    query = {"fieldSelector": f"spec.driver={GPU_DRIVER}"}
    found: dict[str, int] = {}
    for each in api.get(collection_path("resourceslices", group=version), query).get("items") or ():
        node = each["spec"].get("nodeName") or each["spec"]["pool"]["name"]
        found[node] = found.get(node, 0) + len(each["spec"].get("devices") or ())
    return found
