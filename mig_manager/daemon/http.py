"""A small HTTP server for the daemon's pages, which no client and no taken port can stop or stall.

One thread serves all connections, and each of them has its time: who sends nothing, too much or too slowly, or does
not read the answer, is cut off. When there are too many, the oldest goes, so that a new one always gets in.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from loguru import logger

TEXT = "text/plain; charset=utf-8"

_LONGEST_HEAD = 8192
"""Bytes of a request up to its empty line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says now."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take. Times are in seconds."""

    connections: int = 32
    patience_s: float = 5.0
    """How long one connection lives: a request, and its answer."""
    again_s: float = 30.0
    """Between two attempts to listen where the address is taken, or not there yet."""


class PageServer:
    """Answers GET and HEAD for a few pages."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Answer]],
        host: str,
        port: int,
        limits: Limits | None = None,
    ) -> None:
        """Nothing is opened yet. `pages` by path, such as `/livez`; they are called in the server's thread."""
        self._pages = pages
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._open: dict[asyncio.StreamWriter, None] = {}
        """The connections, the oldest first."""

    def start(self) -> None:
        """Serve, in a thread of its own, until the process ends; returns at once, and never fails."""
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True).start()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_tell)
        server = await self._listen()
        name = server.sockets[0].getsockname()
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        logger.info("pages on http://{}:{}: {}", host, name[1], ", ".join(self._pages))
        async with server:
            await server.serve_forever()

    async def _listen(self) -> asyncio.Server:
        said = ""
        while True:
            try:
                return await asyncio.start_server(
                    self._connected, self._host, self._port, limit=_LONGEST_HEAD
                )
            except (OSError, UnicodeError) as error:  # The second for what is no name of a host.
                number = getattr(error, "errno", None)
                words = os.strerror(number) if number and number > 0 else str(error)
                if words != said:
                    said = words
                    logger.warning(
                        "no pages on {}:{}: {}; tried again every {:g} s",
                        self._host,
                        self._port,
                        words,
                        self._limits.again_s,
                    )
            await asyncio.sleep(self._limits.again_s)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > self._limits.connections:
            # It counts no more from here on: each of a crowd that comes at once has to push out another one.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(self._limits.patience_s):
                writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # Whoever that is, there is nobody to answer.
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(_error(HTTPStatus.BAD_REQUEST))
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _response(_error(HTTPStatus.METHOD_NOT_ALLOWED))
        return _response(self._page(target.partition("?")[0]), with_body=method == "GET")

    def _page(self, path: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            return _error(HTTPStatus.NOT_FOUND, f"the pages are {', '.join(self._pages)}")
        try:
            return page()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the other pages
            logger.opt(exception=error).error("page {} failed", path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, repr(error))


def _error(status: HTTPStatus, words: str = "") -> Answer:
    return Answer(f"{status.phrase}{': ' if words else ''}{words}\n".encode(), status)


def _response(answer: Answer, *, with_body: bool = True) -> bytes:
    headers = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(("Allow: GET, HEAD",) if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ()),
    )
    return "\r\n".join((*headers, "", "")).encode() + (answer.body if with_body else b"")


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio could not do, such as accept a connection when there are no file descriptors left."""
    logger.warning("the pages: {} ({})", context["message"], context.get("exception"))
