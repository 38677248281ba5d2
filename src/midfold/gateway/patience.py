"""What a request's head must be before the application sees it: in time, of a size, with a path, and plain HTTP.

uvicorn waits for a request's head as long as the client likes and keeps as much of it as comes. Here:
1. A head must be complete `HEAD_SECONDS` after its first byte, and hold at most `HEAD_BYTES`.
2. A connection that says nothing at all is closed after the same time.
3. A request target is a path. uvicorn would cut the host off an address, and hand on whatever follows a `*`.
4. An upgrade is an offer that a server may ignore (RFC 9110, 7.8). The parser stops behind such a head, drops the body
   and would read it as another request: the head is parsed once more without the offer, and the body after it.
"""

from __future__ import annotations

from asyncio import Transport
from asyncio.events import TimerHandle
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from midfold.gateway.routes import NOT_A_PATH, UNSERVED, is_origin_form

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 1024


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a clock, a measure and a check of each request's head."""

    head_seconds = HEAD_SECONDS
    head_bytes = HEAD_BYTES

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head = 0
        self._in_head = True
        self._plain = b""
        """The head of a request that offers an upgrade, without the offer."""
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
            self._let_go(431, b"the request's header fields are larger than the gateway accepts")

    def _parse(self, data: memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            if not self.transport.is_closing():
                # A parser that has stopped on a connection that ends after its request drops all that follows.
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(self._plain)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        method = self.parser.get_method()
        if method.decode("latin-1") in UNSERVED:
            self._let_go(405, method + b" is not served here")
            return
        if not is_origin_form(self.url):
            self._let_go(400, NOT_A_PATH.encode())
            return
        if self.parser.should_upgrade():
            self._plain = self._without_upgrade(method)
            return
        self._stop_clock()
        self._in_head = False
        if sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url) > self.head_bytes:
            self._let_go(431, b"the request's header fields are larger than the gateway accepts")
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
        self._clock = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._clock = None
        if self.transport.is_closing():
            return
        if self._head:
            self._let_go(408, b"the request's head took too long")
        else:
            self.transport.close()

    def _let_go(self, status: int, told: bytes) -> None:
        """An answer and the end of the connection, unless an answer is already on its way."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        cycle: object = self.cycle
        if cycle is None or self.cycle.response_complete:
            length = str(len(told)).encode()
            head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: " + length
            self.transport.write(STATUS_LINE[status] + head + b"\r\n\r\n" + told)
        self.transport.close()
