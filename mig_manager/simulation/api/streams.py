"""Sending a watch: when lines go out, how the stream ends, and how it goes wrong on request."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from aiohttp import web

from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.api.status import expired
from mig_manager.simulation.api.watch import Watch, error_line

Trouble = Literal["close", "cut", "silent", "gone"]
"""`close`: end the stream properly. `cut`: break it inside a chunk. `silent`: send nothing more.
`gone`: an ERROR event with 410, then the end."""

_SHORTEST_S = 30 * 60


class Stream:
    """One watch on its way to a client. Lives in the server's event loop."""

    def __init__(self, path: str, watch: Watch, timeout_s: float | None, bookmark_s: float) -> None:
        self.path = path
        self._watch = watch
        self._timeout_s = random.uniform(1, 2) * _SHORTEST_S if timeout_s is None else timeout_s
        self._bookmark_s = bookmark_s
        self._wake = asyncio.Event()
        self._trouble: Trouble | None = None

    def wake(self) -> None:
        """There may be news."""
        self._wake.set()

    def disturb(self, trouble: Trouble) -> None:
        """Go wrong now."""
        self._trouble = trouble
        self._wake.set()

    async def run(self, request: web.BaseRequest, response: web.StreamResponse, fault: Fault | None) -> None:
        """Send until the time is up, the client leaves, or something goes wrong."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        bookmark = loop.time() + self._bookmark_s
        sent = 0
        while self._trouble is None:
            self._wake.clear()
            lines = self._watch.lines()
            if fault is not None and fault.how in ("cut", "silent") and sent + len(lines) >= fault.lines:
                lines = lines[: fault.lines - sent]
                self._trouble = "cut" if fault.how == "cut" else "silent"
            if not lines and self._watch.bookmarks and loop.time() >= bookmark:
                lines = [self._watch.bookmark()]
                bookmark = loop.time() + self._bookmark_s
            if lines:
                await response.write(b"".join(lines))
                sent += len(lines)
            if self._watch.ended or loop.time() >= end:
                return
            if self._trouble is None:
                until = min(end, bookmark) if self._watch.bookmarks else end
                await self._wait(until - loop.time())
        await self._go_wrong(request, response)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _go_wrong(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        if self._trouble == "gone":
            await response.write(error_line(expired("too old resource version")))
        elif self._trouble == "cut":
            cut(request)
        while self._trouble == "silent":
            self._wake.clear()
            await self._wake.wait()


def cut(request: web.BaseRequest) -> None:
    """Break the connection inside a chunk of the answer, whose headers are sent."""
    if request.transport is not None:
        request.transport.write(b'1000\r\n{"type":"MODIFIED","object":{"kind":')
        request.transport.close()
