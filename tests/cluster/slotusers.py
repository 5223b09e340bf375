"""Nodes that want fleet slots: what a daemon does around its slot, and nothing else of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.leases import GROUP
from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.objects import JsonObject, NodeMeta
from mig_manager.cluster.queue import Scene
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.session import Kubeconfig
from mig_manager.cluster.slots import SlotRules, Slots
from mig_manager.cluster.wait import Deadline, Signal

JOURNAL = "mig-manager/journal"
PATIENCE_S = 120.0
QUICK = SlotRules(lease_s=2.0, abandoned_s=600.0, roll_call_s=1.0)


class Dead(BaseException):
    """The node has lost its power: not even `finally` can send anything any more."""


class MortalApi(Api):
    """A connection that ends with the node: nothing is sent any more, and what was answered is not heard."""

    dead = False

    def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, **options: Any
    ) -> JsonObject:
        self.live()
        answer = super().request(method, path, query, **options)
        self.live()
        return answer

    def live(self) -> None:
        if self.dead:
            raise ApiError("The node is dead.")


class SlotUser:
    """A node with one process on it that wants a slot. `start` begins in a thread."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        name: str,
        *,
        limit: int,
        pool: str = "",
        rules: SlotRules = QUICK,
        uid: str,
    ) -> None:
        self.name = name
        self.signal = Signal(self._interrupt)
        self.api = MortalApi(Kubeconfig(kubeconfig), self.signal.pause)
        self.node = NodeClient(self.api, name)
        self.told: list[Scene] = []
        self.error: Exception | None = None
        self.has = threading.Event()
        self.slots = Slots(
            self.api,
            self.signal,
            NodeMeta(name, uid, "", {}, {}),
            namespace=namespace,
            pool=pool,
            limit=limit,
            rules=rules,
        )
        self._thread: threading.Thread | None = None

    def take(self, wait_s: float = PATIENCE_S) -> bool:
        """As the daemon does it."""
        return self.slots.take(Deadline.after(wait_s), self.told.append)

    def start(
        self, then: Callable[[SlotUser], None] = lambda user: None, wait_s: float = PATIENCE_S
    ) -> SlotUser:
        """Take a slot in a thread, say so by `has`, and do something then."""

        def work() -> None:
            try:
                if self.take(wait_s):
                    self.has.set()
                    then(self)
            except Dead:
                pass
            except Exception as error:  # noqa: BLE001 - for the thread that joins
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True, name=self.name)
        self._thread.start()
        return self

    def begin(self) -> None:
        """What comes between slot and work: journal and cordon, in one request."""
        self.slots.confirm()
        self.write_journal(True)
        self.slots.seal(Deadline.after(PATIENCE_S))

    def write_journal(self, present: bool) -> None:
        change = NodeChange(annotations={JOURNAL: "{}" if present else None}, unschedulable=present)
        self.node.patch(change, deadline=Deadline.after(PATIENCE_S))

    def die(self) -> None:
        """Power off."""
        self.api.dead = True
        self.signal.notify()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
        self.slots.close()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _interrupt(self) -> None:
        if self.api.dead:
            raise Dead


class Fleet:
    """Several of them, their Nodes, and the Leases between them."""

    def __init__(self, api: Api, kubeconfig: Path, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._users: list[SlotUser] = []
        self._nodes: dict[str, str] = {}

    def user(self, name: str, *, limit: int = 1, **options: Any) -> SlotUser:
        """A node; its Node object is there as well."""
        if name not in self._nodes:
            made = self.api.create(collection_path("nodes"), {"metadata": {"name": name}})
            self._nodes[name] = made["metadata"]["uid"]
        uid = self._nodes[name]
        user = SlotUser(self._kubeconfig, self.namespace, name, limit=limit, uid=uid, **options)
        self._users.append(user)
        return user

    def leases(self) -> dict[str, JsonObject]:
        """The Leases that are there, by name."""
        path = collection_path("leases", namespace=self.namespace, group=GROUP)
        return {each["metadata"]["name"]: each for each in self.api.get(path)["items"]}

    def lease(self, name: str, spec: JsonObject, labels: Mapping[str, str] | None = None) -> None:
        """Somebody else's Lease, with whatever it says."""
        path = collection_path("leases", namespace=self.namespace, group=GROUP)
        self.api.create(path, {"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec})

    def patch_lease(self, name: str, spec: JsonObject) -> None:
        self.api.patch(object_path("leases", name, namespace=self.namespace, group=GROUP), {"spec": spec})

    def delete_lease(self, name: str) -> None:
        self.api.delete(object_path("leases", name, namespace=self.namespace, group=GROUP))

    def delete_node(self, name: str) -> None:
        self.api.delete(object_path("nodes", name))
        del self._nodes[name]

    def eventually(self, look: Callable[[], Any], what: str) -> None:
        """Wait for something at the API server."""
        end = time.monotonic() + PATIENCE_S
        while not look():
            assert time.monotonic() < end, what
            time.sleep(0.02)

    def close(self) -> None:
        for user in self._users:
            user.die()
            user.api.close()
        for name in self._nodes:
            with suppress(ApiError):
                self.api.delete(object_path("nodes", name))
