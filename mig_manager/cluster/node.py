"""Reading and changing our own Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mig_manager.cluster.client import Api, object_path
from mig_manager.cluster.objects import JsonObject, Node, NodeMeta, Taint, older
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What to change on a Node, and nothing else of it."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    """None removes the key. The same holds for annotations."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    unschedulable: bool | None = None
    """None leaves it as it is."""
    taints: tuple[Taint, ...] | None = None
    """All that shall be there; only for a change of the very version that they were read from."""

    def __or__(self, other: NodeChange) -> NodeChange:
        """Both in one; `other` wins where both name the same key."""
        return NodeChange(
            labels={**self.labels, **other.labels},
            annotations={**self.annotations, **other.annotations},
            unschedulable=self.unschedulable if other.unschedulable is None else other.unschedulable,
            taints=self.taints if other.taints is None else other.taints,
        )

    def __bool__(self) -> bool:
        spec = self.unschedulable is not None or self.taints is not None
        return bool(self.labels or self.annotations or spec)

    def as_patch(self, resource_version: str | None = None, uid: str = "") -> JsonObject:
        """As a JSON merge patch; with a resourceVersion it only applies to that version of the object.

        With a uid it is refused where another object has the name by now.
        """
        meta: JsonObject = {}
        if uid:
            meta["uid"] = uid
        if self.labels:
            meta["labels"] = dict(self.labels)
        if self.annotations:
            meta["annotations"] = dict(self.annotations)
        if resource_version is not None:
            meta["resourceVersion"] = resource_version
        spec: JsonObject = {}
        if self.unschedulable is not None:
            spec["unschedulable"] = True if self.unschedulable else None
        if self.taints is not None:
            spec["taints"] = [taint.as_json() for taint in self.taints] or None
        return ({"metadata": meta} if meta else {}) | ({"spec": spec} if spec else {})


def newer(one: Node, other: Node | None) -> Node:
    """The later of two versions of a Node; `one` where that cannot be told.

    Should a server count its versions otherwise, a change that is based on the older one is refused, and made again on
    what is so then.
    """
    if other is None or other.meta.uid != one.meta.uid:
        return one
    return other if older(one.meta.resource_version, other.meta.resource_version) else one


class NodeClient:
    """The Node that we run on."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self._path = object_path("nodes", name)

    def get(self, *, deadline: Deadline | None = None) -> Node:
        """The Node now. Raises ApiError; status 404 if there is no such Node."""
        return Node.from_json(self.api.get(self._path, deadline=deadline))

    def patch(self, change: NodeChange, *, deadline: Deadline | None = None, uid: str = "") -> Node:
        """Carry out a change in one request whatever else has changed meanwhile. An empty change only reads.

        Retried until the deadline; a single attempt without one. Raises ApiError; with a `uid` also where that
        Node was deleted, and another one has its name.
        """
        if not change:
            return self.get(deadline=deadline)
        return Node.from_json(self.api.patch(self._path, change.as_patch(uid=uid), deadline=deadline))

    def open(self, compute: Callable[[NodeMeta], NodeChange], meta: NodeMeta, *, deadline: Deadline) -> Node:
        """Change the Node depending on its metadata as last seen, and give all of it, in one request.

        It is only read where `compute` gives an empty change. When it has changed since it was seen, it is read
        and computed again, until the deadline. Raises ApiError (also where another Node has its name by now), and
        whatever `compute` raises.
        """
        change = compute(meta)
        if not change:
            return self.get(deadline=deadline)
        try:
            patch = change.as_patch(meta.resource_version, meta.uid)
            return Node.from_json(self.api.patch(self._path, patch, retry_conflict=False, deadline=deadline))
        except ApiError as error:
            if error.status != 409 or not error.passing or deadline.passed:
                raise
        return self.update(lambda node: compute(node.meta), deadline=deadline, uid=meta.uid)

    def update(
        self,
        compute: Callable[[Node], NodeChange | None],
        *,
        deadline: Deadline,
        node: Node | None = None,
        uid: str = "",
    ) -> Node:
        """Change the Node depending on what it is: read, compute, patch that very version.

        When another writer comes between, it is read and computed again, until the deadline. `node`, if
        given, is taken as read already. Nothing is written when `compute` gives None or an empty change.
        Raises ApiError (with a `uid` as `patch`), and whatever `compute` raises.
        """
        while True:
            node = node or self.get(deadline=deadline)
            change = compute(node)
            if not change:
                return node
            patch = change.as_patch(node.meta.resource_version, uid)
            try:
                return Node.from_json(
                    self.api.patch(self._path, patch, retry_conflict=False, deadline=deadline)
                )
            except ApiError as error:
                if error.status != 409 or not error.passing or deadline.passed:
                    raise
                node = None
