"""Following objects on the API server, whatever the connection does.

One thread lists, then watches, and starts over as needed: when the server ends the stream, when it breaks,
when it goes silent, when the resourceVersion has expired, when the credentials have changed. What it knows is
always a whole state: readers look at that, never at single events.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from loguru import logger

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import ConfigMap, JsonObject, Node, NodeMeta, Pod, older
from mig_manager.cluster.refusal import ApiError, refusal
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.stream import BrokenStreamError, json_lines
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.errors import MigManagerError, Reason

if TYPE_CHECKING:
    import urllib3

T = TypeVar("T")

_SHORT_STREAM_S = 1.0


def _untold(resource: str) -> None:
    """Nobody counts."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch behaves."""

    stream_s: float = 45.0
    """The longest time for one stream: the server is asked to end it after 3/4 of this or a little later."""
    silence_s: float = 5.0
    """A stream that is still open this many seconds after it should have ended is taken as dead."""
    relist_s: float = 600.0
    """The state is read as a whole at least this often, even when nothing goes wrong."""
    poll_s: float = 2.0
    """Pause between two reads where watching is not permitted; that is tried again after `relist_s`."""
    shortest_backoff_s: float = 0.2
    longest_backoff_s: float = 10.0
    passing_s: float = 30.0
    """An outage that lasts longer is a warning: API servers are restarted now and then."""
    restarted: Callable[[str], None] = _untold
    """Is told the resource (`pods`) each time that a watch has broken or was refused and starts over."""


class ObjectWatch(Generic[T]):
    """Keeps the latest objects of one selection; notifies the signal at each change.

    Use it as a context manager, or `start` and `stop` it. A stopped watch is not started again.
    """

    def __init__(
        self,
        selection: Selection,
        parse: Callable[[JsonObject], T],
        signal: Signal,
        *,
        known: tuple[Mapping[str, T], str] | None = None,
        options: WatchOptions | None = None,
    ) -> None:
        """Prepare a watch; nothing is sent yet.

        Args:
            selection: what to follow. It is said when there is no object of its name.
            known: objects by uid and their resourceVersion, read a moment ago; then they are not read first.
        """
        self._selection = selection
        self.title = selection.title
        """Names what it follows: `Node gpu-1`."""
        self._parse = parse
        self._signal = signal
        self._options = options or WatchOptions()
        self._thread = threading.Thread(target=self._run, name=f"watch {self.title}", daemon=True)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stream: urllib3.BaseHTTPResponse | None = None
        self._objects: Mapping[str, T] = MappingProxyType({} if known is None else dict(known[0]))
        self._version: str | None = None if known is None else known[1]
        self._synced = known is not None
        self._missing = False
        self._problem: ApiError | None = None
        self._trouble_since = 0.0
        self._warned = False
        self._death: Exception | None = None

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns at once, also while a read blocks."""
        self._stopping.set()
        with self._lock, suppress(ValueError, RuntimeError, OSError):
            if self._stream is not None:
                self._stream.shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def join(self, wait_s: float) -> None:
        """Wait until the thread has ended, after `stop`."""
        self._thread.join(wait_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def synced(self) -> bool:
        """Whether the state has been read at least once, so that `objects` means something."""
        return self._synced

    @property
    def problem(self) -> str | None:
        """Why the state may be old: the error of an outage that still goes on. None: all is well."""
        return None if self._problem is None else self._problem.message

    @property
    def objects(self) -> Mapping[str, T]:
        """The latest objects by uid; never changed in place. Raises MigManagerError if the thread died."""
        if self._death is not None:
            raise MigManagerError(
                Reason.API_ERROR, f"The watch of {self.title} has died: {self._death!r}. Restart the daemon."
            )
        return self._objects

    @property
    def sole(self) -> T | None:
        """The object of a watch of one; None while there is none or it is not known yet."""
        return next(iter(self.objects.values()), None)

    def wait_synced(self, deadline: Deadline) -> None:
        """Wait until the state has been read once.

        Raises WaitTimeoutError (ApiError) with the problem; at once the ApiError of a refusal that will not pass,
        such as 403.
        """
        self._signal.wait_for(
            lambda: self._synced or self._death is not None or self._refused,
            deadline,
            lambda: f"{self.title} could not be read in time: {self.problem or 'no answer yet'}",
            reason=Reason.API_ERROR,
        )
        if not self._synced and self._problem is not None:
            raise self._problem

    @property
    def _refused(self) -> bool:
        return self._problem is not None and not self._problem.passing

    def _run(self) -> None:
        try:
            self._follow_for_good()
        except Exception as error:  # noqa: BLE001 - whatever it is, readers must learn that nothing follows any more
            logger.opt(exception=error).error("The watch of {} has died", self.title)
            self._death = error
            self._signal.notify()

    def _follow_for_good(self) -> None:
        relist_at = time.monotonic() + self._options.relist_s
        watch_at = 0.0
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._version is None or began >= relist_at:
                    self._version = None
                    self._list()
                    relist_at = began + self._options.relist_s
                if began < watch_at:
                    failures = 0
                    self._recovered()
                    self._pause_before_next_read()
                    continue
                for _ in self._events():
                    failures = 0
                failures = failures + 1 if time.monotonic() - began < _SHORT_STREAM_S else 0
            except BrokenStreamError:
                failures += 1
            except ApiError as error:
                if error.status == 403 and self._version is not None:
                    # It was read a moment ago: watching alone is not permitted.
                    self._cannot_watch(error, first=not watch_at)
                    watch_at = began + self._options.relist_s
                    continue
                failures += 1
                self._version = None
                if not self._stopping.is_set():
                    self._failed(error)
            if failures and not self._stopping.is_set():
                self._options.restarted(self._selection.resource)
                self._stopping.wait(self._backoff(failures))

    def _list(self) -> None:
        """Read the state as a whole."""
        items, version = self._selection.read()
        try:
            objects = {item["metadata"]["uid"]: self._parse(item) for item in items}
        except (KeyError, TypeError, ValueError) as error:
            raise ApiError(f"The list of {self.title} makes no sense: {error!r}") from error
        self._publish(objects)
        self._version = version

    def _cannot_watch(self, error: ApiError, *, first: bool) -> None:
        """Say once that the state is read again and again instead."""
        if first:
            every = self._options.poll_s
            logger.warning(
                "{} must not be watched; read every {:g} s instead: {}", self.title, every, error.message
            )

    def _pause_before_next_read(self) -> None:
        self._version = None
        self._stopping.wait(self._options.poll_s)

    def _events(self) -> Iterator[None]:
        """Follow the changes after the version we have in one stream; comes back after each of them."""
        seconds = max(1, round(self._options.stream_s * random.uniform(0.75, 1)))
        longest_s = seconds + self._options.silence_s
        ends = time.monotonic() + longest_s
        stream = self._selection.stream(str(self._version), seconds, longest_s)
        try:
            with self._lock:
                self._stream = stream
            self._recovered()
            if self._stopping.is_set():
                return
            for event in json_lines(stream):
                self._take(event)
                yield
                if self._stopping.is_set() or time.monotonic() > ends:
                    return
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _take(self, event: JsonObject) -> None:
        """Apply one event."""
        try:
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                raise refusal(f"The watch of {self.title}", int(obj["code"]), str(obj["message"]), obj)
            if kind == "BOOKMARK":
                if older(str(obj["metadata"]["resourceVersion"]), self._version):
                    words = "the server counts its versions anew, as after a restore"
                    raise refusal(f"The watch of {self.title}", 410, words, {})
            else:
                objects = dict(self._objects)
                if kind == "DELETED":
                    objects.pop(obj["metadata"]["uid"], None)
                else:
                    objects[obj["metadata"]["uid"]] = self._parse(obj)
                self._publish(objects)
            self._version = str(obj["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as error:
            raise ApiError(f"A change of {self.title} makes no sense: {error!r}") from error

    def _publish(self, objects: dict[str, T]) -> None:
        self._objects = MappingProxyType(objects)
        self._synced = True
        if self._selection.name and self._missing == bool(objects):
            self._missing = not objects
            if self._missing:
                logger.warning("There is no {}; watching for it", self.title)
            else:
                logger.info("{} is there now", self.title)
        self._signal.notify()

    def _failed(self, error: ApiError) -> None:
        """Say once what is wrong, and once more if it lasts; an expired version is nothing to talk about."""
        if error.status == 410:
            return
        now = time.monotonic()
        if self._problem is None:
            self._trouble_since, self._warned = now, False
        news = self._problem is None or self._problem.status != error.status
        lasts = not error.passing or now >= self._trouble_since + self._options.passing_s
        if news or (lasts and not self._warned):
            level = "WARNING" if lasts else "INFO"
            logger.log(level, "{} cannot be followed, trying again: {}", self.title, error.message)
            self._warned = lasts
        self._problem = error
        self._signal.notify()

    def _recovered(self) -> None:
        if self._problem is not None:
            logger.info("{} is followed again", self.title)
            self._problem = None
            self._signal.notify()

    def _backoff(self, failures: int) -> float:
        longest = min(
            self._options.longest_backoff_s, self._options.shortest_backoff_s * 2 ** min(failures - 1, 16)
        )
        return random.uniform(longest / 2, longest)


def watch_node_meta(
    api: Api, name: str, signal: Signal, options: WatchOptions | None = None
) -> ObjectWatch[NodeMeta]:
    """Our Node, metadata only: its status, which changes all the time, is not sent."""
    selection = Selection(api, collection_path("nodes"), title=f"Node {name}", name=name, metadata_only=True)
    return ObjectWatch(selection, NodeMeta.from_json, signal, options=options)


def watch_node(
    api: Api,
    name: str,
    signal: Signal,
    options: WatchOptions | None = None,
    *,
    observe: Callable[[Node], None] | None = None,
    known: Node | None = None,
) -> ObjectWatch[Node]:
    """Our whole Node.

    Args:
        observe: is called (in the watch's thread) with every version of it that arrives.
        known: the Node as read a moment ago; only later versions are asked for then.
    """

    def parse(obj: JsonObject) -> Node:
        node = Node.from_json(obj)
        if observe is not None:
            observe(node)
        return node

    return ObjectWatch(
        Selection(api, collection_path("nodes"), title=f"Node {name}", name=name),
        parse,
        signal,
        known=None if known is None else ({known.meta.uid: known}, known.meta.resource_version),
        options=options,
    )


def watch_config_map(
    api: Api, namespace: str, name: str, signal: Signal, options: WatchOptions | None = None
) -> ObjectWatch[ConfigMap]:
    """One ConfigMap."""
    path = collection_path("configmaps", namespace=namespace)
    selection = Selection(api, path, title=f"ConfigMap {namespace}/{name}", name=name)
    return ObjectWatch(selection, ConfigMap.from_json, signal, options=options)


def watch_pods(
    api: Api, node: str, signal: Signal, options: WatchOptions | None = None, *, namespace: str | None = None
) -> ObjectWatch[Pod]:
    """The pods that are bound to a node, in all namespaces or in one."""
    where = f" in namespace {namespace}" if namespace else ""
    selection = Selection(
        api,
        collection_path("pods", namespace=namespace),
        title=f"pods of node {node}{where}",
        field_selector=f"spec.nodeName={node}",
    )
    return ObjectWatch(selection, Pod.from_json, signal, options=options)
