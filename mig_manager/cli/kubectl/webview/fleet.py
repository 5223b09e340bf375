"""The nodes of a cluster as they change, made ready for many readers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from loguru import logger

from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.cluster import GpuNode, not_a_selector
from mig_manager.cli.kubectl.gpus import gpus_of, plugin_strategy
from mig_manager.cli.kubectl.showing import Shown
from mig_manager.cli.kubectl.use import Tenant, node_use, read_claims
from mig_manager.cli.kubectl.webview.documents import node_document, strange_document
from mig_manager.cluster.claims import SliceDevice
from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject, Node
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.resources import advertised
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch

_FIRST_S = 30.0
"""Seconds that the first reading may take."""
_BREATH_S = 0.2
"""Seconds between two looks at most; what changes meanwhile is told together."""

Claimed = tuple[Mapping[str, Sequence[str]], Mapping[str, SliceDevice]]


@dataclass(frozen=True, slots=True)
class News:
    """What has changed since a version."""

    version: int
    nodes: tuple[str, ...]
    """Documents of new and changed nodes, as JSON."""
    gone: tuple[str, ...]
    """Names."""
    problem: str
    """Why what is shown may be old; empty where all is well."""


class Fleet:
    """Watches Nodes and pods, as a context manager, and keeps a document of each node with GPUs.

    Meanwhile nothing is logged: what there is to say of the watches is in the news.
    """

    def __init__(self, api: Api, selector: str | None = None) -> None:
        """Follow the Nodes that a selector selects, or all that have GPUs."""
        self._api = api
        self._selector = selector
        self._signal = Signal()
        nodes = Selection(api, collection_path("nodes"), title="Nodes", label_selector=selector or "")
        pods = Selection(api, collection_path("pods"), title="pods")
        self._nodes = ObjectWatch(nodes, _node, self._signal)
        self._pods = ObjectWatch(pods, Tenant.from_json, self._signal)
        self._claims: dict[str, tuple[object, Claimed]] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._documents: dict[str, tuple[int, str]] = {}
        """By name of the node: the version that brought it, and JSON; empty for a node that is gone."""
        self._seen: dict[str, object] = {}
        self._looked: tuple[object, ...] = ()
        self._problem = ""
        self._stopping = False
        self._thread = threading.Thread(target=self._follow, name="fleet", daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raises ApiError where the Nodes cannot be read, InputError where the selector cannot."""
        with ExitStack() as stack:
            logger.disable("mig_manager")
            stack.callback(logger.enable, "mig_manager")
            stack.enter_context(self._nodes)
            stack.enter_context(self._pods)
            try:
                self._nodes.wait_synced(Deadline.after(_FIRST_S))
            except ApiError as error:
                raise not_a_selector(error, self._selector) or error from None
            self._signal.wait(lambda: self._pods.synced or self._pods.problem, Deadline.after(_FIRST_S))
            self._look()
            self._thread.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._signal.notify()
        self._stack.close()

    def news(self, since: int, wait_s: float) -> News | None:
        """What is new since a version (0: everything), waiting for it; None for nothing in that time, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._version > since, wait_s)
            if self._stopping or self._version <= since:
                return None
            new = {name: text for name, (at, text) in sorted(self._documents.items()) if at > since}
            return News(
                self._version,
                tuple(text for text in new.values() if text),
                tuple(name for name, text in new.items() if not text),
                self._problem,
            )

    @property
    def stopping(self) -> bool:
        """Whether there will be no more news."""
        return self._stopping

    def _follow(self) -> None:
        while not self._stopping:
            self._signal.wait(lambda: self._stopping or self._is_old(), Deadline.never())
            self._signal.wait(lambda: self._stopping, Deadline.after(_BREATH_S))
            if not self._stopping:
                self._look()

    def _state(self) -> tuple[object, ...]:
        return self._nodes.objects, self._pods.objects, self._nodes.problem, self._pods.problem

    def _is_old(self) -> bool:
        """Whether anything has changed since the last look. What watches have seen is never changed in place."""
        return any(now is not then for now, then in zip(self._state(), self._looked, strict=True))

    def _look(self) -> None:
        """Bring the documents up to date."""
        self._looked = self._state()
        tenants = self._tenants()
        nodes = {node.name: node for node in self._nodes.objects.values() if self._selector or node.has_gpus}
        found: dict[str, str] = {}
        for name, node in nodes.items():
            there = None if tenants is None else tenants.get(name, ())
            seen = (_without_heartbeat(node.node), there)
            if self._seen.get(name) != seen:
                self._seen[name] = seen
                found[name] = json.dumps(self._document(node, there))
        for name in set(self._seen).difference(nodes):
            del self._seen[name]
            found[name] = ""
        problem = self._nodes.problem or ("" if tenants is not None else _unread(self._pods.problem))
        with self._changed:
            self._publish(found, problem)

    def _publish(self, found: Mapping[str, str], problem: str) -> None:
        new = {name: text for name, text in found.items() if self._documents.get(name, (0, ""))[1] != text}
        if new or problem != self._problem or not self._version:
            self._version += 1
            self._problem = problem
            self._documents |= {name: (self._version, text) for name, text in new.items()}
            self._changed.notify_all()

    def _tenants(self) -> Mapping[str, tuple[Tenant, ...]] | None:
        """Pods with GPUs by node; None where they cannot be read."""
        if not self._pods.synced:
            return None
        found: dict[str, list[Tenant]] = {}
        for tenant in self._pods.objects.values():
            if tenant.pod.node and (tenant.counts or tenant.pod.claims) and not tenant.pod.finished:
                found.setdefault(tenant.pod.node, []).append(tenant)
        return {node: tuple(sorted(each, key=lambda one: str(one.pod))) for node, each in found.items()}

    def _document(self, node: GpuNode, tenants: tuple[Tenant, ...] | None) -> object:
        try:
            return self._told(node, tenants)
        except Exception as error:  # noqa: BLE001 - one strange node must not take the others from the page
            return strange_document(node.name, f"what this node says makes no sense: {error!r}")

    def _told(self, node: GpuNode, tenants: tuple[Tenant, ...] | None) -> object:
        pods = None if tenants is None else [str(tenant.pod) for tenant in tenants]
        try:
            reading = gpus_of(node)
        except InputError as error:
            return node_document(node, pods, None, str(error))
        strategy = plugin_strategy(node, reading.inventory)
        claims, slices = self._claimed(node.name, tenants or ())
        use = node_use(reading.inventory, strategy, advertised(node.node), tenants, claims, slices)
        shown = Shown(node.name, {}, strategy, reading.inventory, use, reading.missing)
        return node_document(node, pods, shown)

    def _claimed(self, node: str, tenants: Iterable[Tenant]) -> Claimed:
        """What ResourceClaims hold there; asked again only for other pods."""
        claiming = tuple((one.pod.uid, one.pod.claims) for one in tenants if one.pod.claims)
        known = self._claims.get(node)
        if known is None or known[0] != claiming:
            known = self._claims[node] = (claiming, read_claims(self._api, node, tenants))
        return known[1]


def _unread(problem: str | None) -> str:
    return f"Pods cannot be read, so that nothing is known of who uses what: {problem or 'no answer yet'}"


def _without_heartbeat(node: Node) -> Node:
    """The same without what a kubelet changes every few minutes, and the page does not show."""
    return replace(node, heartbeat=None, meta=replace(node.meta, resource_version=""))


def _node(obj: JsonObject) -> GpuNode:
    return GpuNode(Node.from_json(obj))
