"""Following objects on the API server, whatever the connection does.

One thread lists, then watches, and starts over as needed: when the server ends the stream, when it breaks, when
it goes silent, when the resourceVersion has expired, when the credentials have changed. What it knows is always a
whole state: readers look at that, never at single events.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from loguru import logger

from mig_manager.cluster.client import JSON, METADATA, METADATA_LIST, Api, ApiError, collection_path, refusal
from mig_manager.cluster.objects import ConfigMap, JsonObject, Node, NodeMeta, Pod
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.errors import MigManagerError, Reason

if TYPE_CHECKING:
    import urllib3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch behaves."""

    stream_s: float = 45.0
    """The longest time for one stream: the server is asked to end it after a random part of this, at least 3/4."""
    silence_s: float = 5.0
    """A stream that is still open this many seconds after it should have ended is taken as dead."""
    relist_s: float = 600.0
    """The state is read as a whole at least this often, even when nothing goes wrong."""
    shortest_backoff_s: float = 0.2
    longest_backoff_s: float = 10.0


class ObjectWatch(Generic[T]):
    """Keeps the latest objects of one selection; notifies the signal at each change.

    Use it as a context manager, or `start` and `stop` it. A stopped watch is not started again.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        parse: Callable[[JsonObject], T],
        signal: Signal,
        *,
        title: str,
        field_selector: str = "",
        metadata_only: bool = False,
        single: bool = False,
        options: WatchOptions | None = None,
    ) -> None:
        """`title` names the objects in messages: `Node gpu-1`. `single`: say so when there is none."""
        ...

    def start(self) -> None:
        """Start the thread; returns at once."""
        ...

    def stop(self) -> None:
        """End the thread; returns at once, also while a read blocks."""
        ...

    @property
    def synced(self) -> bool:
        """Whether the state has been read at least once, so that `objects` means something."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the state may be old, in words: the last error of an outage that still goes on. None: all well."""
        ...

    @property
    def objects(self) -> Mapping[str, T]:
        """The latest objects by uid; never changed in place. Raises MigManagerError when the thread has died."""
        ...

    @property
    def sole(self) -> T | None:
        """The object of a watch of one; None while there is none or it is not known yet."""
        ...

    def wait_synced(self, deadline: Deadline) -> None:
        """Wait until the state has been read once. Raises WaitTimeoutError (ApiError) with the problem."""
        ...


def watch_node_meta(
    api: Api, name: str, signal: Signal, options: WatchOptions | None = None
) -> ObjectWatch[NodeMeta]:
    """Our Node, metadata only: its status, which changes all the time, is not sent."""
    ...


def watch_node(
    api: Api,
    name: str,
    signal: Signal,
    options: WatchOptions | None = None,
    *,
    observe: Callable[[Node], None] | None = None,
) -> ObjectWatch[Node]:
    """Our whole Node. `observe` is called (in the watch's thread) with every version of it that arrives."""
    ...


def watch_config_map(
    api: Api, namespace: str, name: str, signal: Signal, options: WatchOptions | None = None
) -> ObjectWatch[ConfigMap]:
    """One ConfigMap."""
    ...


def watch_pods(api: Api, node: str, signal: Signal, options: WatchOptions | None = None) -> ObjectWatch[Pod]:
    """The pods that are bound to a node."""
    ...
