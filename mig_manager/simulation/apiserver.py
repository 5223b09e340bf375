"""The simulated API server: HTTP on 127.0.0.1, for kubectl and any other client of Kubernetes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from mig_manager.simulation.api.admission import Admit
from mig_manager.simulation.api.authorization import ADMIN, Authorizer, User
from mig_manager.simulation.api.disruption import keep_budgets
from mig_manager.simulation.api.faults import Faults, RequestLog
from mig_manager.simulation.api.garbage import collect_garbage
from mig_manager.simulation.api.handler import Handler, Rules
from mig_manager.simulation.api.podlog import PodLog, default_log
from mig_manager.simulation.api.streams import Trouble
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import NAMESPACES
from mig_manager.simulation.store import MemoryStore

_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_START_S = 60


class ApiServer:
    """An API server over a store, in a thread of its own, with the controllers that belong to it.

    As a context manager it runs from enter to exit; so do the garbage collector and the disruption
    controller. `faults` makes requests go wrong, `requests` is what clients asked for. After `stop` it
    can `start` again, on the same port.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        port: int = 0,
        tokens: MutableMapping[str, User] | None = None,
        anonymous: User | None = ADMIN,
        authorizer: Authorizer | None = None,
        admit: Admit | None = None,
        pod_log: PodLog = default_log,
        bookmark_s: float = 60,
    ) -> None:
        """`port` 0: a free one.

        `tokens`: bearer tokens and whose they are, looked up at each request (the caller may change the
        mapping, and TokenRequests do); None: any token is the administrator's. `anonymous`: who sends
        requests without a token, as kubectl does over plain HTTP; None: they get 401. `authorizer` and
        `admit`, who is asked before anything is stored: None allows everything.
        """
        self.store = store
        self.faults = Faults()
        self.requests = RequestLog()
        self._port = port
        self._rules = Rules(tokens, anonymous, authorizer, admit, pod_log, bookmark_s)
        self._running: _Running | None = None

    @property
    def url(self) -> str:
        """Where it listens, once it has been started."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        for name in _FIRST_NAMESPACES:
            if self.store.get(NAMESPACES, None, name) is None:
                self.store.create(NAMESPACES, {"metadata": {"name": name}})
        self._running = _Running(self.store, self._rules, self.faults, self.requests, self._port)
        self._port = self._running.port

    def stop(self) -> None:
        """End all streams and stop listening; does nothing when it does not run."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return 0 if self._running is None else self._running.watches

    def disturb_watches(self, trouble: Trouble, path: str = "") -> int:
        """Make open watches go wrong (those whose path and query contain the regular expression).

        Returns how many there were.
        """
        return 0 if self._running is None else self._running.disturb(trouble, path)

    def write_kubeconfig(self, path: Path, *, token: str = "simulation", namespace: str = "default") -> None:
        """A kubeconfig file for this server."""
        name = "simulation"
        context = {"cluster": name, "user": name, "namespace": namespace}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        }
        path.write_text(yaml.safe_dump(config, sort_keys=False))


class _Running:
    """A server that listens, with its thread."""

    def __init__(self, store: MemoryStore, rules: Rules, faults: Faults, log: RequestLog, port: int) -> None:
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="apiserver-worker")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="apiserver", daemon=True)
        self._thread.start()
        self._leave: list[Callable[[], None]] = []
        self._runner: web.ServerRunner | None = None
        try:
            self._handler = Handler(store, rules, faults, log, self._workers)
            self.port = self._do(self._listen(port))
        except BaseException:
            self.stop()
            raise
        self._leave = [collect_garbage(store), keep_budgets(store), store.subscribe(self._wake)]

    def stop(self) -> None:
        """End everything."""
        for leave in self._leave:
            leave()
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._workers.shutdown()

    @property
    def watches(self) -> int:
        """See `ApiServer.watches`."""
        return self._handler.watches

    def disturb(self, trouble: Trouble, path: str) -> int:
        """See `ApiServer.disturb_watches`."""

        async def disturb() -> int:
            return self._handler.disturb(trouble, path)

        return int(self._do(disturb()))

    def _wake(self, _: Change) -> None:
        self._loop.call_soon_threadsafe(self._handler.wake)

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_S)

    async def _listen(self, port: int) -> int:
        server = web.Server(self._handler, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.5, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def _close(self) -> None:
        if self._runner is None:
            return
        self._handler.stop()
        await self._runner.cleanup()
