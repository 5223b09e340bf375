"""An API server that holds one Node and treats its clients badly, on real sockets."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

JsonObject = dict[str, Any]


class Exchange(BaseHTTPRequestHandler):
    """One request, and the means to answer it as badly as wanted."""

    protocol_version = "HTTP/1.1"
    server: HostileServer

    @property
    def query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}

    def answer(self, code: int, body: JsonObject | str, **headers: str) -> None:
        payload = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def refuse(self, code: int, reason: str, message: str, **status: Any) -> None:
        self.answer(code, {"kind": "Status", "code": code, "reason": reason, "message": message, **status})

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, payload: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))

    def event(self, kind: str, obj: JsonObject) -> None:
        self.chunk(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()

    def stay_silent(self) -> None:
        """Until the client goes away."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.recv(1)

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body: JsonObject = json.loads(self.rfile.read(length)) if length else {}
        with suppress(BrokenPipeError, ConnectionResetError):
            self.server.serve(self)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


Behaviour = Callable[[Exchange], bool | None]
"""What to do with a request instead of serving it well; False: serve it well after all."""


class HostileServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.changed = threading.Condition()
        self.version = 100
        self.labels: dict[str, str] = {}
        self.exists = True
        self.lists: list[Behaviour] = []
        """What happens to the next list requests, one each; then they are served well."""
        self.watches: list[Behaviour] = []
        self.always: Behaviour | None = None
        """What happens to every request before anything else."""
        self.requests: list[tuple[str, str]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news to whoever reads the standard error of another test by now."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def label(self, **labels: str) -> None:
        with self.changed:
            self.labels |= labels
            self.version += 1
            self.changed.notify_all()

    def node(self) -> JsonObject:
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": "gpu-1",
                "uid": "n1",
                "resourceVersion": str(self.version),
                "labels": dict(self.labels),
            },
        }

    def newer_than(self, version: int) -> bool:
        return self.version > version

    def serve(self, exchange: Exchange) -> None:
        self.requests.append((exchange.command, exchange.path))
        if self.always is not None and self.always(exchange) is not False:
            return
        watching = exchange.query.get("watch") == "true"
        script = self.watches if watching else self.lists
        if script and script.pop(0)(exchange) is not False:
            return
        if watching:
            self.watch(exchange)
        else:
            self.list(exchange)

    def list(self, exchange: Exchange) -> None:
        with self.changed:
            items = [self.node()] if self.exists else []
            exchange.answer(200, {"metadata": {"resourceVersion": str(self.version)}, "items": items})

    def watch(self, exchange: Exchange) -> None:
        since = int(exchange.query["resourceVersion"])
        ends = time.monotonic() + int(exchange.query["timeoutSeconds"])
        exchange.begin_stream()
        while (left := ends - time.monotonic()) > 0:
            with self.changed:
                if not self.changed.wait_for(partial(self.newer_than, since), left):
                    break
                since, node = self.version, self.node()
            exchange.event("MODIFIED", node)
        exchange.chunk(b"")

    def write_kubeconfig(self, path: Path, **user: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": self.url}}],
            "users": [{"name": "x", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        path.write_text(json.dumps(config))
        return path


@contextmanager
def hostile_server() -> Iterator[HostileServer]:
    server = HostileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
