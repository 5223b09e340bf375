"""Leaving a cluster: what daemons that are not there any more have left on Nodes is put back.

A daemon puts things back by itself, at the end of every run and when it is asked to end before GPUs have changed. What
is left then is for its next start, which does not come once it is removed. Only what the API can tell is put back here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mig_manager.cluster.client import METADATA_LIST, Api, collection_path, object_path
from mig_manager.cluster.leases import GROUP, ROLE_LABEL
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.objects import Node, NodeMeta
from mig_manager.cluster.operands import PAUSED, resume
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.taints import without_taint
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import (
    AGAIN_ANNOTATION,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    LAYOUTS_FROM_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
)

_ANNOTATIONS = (
    STATUS_ANNOTATION,
    JOURNAL_ANNOTATION,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    LAYOUTS_FROM_ANNOTATION,
    AGAIN_ANNOTATION,
)

_PATIENCE = 60.0
"""Seconds that each request is tried again while the API server does not take it."""


@dataclass(frozen=True, slots=True)
class PutBack:
    """What was done on one Node."""

    node: str
    done: tuple[str, ...] = ()
    """In words."""
    remains: tuple[str, ...] = ()
    """What the API cannot put back, in words."""


def metadata_of_nodes(api: Api) -> tuple[NodeMeta, ...]:
    """Of every Node of the cluster. Raises ApiError."""
    listed = api.get(collection_path("nodes"), accept=METADATA_LIST, deadline=Deadline.after(_PATIENCE))
    return tuple(NodeMeta.from_json(each) for each in listed["items"])


def runs(node: NodeMeta) -> bool:
    """Whether a run is under way there, or was broken off: something is to be put back."""
    return JOURNAL_ANNOTATION in node.annotations


def with_anything_of_ours(api: Api, startup_taint: str) -> tuple[str, ...]:
    """Names of the Nodes on which `put_back` has something to do. Raises ApiError."""
    listed = api.get(collection_path("nodes"), deadline=Deadline.after(_PATIENCE))
    return tuple(
        each["metadata"]["name"]
        for each in listed["items"]
        if _change(Node.from_json(each), startup_taint)[0]
    )


def delete_daemon_set(api: Api, namespace: str, name: str) -> None:
    """Ask for its end and that of its pods; `daemon_set_is_gone` tells when that has come. Raises ApiError."""
    try:
        api.delete(
            _daemon_set(namespace, name),
            {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"},
            deadline=Deadline.after(_PATIENCE),
        )
    except ApiError as error:
        if error.status != 404:
            raise


def daemon_set_is_gone(api: Api, namespace: str, name: str) -> bool:
    """Whether it and all of its pods have ended. Raises ApiError."""
    try:
        api.get(_daemon_set(namespace, name), deadline=Deadline.after(_PATIENCE))
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return False


def _daemon_set(namespace: str, name: str) -> str:
    return object_path("daemonsets", name, namespace=namespace, group="apps/v1")


def remove_leases(api: Api, namespace: str | None, nodes: Collection[str] | None) -> tuple[str, ...]:
    """Delete the slots, and places in the queue, of those nodes (None: of all), in a namespace (None: in all).

    Gives their namespaces and names. Raises ApiError.
    """
    path, selector = (
        collection_path("leases", namespace=namespace, group=GROUP),
        {"labelSelector": ROLE_LABEL},
    )
    removed = []
    for lease in api.get(path, selector, deadline=Deadline.after(_PATIENCE))["items"]:
        meta = lease["metadata"]
        if nodes is not None and (lease.get("spec") or {}).get("holderIdentity") not in nodes:
            continue
        try:
            api.delete(
                object_path("leases", meta["name"], namespace=meta["namespace"], group=GROUP),
                {"preconditions": {"uid": meta["uid"]}},
                retry_conflict=False,
                deadline=Deadline.after(_PATIENCE),
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        else:
            removed.append(f"{meta['namespace']}/{meta['name']}")
    return tuple(removed)


def put_back(api: Api, name: str, startup_taint: str) -> PutBack:
    """Take everything of ours off a Node where no daemon runs any more, but the layout of its GPUs.

    GPU clients that we paused run again, a cordon that was ours goes, and so do the start-up taint (named by its key),
    the state label and our annotations. Raises ApiError.
    """
    told = PutBack(name)

    def change(node: Node) -> NodeChange:
        nonlocal told
        found, told = _change(node, startup_taint)
        return found

    NodeClient(api, name).update(change, deadline=Deadline.after(_PATIENCE))
    return told


def _change(node: Node, startup_taint: str) -> tuple[NodeChange, PutBack]:
    """The change of that very version of a Node, and what it does."""
    labels, annotations = node.meta.labels, node.meta.annotations
    journal = Journal.from_annotations(annotations)
    ours = [key for key in _ANNOTATIONS if key in annotations]
    done, remains = [], []

    change = without_taint(node, startup_taint)
    if change:
        done.append(f"taint {startup_taint} taken off")
    if journal is not None and journal.cordoned and node.unschedulable:
        change |= NodeChange(unschedulable=False)
        done.append("uncordoned")
    paused = {label: "true" for label, value in labels.items() if value == PAUSED} if ours else {}
    if paused:
        originals = {**paused, **(journal.operands if journal is not None else {})}
        change |= NodeChange(labels=resume(labels, originals))
        done.append(f"GPU clients resumed: {', '.join(paused)}")
    if ours:
        state = {STATE_LABEL: None} if STATE_LABEL in labels else {}
        change |= NodeChange(labels=state, annotations=dict.fromkeys(ours))
        done.append("annotations removed")
    if journal is not None:
        remains.append("a run was broken off: its GPUs may have neither the old layout nor the new one")
        if journal.services:
            remains.append(f"start on the host: systemctl start {' '.join(reversed(journal.services))}")
    elif JOURNAL_ANNOTATION in annotations:
        remains.append("the journal cannot be read; see whether the node has to be uncordoned")
    return change, PutBack(node.meta.name, tuple(done), tuple(remains))
