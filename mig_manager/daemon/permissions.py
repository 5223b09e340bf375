"""What the daemon may do at the API server, and what it goes without.

The API server is asked once at the start, beside everything else. What was missing then is asked for again
before each run, so that a grant takes effect without a restart; a daemon that lacks nothing asks no more.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loguru import logger

from mig_manager.cluster.access import Permission, denied
from mig_manager.cluster.client import Api
from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.settingtypes import DrainMode
from mig_manager.errors import MigManagerError, Reason

EVENT = "PermissionsMissing"
"""Reason of the Event that lists them."""
POLL_S = 10.0
"""How often Node and ConfigMap are read between runs where they must not be watched."""
_PATIENCE_S = 30.0
"""How long the question at the start is tried while the API server does not answer."""
_FIRST_ANSWER_S = 10.0
"""How long the first run waits for that answer."""
_ASK_AGAIN_S = 5.0
"""The same for the question before a run."""


@dataclass(frozen=True, slots=True)
class Need:
    """A permission, and what is so without it."""

    permission: Permission
    without: str
    """A sentence without its full stop."""
    required: Literal["look", "change"] | None = None
    """What cannot be done at all without it: look at the Node and speak on it, or change the GPUs."""
    implied_by: Permission | None = None
    """Where that one is missing, this one is not worth a word."""


def needs(settings: Settings) -> tuple[Need, ...]:
    """Everything that the daemon asks of the API server with these settings."""
    return tuple(_needs(settings))


def _needs(settings: Settings) -> Iterator[Need]:
    node = settings.node_name
    for verb in ("get", "patch"):
        yield Need(Permission(verb, "nodes", name=node), _NOTHING, required="look")
    yield from _following(Permission("list", "nodes", name=node), "the Node")
    operands = settings.operand_namespace
    if operands:
        yield Need(_LIST_PODS, _FEW_PODS)
        yield Need(Permission("list", "pods", namespace=operands), _NO_CHANGE, required="change")
    else:
        yield Need(_LIST_PODS, _NO_CHANGE, required="change")
    yield Need(_WATCH_PODS, "pods are listed every 2 s during a run instead", implied_by=_LIST_PODS)
    yield Need(
        Permission("delete", "pods", namespace=operands),
        "pods of GPU clients without a deploy label, and of the validator, are not restarted after a change",
    )
    if settings.drain_mode == "evict":
        yield Need(_EVICT, "GPU pods are not evicted: the drain mode is off")
    elif settings.drain_mode == "delete":
        yield Need(_DELETE_PODS, "GPU pods are not deleted: the drain mode is off")
    yield Need(_EVENTS, "Events are only logged")
    yield Need(_COUNT_EVENTS, "an Event that comes again is made anew", implied_by=_EVENTS)
    if settings.drain_mode in ("evict", "delete"):
        yield Need(_POD_EVENTS, "pods that have to go are not told why in an Event", implied_by=_EVENTS)
    if settings.remove_stale_resources:
        stale = Permission("patch", "nodes/status", name=node)
        yield Need(stale, "resources of former layouts stay on the Node with 0")
    yield from _slots(settings)
    if settings.config_file is None:
        name, namespace = settings.config_map_name, settings.layouts_namespace
        listed = Permission("list", "configmaps", namespace=namespace, name=name)
        yield from _following(listed, "the ConfigMap of layouts")


def _slots(settings: Settings) -> Iterator[Need]:
    """The Leases that nodes of a fleet take turns by."""
    if settings.max_parallel_nodes or settings.pool_limits:
        without = "no GPU is changed where the number of nodes that change at once is limited"
    elif settings.edited_layouts == "slot":
        without = "an edit of the layout that the node has is only reported"
    elif settings.edited_layouts == "always":
        without = "an edit of a layout is applied on all nodes at once"
    else:
        return
    listed = Permission("list", "leases", "coordination.k8s.io", settings.pod_namespace)
    yield Need(listed, without)
    for verb in ("watch", "create", "patch", "delete"):
        yield Need(replace(listed, verb=verb), without, implied_by=listed)


def _following(listed: Permission, what: str) -> Iterator[Need]:
    """An object that is watched."""
    watched = replace(listed, verb="watch")
    yield Need(listed, f"{what} is read by itself every {POLL_S:g} s, which takes the verb get")
    yield Need(watched, f"{what} is read every {POLL_S:g} s instead", implied_by=listed)


_LIST_PODS = Permission("list", "pods")
_WATCH_PODS = Permission("watch", "pods")
_EVICT = Permission("create", "pods/eviction")
_DELETE_PODS = Permission("delete", "pods")
_EVENTS = Permission("create", "events", namespace="default")
_COUNT_EVENTS = Permission("patch", "events", namespace="default")
_POD_EVENTS = Permission("create", "events")
_NOTHING = "nothing can be done on this node"
_NO_CHANGE = "no GPU of this node can be changed"
_FEW_PODS = "of pods outside the namespace of the GPU clients only those are known that the kubelet lists"


class Permissions:
    """What is missing, kept up to date. Until the API server has answered, nothing is taken to be."""

    def __init__(self, api: Api, settings: Settings, events: EventRecorder) -> None:
        """Nothing is sent yet."""
        self._api = api
        self._settings = settings
        self._events = events
        self._needs = needs(settings)
        self._missing: frozenset[Permission] = frozenset()
        self._answered = threading.Event()

    def start(self) -> None:
        """Ask, in a thread of its own; returns at once."""
        threading.Thread(target=self._first_look, name="permissions", daemon=True).start()

    @property
    def answered(self) -> bool:
        """Whether the API server has been asked, with or without success."""
        return self._answered.is_set()

    def refresh(self) -> None:
        """Before a run: wait for the first answer, and ask again for what was missing.

        Raises:
            MigManagerError: ApiError, if the Node cannot be read or changed; it says what to grant.
        """
        if self._answered.wait(_FIRST_ANSWER_S) and self._missing:
            self._look(self._missing, Deadline.after(_ASK_AGAIN_S))
        self._require("look")

    def require_change(self) -> None:
        """Before anything is touched.

        Raises:
            MigManagerError: ApiError, if GPUs cannot be changed with what is permitted; it says what to grant.
        """
        self._require("change")

    def _require(self, what: Literal["look", "change"]) -> None:
        fatal = [each for each in self._lacking() if each.required == what]
        if fatal:
            raise MigManagerError(Reason.API_ERROR, _fatal_in_words(fatal))

    @property
    def drain_mode(self) -> DrainMode:
        """The drain mode of the settings; `off` where what it takes is not permitted."""
        return "off" if self.drain_obstacle else self._settings.drain_mode

    @property
    def drain_obstacle(self) -> str | None:
        """Why pods are not drained as the settings say, in words; None: they are."""
        by_mode = {"evict": _EVICT, "delete": _DELETE_PODS}
        needed = {by_mode.get(self._settings.drain_mode, _LIST_PODS), _LIST_PODS}
        missing = needed & self._missing
        return (
            f"the daemon has no permission to {_names(missing)} (see docs/permissions.md)"
            if missing
            else None
        )

    @property
    def pods_namespace(self) -> str | None:
        """The one namespace whose pods may be listed; None: all may."""
        return self._settings.operand_namespace if _LIST_PODS in self._missing else None

    def _first_look(self) -> None:
        try:
            self._look([each.permission for each in self._needs], Deadline.after(_PATIENCE_S))
        finally:
            self._answered.set()

    def _look(self, wanted: Collection[Permission], deadline: Deadline) -> None:
        """Ask for those, and say what is news. Without an answer everything stays as it was."""
        try:
            missing = denied(self._api, wanted, deadline=deadline)
        except ApiError as error:
            logger.warning("The permissions of this daemon could not be checked: {}", error.message)
            return
        granted = self._missing - missing
        if granted:
            logger.info("Permissions granted meanwhile: {}", _names(granted))
        new = missing - self._missing
        self._missing = missing
        self._events.mute(_EVENTS in missing)
        self._events.counting = _COUNT_EVENTS not in missing
        self._events.on_pods = _POD_EVENTS not in missing
        if new:
            self._tell(new)

    def _tell(self, new: Collection[Permission]) -> None:
        lacking = [
            each
            for each in self._lacking()
            if each.permission in new and each.implied_by not in self._missing
        ]
        for each in lacking:
            if each.required:
                logger.critical("{}", _fatal_in_words([each]))
            else:
                logger.warning("No permission to {}: {}", each.permission, each.without)
        if _EVENTS not in self._missing:
            words = "; ".join(f"no permission to {each.permission}: {each.without}" for each in lacking)
            self._events.record("Warning", EVENT, words)

    def _lacking(self) -> list[Need]:
        return [each for each in self._needs if each.permission in self._missing]


def _fatal_in_words(needs: Sequence[Need]) -> str:
    wanted = _names([each.permission for each in needs])
    return (
        f"The daemon's service account has no permission to {wanted}: {needs[0].without}. "
        "Grant it (docs/permissions.md has the rules); it is looked for again."
    )


def _names(permissions: Collection[Permission]) -> str:
    return ", ".join(sorted(map(str, permissions)))
