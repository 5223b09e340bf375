"""What the demo plays on: a simulated cluster, the real daemon on its node, and what the API shows of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Self, TypeVar

from mig_manager.cli.errors import InputError
from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.selection import Selection
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.daemon.settings import Settings, environment_name
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.world import SimulatedCluster

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds that the demo waits for any one thing; machines may be slow."""
_END_S = 15.0
_LAST_WORDS_S = 2.0
_LAST_LINES = 12

_START = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.executable, [sys.executable, '-m', 'mig_manager.daemon'])"
)
"""Asks the kernel for a SIGTERM when the demo dies (PR_SET_PDEATHSIG), then becomes the daemon."""


class DemoError(Exception):
    """The demo did not go as it should. `str(error)` is for the user."""


class DaemonProcess:
    """`python -m mig_manager.daemon` as a process of its own."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *,
        hear: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        """Start it.

        Args:
            environment: its settings; settings in our own environment do not reach it.
            log: the file that its log is appended to.
            hear: called with each line of its log, from another thread.
            changed: called from that thread after each line, and when the daemon is no more.
        """
        names = {environment_name(field) for field in Settings.model_fields}
        own = {name: value for name, value in os.environ.items() if name not in names}
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._log = log
        self._hear = hear
        self._changed = changed
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            env={**own, "MIG_MANAGER_LOG_FORMAT": "text", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stderr,), name="daemon-log", daemon=True
        )
        self._reader.start()
        threading.Thread(target=self._await_end, name="daemon-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def speaks(self) -> bool:
        """Whether it has logged anything: settings and credentials are fine, and it goes to work."""
        return bool(self._lines)

    @property
    def end(self) -> str | None:
        """How it ended, in words, once its log is read to the end; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(_LAST_WORDS_S)
        return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"

    def check(self) -> None:
        """Raise DemoError, with the end of its log, if it does not run any more."""
        if self.end is not None:
            raise DemoError(f"the daemon {self.end}\n{self.last_lines()}")

    def last_lines(self) -> str:
        """The end of its log, for a message."""
        return "The end of its log:\n" + "\n".join(f"  {line}" for line in self._lines)

    def stop(self) -> None:
        """End it, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(_END_S)

    def _read(self, stream: IO[str]) -> None:
        with self._log.open("a") as log, stream:
            for line in stream:
                log.write(line)
                log.flush()
                self._lines.append(line.rstrip("\n"))
                self._hear(self._lines[-1])
                self._changed()

    def _await_end(self) -> None:
        # Not at the end of its log: a process that it has started may hold that open for longer.
        self._process.wait()
        self._changed()


class Stage:
    """A cluster with one GPU node, and the daemon on it, from enter to exit of the context manager.

    What happens is followed over the API, as kubectl would. Waits end with DemoError when the daemon dies.
    """

    def __init__(
        self,
        directory: Path,
        gpus: str,
        *,
        delays: Delays,
        port: int = 0,
        hear: Callable[[str], None] = lambda line: None,
    ) -> None:
        """State files, kubeconfig and the daemon's log go into `directory`; `hear` gets the log's lines.

        Raises:
            MigManagerError: `gpus` cannot be read.
        """
        self.directory = directory
        self.cluster = SimulatedCluster(directory, gpus, delays=delays, port=port)
        self.signal = Signal()
        self._log = directory / "daemon.log"
        self._port = port
        self._hear = hear
        self._versions: SimpleQueue[tuple[float, JsonObject]] = SimpleQueue()
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start_cluster(stack)
            self._log.write_text("")
            self.start_daemon()
            stack.callback(lambda: self.daemon.stop())
            self.signal.interrupt = lambda: self.daemon.check()
            self.api = stack.enter_context(Api.connect(self.cluster.kubeconfig))
            self._nodes = stack.enter_context(self._watch("nodes", parse=self._node_changed))
            self._pods = stack.enter_context(self._watch("pods"))
            self._events = stack.enter_context(self._watch("events", namespace="default"))
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.signal.interrupt = None
        self._exit.close()

    def start_daemon(self) -> None:
        """Start the daemon, or another one after it has ended."""
        self.daemon = DaemonProcess(
            self.cluster.daemon_environment(), self._log, hear=self._hear, changed=self.signal.notify
        )

    @property
    def node(self) -> JsonObject:
        """The Node as last seen."""
        node = self._nodes.sole
        assert node is not None
        return node

    @property
    def pods(self) -> Mapping[str, JsonObject]:
        """All pods by uid, as last seen."""
        return self._pods.objects

    @property
    def events(self) -> Mapping[str, JsonObject]:
        """The Events on the Node by uid, as last seen."""
        return self._events.objects

    def node_versions(self) -> Iterator[tuple[float, JsonObject]]:
        """Every version of the Node since the last call, with the time at which it came (`monotonic`)."""
        while True:
            try:
                yield self._versions.get_nowait()
            except Empty:
                return

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        """Wait until `look` gives something, looking again after each change.

        Raises:
            DemoError: the daemon died, or it took too long; names `what`.
        """
        found = self.signal.wait(look, Deadline.after(PATIENCE))
        if found is None:
            raise DemoError(f"{what}: not within {PATIENCE:g} s\n{self.daemon.last_lines()}")
        return found

    def wait_ready(self) -> None:
        """Wait until the cluster is complete: operands, resources, workloads, and the daemon.

        Raises:
            DemoError: it does not come to be.
        """
        watches = (self._nodes, self._pods, self._events)
        self.wait_for(lambda: self.daemon.speaks and all(watch.synced for watch in watches), "the daemon")
        try:
            self.cluster.wait_ready(timeout=PATIENCE)
        except TimeoutError as error:
            raise DemoError(str(error)) from error

    def _start_cluster(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(self.cluster)
        except OSError as error:
            raise InputError(f"--port {self._port}: {error.strerror or error}") from error

    def _watch(
        self,
        plural: str,
        *,
        namespace: str | None = None,
        parse: Callable[[JsonObject], JsonObject] = lambda obj: obj,
    ) -> ObjectWatch[JsonObject]:
        path = collection_path(plural, namespace=namespace)
        return ObjectWatch(Selection(self.api, path, title=f"the {plural}"), parse, self.signal)

    def _node_changed(self, node: JsonObject) -> JsonObject:
        self._versions.put((time.monotonic(), node))
        return node


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block the first Ctrl-C or SIGTERM raises KeyboardInterrupt.

    Later ones do nothing, so that what is cleaned up then is cleaned up to the end.
    """
    import signal

    numbers = (signal.SIGINT, signal.SIGTERM)

    def end(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
