"""Serves the page and its stream of news, to this machine only."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Self

from mig_manager.cli.kubectl.webview.fleet import Fleet, News

_PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_MOST_STREAMS = 32
_LOOK_S = 0.2
"""Seconds between two looks whether to end."""
_BEAT_S = 15.0
"""Seconds after which a silent stream says that it is alive."""
_PATIENCE_S = 20.0
"""Seconds that a client may take to send its request, or to take what it is sent."""


class PageServer(ThreadingHTTPServer):
    """The server, as a context manager; it runs in threads of its own from enter to exit."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, fleet: Fleet, title: str, port: int = 0) -> None:
        """`title` names the cluster; port 0 takes a free one. Raises OSError where the port is taken."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.fleet = fleet
        self.title = title
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._thread = threading.Thread(target=self.serve_forever, args=(_LOOK_S,), name="page", daemon=True)

    @property
    def hosts(self) -> frozenset[str]:
        """What requests may call us. A page elsewhere whose name leads to this machine has another one."""
        return frozenset(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "mig-manager"
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """The page, one of its files, or the stream."""
        path = self.path.partition("?")[0]
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"open this page by the address that was printed\n")
        elif path == "/events" and self.command == "GET":
            self._stream()
        elif path in _PAGES:
            name, kind = _PAGES[path]
            self._answer(HTTPStatus.OK, files(__package__).joinpath(name).read_bytes(), kind)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n")

    def do_HEAD(self) -> None:
        """The head of what GET answers."""
        self.do_GET()

    def version_string(self) -> str:
        """What the header Server says."""
        return self.server_version

    def _answer(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", **more: str
    ) -> None:
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **more})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        """News as server-sent events, until the client goes away."""
        if not self.server.streams.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many pages are open\n")
            return
        try:
            self.close_connection = True
            self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream", "Connection": "close"})
            version = 0
            while not self.server.fleet.stopping:
                news = self.server.fleet.news(version, _BEAT_S)
                self.wfile.write(b": alive\n\n" if news is None else _event(news, version, self.server.title))
                self.wfile.flush()
                version = version if news is None else news.version
        finally:
            self.server.streams.release()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The answer to what is no GET, or no HTTP: plain text, with the headers of all answers."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:  # Python's word for any method but those below.
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"this page can only be read\n", Allow="GET, HEAD")
        else:
            self._answer(HTTPStatus(code), f"{HTTPStatus(code).phrase}\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the user."""


def _event(news: News, since: int, title: str) -> bytes:
    """The first of a stream holds everything, and replaces what the page knows; see app.js."""
    head = json.dumps({"all": not since, "cluster": title, "problem": news.problem, "gone": list(news.gone)})
    body = f'{head[:-1]}, "nodes": [{",".join(news.nodes)}]}}'
    return f"data: {body}\n\n".encode()
