"""What the parts of the simulated cluster agree on: kinds of objects, and the store that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Object = dict[str, Any]
"""A Kubernetes object as JSON: apiVersion, kind, metadata, spec, status."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API serves it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str
    short_names: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """As in `apiVersion`: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True)
class Change:
    """One change in the store. `object` is a copy that the receiver may keep but must not modify."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: Resource
    object: Object


class Store(Protocol):
    """Objects by resource, namespace and name; thread-safe; every change gets the next resourceVersion.

    Deleting an object that has a grace period (pods) or finalizers first sets `metadata.deletionTimestamp`;
    it goes for good when a kubelet calls `remove`, or at once where no node runs it.
    """

    def create(self, resource: Resource, obj: Object) -> Object:
        """Add an object; fills in uid, creationTimestamp, resourceVersion, and a name from generateName."""
        ...

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """A copy, or None."""
        ...

    def list(self, resource: Resource, namespace: str | None = None) -> tuple[list[Object], str]:
        """Copies of all (of one namespace), and the resourceVersion at which they were read."""
        ...

    def snapshot(self, resource: Resource, namespace: str | None = None) -> tuple[Sequence[Object], int]:
        """What `list` gives, as the stored objects themselves: to read, never to modify."""
        ...

    def update(
        self, resource: Resource, namespace: str | None, name: str, change: Callable[[Object], Object | None]
    ) -> Object | None:
        """Replace an object by what `change` makes of a copy, atomically. None from `change`: leave it.

        An update that changes nothing makes no new resourceVersion and no event. None: no such object.
        """
        ...

    def delete(
        self, resource: Resource, namespace: str | None, name: str, *, grace_seconds: int | None = None
    ) -> Object | None:
        """Begin or finish a deletion, as the API server does."""
        ...

    def remove(self, resource: Resource, namespace: str | None, name: str, uid: str) -> None:
        """Take an object out for good, if it is still the one with that uid."""
        ...

    def subscribe(self, receiver: Callable[[Change], None]) -> Callable[[], None]:
        """Call `receiver` for every later change, in order and outside the lock; returns the way out."""
        ...


Labels = Mapping[str, str]
