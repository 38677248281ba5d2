"""The ASGI application around the gateway: `/healthz`, additional pages, the HTTP protocol and the request log.

1. Nothing that a relayed request does not need is imported before the gateway listens: pages are built at their first
   request, and the upstream HTTP client is loaded shortly after startup.
2. Every path that is not the gateway's own goes straight to the gateway.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import Transport
from asyncio.events import TimerHandle
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from midfold.gateway.exchange import JSON, Receive, Scope, Send
from midfold.gateway.routes import (
    NO_WEBSOCKETS,
    NOT_A_PATH,
    UNSERVED,
    error_body,
    is_origin_form,
    is_websocket,
)
from midfold.gateway.upstream import aiohttp_module

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from midfold.gateway.app import Gateway

HEALTH = "/healthz"
WARM_UP_AFTER = 0.2
"""Seconds after startup when the upstream client is loaded; an earlier request loads it itself."""


class LateRoutes(NamedTuple):
    """Starlette routes built at their first request; `own` lists the prefixes of their paths."""

    own: tuple[str, ...]
    make: Callable[[], Sequence[BaseRoute]]


class GatewayApplication:
    """ASGI application: the gateway's own paths, and the gateway for all others."""

    def __init__(self, gateway: Gateway, routes: Sequence[BaseRoute] = (), later: LateRoutes | None = None) -> None:
        self.gateway = gateway
        self._routes, self._later = list(routes), later
        named = [first_of(path_of(route)) for route in routes]
        self._own = frozenset([HEALTH, *named, *(later.own if later else ())])
        self._below = tuple(f"{own}/" for own in self._own if own != "/")
        self._inner: Any = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and (refusal := _refusal_for(scope)) is not None:
            await _answer(scope, send, *refusal)
        elif scope["type"] == "http" and scope["path"] == HEALTH:
            await self._health(scope, send)
        elif scope["type"] != "http" or self._is_own(scope["path"]):
            await (await self._pages())(scope, receive, send)
        else:
            with suppress(asyncio.CancelledError):
                await self.gateway(scope, receive, send)

    def _is_own(self, path: str) -> bool:
        return path in self._own or path.startswith(self._below)

    async def _pages(self) -> Any:
        async with self._making:
            if self._inner is None:
                self._inner = await asyncio.to_thread(self._make_app)
        return self._inner

    def _make_app(self) -> Any:
        from starlette.applications import Starlette

        return Starlette(routes=[*self._routes, *(self._later.make() if self._later else ())])

    async def _health(self, scope: Scope, send: Send) -> None:
        reading = scope["method"] in ("GET", "HEAD")
        value = (
            {"status": "ok", "mode": self.gateway.settings.mode}
            if reading
            else {"error": "only GET and HEAD are supported"}
        )
        await _answer(scope, send, 200 if reading else 405, msgspec.json.encode(value))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI lifespan."""
        await receive()
        loop = asyncio.get_running_loop()
        loading = loop.call_later(WARM_UP_AFTER, loop.run_in_executor, None, aiohttp_module)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        loading.cancel()
        await self.gateway.close()
        await send({"type": "lifespan.shutdown.complete"})


def _refusal_for(scope: Scope) -> tuple[int, bytes] | None:
    """Return status and body for a request that is refused for every client, or None."""
    if scope["method"] in UNSERVED:
        return 405, error_body(None, 405, f"{scope['method']} is not supported")
    if not is_origin_form(scope.get("raw_path") or scope["path"].encode()):
        return 400, error_body(None, 400, NOT_A_PATH)
    if is_websocket(scope["method"], scope["headers"]):
        return 426, error_body(None, 426, NO_WEBSOCKETS)
    return None


async def _answer(scope: Scope, send: Send, status: int, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def path_of(route: BaseRoute) -> str:
    return str(getattr(route, "path", HEALTH))


def first_of(path: str) -> str:
    """Return the first segment of a path; everything below it is the gateway's own."""
    return "/" + path.strip("/").partition("/")[0]


# Checks of a request's head before the application sees it.
#
# uvicorn waits indefinitely for a request's head and buffers all of it. Here:
# 1. A head must be complete `HEAD_SECONDS` after its first byte, and have at most `HEAD_BYTES`.
# 2. A connection that sends nothing is closed after the same time.
# 3. A request target must be a path. uvicorn would cut the host off a URL, and forward anything that follows a `*`.
# 4. A WebSocket is refused at once: clients that try one first fall back to HTTP. Any other upgrade is an offer that a
#    server may ignore (RFC 9110, 7.8). The parser stops after such a head, drops the body and would read it as another
#    request: the head is parsed again without the offer, followed by the body.


HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 1024


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a timeout, a size limit and validation of each request's head."""

    head_seconds = HEAD_SECONDS
    head_bytes = HEAD_BYTES

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head = 0
        self._in_head = True
        self._plain = b""
        """Head of a request that offers an upgrade, without the offer."""
        self._clock: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._clock is None:
                self._start_clock()
            self._head += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._in_head and self._head > self.head_bytes:
            self._refuse(431, b"the request's headers are too large")

    def _parse(self, data: memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            if not self.transport.is_closing():
                # A parser that stopped on a connection to be closed after its request drops all further data.
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(self._plain)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        method = self.parser.get_method()
        if method.decode("latin-1") in UNSERVED:
            self._refuse(405, method + b" is not supported")
            return
        if not is_origin_form(self.url):
            self._refuse(400, NOT_A_PATH.encode())
            return
        if is_websocket(method.decode("latin-1"), self.headers):
            self._refuse(426, NO_WEBSOCKETS.encode())
            return
        if self.parser.should_upgrade():
            self._plain = self._without_upgrade(method)
            return
        self._stop_clock()
        self._in_head = False
        if sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url) > self.head_bytes:
            self._refuse(431, b"the request's headers are too large")
            return
        super().on_headers_complete()

    def _without_upgrade(self, method: bytes) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if not self.transport.is_closing():
            super().on_message_complete()
        self._in_head, self._head = True, 0

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.head_seconds, self._time_out)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_out(self) -> None:
        self._clock = None
        if self.transport.is_closing():
            return
        if self._head:
            self._refuse(408, b"the request's headers were not received in time")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: bytes) -> None:
        """Send a response unless one has started, and close the connection."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        cycle: object = self.cycle
        if cycle is None or self.cycle.response_complete:
            length = str(len(message)).encode()
            head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: " + length
            if status == 426:
                head += b"\r\nupgrade: HTTP/1.1"
            self.transport.write(STATUS_LINE[status] + head + b"\r\n\r\n" + message)
        self.transport.close()


# Request log: one line of JSON per request on standard error, with what was done and how long it took.
#
# The fields are fixed: bodies, headers, keys and query strings are never logged.


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished request."""

    at: str
    owner: str = ""
    method: str
    route: str
    status: int
    milliseconds: float
    first_byte: float = 0.0
    action: str = ""
    receipt: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reason: str = ""
    """Reason why nothing was done, in the gateway's own words."""


Log = Callable[[LogEntry], None]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to(stream: TextIO | None = None) -> Log:
    """Return a log that writes entries as lines."""
    encoder = msgspec.json.Encoder()

    def write(entry: LogEntry) -> None:
        out = stream or sys.stderr
        out.write(encoder.encode(entry).decode() + "\n")
        out.flush()

    return write


def place_of(error: BaseException) -> str:
    """Return the last midfold frame of an error as file and line; its message may contain client text."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    ours = [f"{name.rpartition('midfold')[2]}:{line}" for name, line in frames if "midfold" in name]
    return ours[-1] if ours else "elsewhere"
