"""Leaving a cluster: what daemons that are not there any more have left on Nodes is put back.

A daemon puts things back by itself, at the end of every run and when it is asked to end before GPUs have changed. What
is left then is for its next start, which does not come once it is removed. Only what the API can tell is put back here.
"""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.cluster.client import METADATA_LIST, Api, collection_path, object_path
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import JsonObject, Node, NodeMeta
from mig_manager.cluster.operands import PAUSED, resume
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import STATE_LABEL

PREFIX = "mig-manager/"
"""Of all annotations that are ours."""
STARTUP_TAINT = "mig-manager/not-ready"

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


def with_anything_of_ours(api: Api) -> tuple[str, ...]:
    """Names of the Nodes on which `put_back` has something to do. Raises ApiError."""
    listed = api.get(collection_path("nodes"), deadline=Deadline.after(_PATIENCE))
    return tuple(each["metadata"]["name"] for each in listed["items"] if _change(each)[0])


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


def put_back(api: Api, name: str) -> PutBack:
    """Take everything of ours off a Node where no daemon runs any more, but the layout of its GPUs.

    GPU clients that we paused run again, a cordon that was ours goes, and so do the start-up taint, the state label
    and our annotations. Raises ApiError.
    """
    path, deadline = object_path("nodes", name), Deadline.after(_PATIENCE)
    while True:
        found = api.get(path, deadline=deadline)
        patch, told = _change(found)
        if not patch:
            return told
        try:
            api.patch(path, patch, retry_conflict=False, deadline=deadline)
        except ApiError as error:
            if error.status != 409 or deadline.passed:
                raise
        else:
            return told


def _change(found: JsonObject) -> tuple[JsonObject, PutBack]:
    """The patch of that very version of a Node, and what it does."""
    node = Node.from_json(found)
    labels, annotations = node.meta.labels, node.meta.annotations
    journal = Journal.from_annotations(annotations)
    taints = [each for each in (found.get("spec") or {}).get("taints") or () if each["key"] != STARTUP_TAINT]
    ours = [key for key in annotations if key.startswith(PREFIX)]
    done, remains = [], []

    change = NodeChange(annotations=dict.fromkeys(ours))
    if ours and STATE_LABEL in labels:
        change |= NodeChange(labels={STATE_LABEL: None})
    paused = {label: "true" for label, value in labels.items() if value == PAUSED} if ours else {}
    if paused:
        change |= NodeChange(labels=resume(labels, paused | dict(journal.operands if journal else {})))
        done.append(f"{len(paused)} GPU clients run again")
    if journal is not None and journal.cordoned and node.unschedulable:
        change |= NodeChange(unschedulable=False)
        done.append("uncordoned")
    if journal is not None and journal.services:
        remains.append(f"to be started on the host: systemctl start {' '.join(reversed(journal.services))}")
    if journal is not None:
        remains.append("a run was broken off: the GPUs may have neither the old layout nor the new one")
    elif JOURNAL_ANNOTATION in annotations:
        remains.append("the journal cannot be read; see whether the node is to be uncordoned")
    patch = change.as_patch(node.meta.resource_version) if change else {}
    if len(taints) != len(node.taints):
        done.append(f"taint {STARTUP_TAINT} taken off")
        patch = {"metadata": {"resourceVersion": node.meta.resource_version}, **patch}
        patch["spec"] = {**patch.get("spec", {}), "taints": taints or None}
    if ours:
        done.append("annotations removed")
    return patch, PutBack(node.meta.name, tuple(done), tuple(remains))
