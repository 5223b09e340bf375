"""From an HTTP request to its answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mig_manager.simulation.api.admission import Admit, asking
from mig_manager.simulation.api.authorization import (
    Authorizer,
    User,
    access_of,
    authenticate,
    forbidden,
    review,
)
from mig_manager.simulation.api.calls import Call, read_call
from mig_manager.simulation.api.discovery import document
from mig_manager.simulation.api.faults import Fault, Faults, Request, RequestLog
from mig_manager.simulation.api.negotiation import JSON, accepted, dump, read_body
from mig_manager.simulation.api.openapi import openapi
from mig_manager.simulation.api.podlog import PodLog, read_log
from mig_manager.simulation.api.status import StatusError, bad_request
from mig_manager.simulation.api.streams import Stream, Trouble, cut
from mig_manager.simulation.api.tokens import give_token
from mig_manager.simulation.api.verbs import answer
from mig_manager.simulation.api.watch import Watch
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import REVIEWS
from mig_manager.simulation.store import MemoryStore

_HEALTH = ("/healthz", "/livez", "/readyz")
_READS = ("get", "list")


@dataclass(frozen=True, slots=True)
class Rules:
    """How the server treats its clients."""

    tokens: MutableMapping[str, User] | None
    anonymous: User | None
    authorizer: Authorizer | None
    admit: Admit | None
    pod_log: PodLog
    bookmark_s: float


class _Exchange:
    """What is known of a request so far, for the log."""

    def __init__(self, request: web.BaseRequest, log: RequestLog) -> None:
        self.request = request
        self.user: User | None = None
        self.call: Call | None = None
        self.body: Object | None = None
        self._log = log

    def record(self, status: int) -> None:
        """Log the request with the status of its answer."""
        headers, call = self.request.headers, self.call
        access = access_of(call, self.user or User("")) if call else None
        self._log.add(
            Request(
                method=self.request.method,
                path=self.request.path,
                query=dict(self.request.query),
                status=status,
                user_agent=headers.get("User-Agent", ""),
                content_type=headers.get("Content-Type", ""),
                accept=headers.get("Accept", ""),
                user=self.user.name if self.user else "",
                verb=access.verb if access else "",
                resource=access.resource if access else "",
                group=access.group if access else "",
                namespace=access.namespace if access else "",
                name=access.name if access else "",
                body=self.body,
            )
        )


class Handler:
    """Answers requests. Lives in the server's event loop; writes run in the workers."""

    def __init__(
        self, store: MemoryStore, rules: Rules, faults: Faults, log: RequestLog, workers: ThreadPoolExecutor
    ) -> None:
        self._store = store
        self._rules = rules
        self._faults = faults
        self._log = log
        self._workers = workers
        self._streams: set[Stream] = set()
        self._stopping = asyncio.Event()

    @property
    def watches(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def wake(self) -> None:
        """The store has changed."""
        for stream in self._streams:
            stream.wake()

    def stop(self) -> None:
        """End all streams, and everything that hangs."""
        self._stopping.set()
        for stream in self._streams:
            stream.disturb("close")

    def disturb(self, trouble: Trouble, path: str) -> int:
        """Make the open watches go wrong whose path and query contain the regular expression."""
        met = [stream for stream in self._streams if re.search(path, stream.path)]
        for stream in met:
            stream.disturb(trouble)
        return len(met)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        exchange = _Exchange(request, self._log)
        fault = self._faults.hit(request.method, request.path_qs)
        try:
            if fault is not None:
                if fault.gate is not None:
                    await fault.gate.pass_through()
                await asyncio.sleep(fault.delay_s)
                if fault.status is not None and fault.how == "answer":
                    if fault.body is not None or fault.text is not None:
                        exchange.record(fault.status)
                        return _faulty(fault.status, fault)
                    raise fault.error()
            response = await self._answer(exchange, fault)
        except StatusError as error:
            response = _json(error.code, error.body)
            if error.retry_after_s:
                response.headers["Retry-After"] = str(error.retry_after_s)
        if fault is not None and fault.act is not None:
            fault.act()
        if not response.prepared:
            if fault is not None and fault.how != "answer":
                return await self._go_wrong(exchange, fault)
            exchange.record(response.status)
        return response

    async def _answer(self, exchange: _Exchange, fault: Fault | None) -> web.StreamResponse:
        request = exchange.request
        path, accept = request.rel_url.raw_path, request.headers.get("Accept", "")
        if path in _HEALTH:
            return web.Response(text="ok")
        if fault is not None and fault.how == "drop":
            return web.Response()
        exchange.user = authenticate(
            request.headers.get("Authorization", ""), self._rules.tokens, self._rules.anonymous
        )
        loop = asyncio.get_running_loop()
        page = document(path, accept)
        if path.startswith("/openapi/"):
            page = await loop.run_in_executor(self._workers, openapi, path)
        if page is not None:
            aggregated = page.get("kind") == "APIGroupDiscoveryList"
            kind = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" if aggregated else JSON
            return _json(200, page, kind)
        query = dict(request.query)
        exchange.call = call = read_call(request.method, path, query)
        access = access_of(call, exchange.user)
        if self._rules.authorizer is not None and not self._rules.authorizer(access):
            raise forbidden(call, access)
        if call.subresource == "log":
            return web.Response(text=read_log(self._store, call, self._rules.pod_log))
        form = accepted(accept, query)
        if call.verb == "watch":
            return await self._watch(exchange, call, fault)
        media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        body = read_body(media, await request.read())
        exchange.body = body if isinstance(body, dict) else None
        if call.resource in REVIEWS:
            reviewed = review(self._store, call, _object(body), exchange.user, self._rules.authorizer)
            return _json(201, reviewed)
        if call.subresource == "token":
            tokens = {} if self._rules.tokens is None else self._rules.tokens
            return _json(201, give_token(self._store, tokens, call, _object(body)))
        ask = asking(self._rules.admit, exchange.user)
        if call.verb in _READS:
            reply = answer(self._store, call, None, media, ask)
        else:
            reply = await loop.run_in_executor(self._workers, answer, self._store, call, body, media, ask)
        shaped = form.shape(call.resource, reply.object)
        return web.Response(status=reply.code, body=form.write(shaped), content_type=form.media)

    async def _watch(self, exchange: _Exchange, call: Call, fault: Fault | None) -> web.StreamResponse:
        request = exchange.request
        form = accepted(request.headers.get("Accept", ""), call.query)
        watch = Watch(self._store, call, form)
        stream = Stream(request.path_qs, watch, call.number("timeoutSeconds"), self._rules.bookmark_s)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        response.enable_chunked_encoding()
        self._streams.add(stream)
        try:
            await response.prepare(request)
            exchange.record(200)
            if self._stopping.is_set():
                stream.disturb("close")
            # A client that leaves in the middle of a line is nothing to report.
            with suppress(ConnectionError):
                await stream.run(request, response, fault)
        finally:
            self._streams.discard(stream)
        return response

    async def _go_wrong(self, exchange: _Exchange, fault: Fault) -> web.StreamResponse:
        """Answer a request that is no watch in one of the ways that are no answer."""
        request = exchange.request
        response = web.StreamResponse(headers={"Content-Type": JSON})
        if fault.how == "cut":
            response.enable_chunked_encoding()
            await response.prepare(request)
            exchange.record(200)
            cut(request)
            return response
        exchange.record(0)
        if fault.how == "silent":
            await self._stopping.wait()
        if request.transport is not None:
            request.transport.abort()
        return response


def _json(status: int, body: Object, content_type: str = JSON) -> web.Response:
    return web.Response(status=status, body=dump(body) + b"\n", headers={"Content-Type": content_type})


def _faulty(status: int, fault: Fault) -> web.Response:
    """The answer that a fault spells out."""
    response = (
        web.Response(status=status, text=fault.text) if fault.body is None else _json(status, fault.body)
    )
    if fault.retry_after_s is not None:
        response.headers["Retry-After"] = str(fault.retry_after_s)
    return response


def _object(body: Any) -> Object:
    if not isinstance(body, dict):
        raise bad_request("Required body is missing or empty")
    return body
