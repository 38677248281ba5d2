"""The door: who may come in, how much they may bring, and how long they may take to bring it.

An ASGI application around the gateway's own. A request's body is complete, and within its limits, before anything
looks at it. Rules of this file:
1. A key of the gateway is taken off the request here; no upstream ever sees one.
2. A refusal says what is wrong and never how close a key was.
3. All requests together hold at most `total_bytes` of unread bodies; one more is asked to come back.
4. Without keys only this machine is listened to. Pages that a browser shows are `browsers`' to judge.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from midfold.gateway.browsers import Browsers, Refused, answer_preflight, is_preflight, readable_by
from midfold.gateway.keeping import is_in_address, without_keys
from midfold.gateway.keys import Keys
from midfold.gateway.owner import Owner, owner_of
from midfold.gateway.routes import route_of
from midfold.gateway.shapes import error_body
from midfold.gateway.slack import Slack

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

OWN_HEADER = b"x-midfold-key"
BEARER, BASIC = "bearer ", "basic "
LARGE = 1_000_000
"""Bytes of a body that are put together in a thread."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request, and all of them together, may cost."""

    body_bytes: int = 64 * 1024 * 1024
    body_seconds: float = 60.0
    total_bytes: int = 512 * 1024 * 1024


OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""They need no key: whether the gateway lives is not a secret."""


class Admission:
    """Lets a request through with its body read and its owner known, or answers it.

    The owner is `scope["state"]["owner"]`; its name is empty when the gateway has no keys.
    """

    def __init__(
        self,
        app: App,
        keys: Keys,
        limits: Limits | None = None,
        refused: Callable[[int], None] | None = None,
        browsers: Browsers | None = None,
    ) -> None:
        self.app, self.keys, self.limits = app, keys, limits or Limits()
        self.refused = refused
        self.browsers = browsers or Browsers(keyed=bool(keys))
        self.held = 0
        self.slack = Slack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body()
        try:
            page = None
            if scope["path"] not in OPEN_PATHS:
                page = self.browsers.check(scope["method"], scope["headers"])
            if page is not None and is_preflight(scope["method"], scope["headers"]):
                await answer_preflight(page, scope["headers"], send)
                return
            send = send if page is None else readable_by(page, send)
            await self._admit(scope, receive, send, body)
        except Refused as refused:
            body.pieces.clear()
            if self.refused is not None:
                self.refused(refused.status)
            await _answer(scope, send, refused)
        finally:
            self._let_go(body.size)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, body: _Body) -> None:
        owner, headers = self._owner(scope)
        await self._read_within(scope, receive, body)
        inner = {**scope, "headers": headers, "state": {**scope.get("state", {}), "owner": owner}}
        whole = [body.whole() if body.size <= LARGE else await asyncio.to_thread(body.whole)]
        await self.app(inner, _Replayed(whole, receive), send)

    def _let_go(self, size: int) -> None:
        self.held -= size
        self.slack(size)

    def _owner(self, scope: Scope) -> tuple[Owner, list[Header]]:
        headers: list[Header] = list(scope["headers"])
        if not self.keys:
            return owner_of(headers), headers
        presented, rest = presented_key(headers)
        name = self.keys.who(presented)
        if name is None:
            if scope["path"] in OPEN_PATHS:
                return Owner(), headers
            raise Refused(401, "this gateway asks for a key of its own: send it as x-midfold-key, or as the API key")
        if is_in_address(scope.get("raw_path") or b"", scope.get("query_string", b""), self.keys):
            raise Refused(400, "a key of this gateway stands in the address; it belongs in the header x-midfold-key")
        return Owner(name), without_keys(rest, self.keys)

    async def _read_within(self, scope: Scope, receive: Receive, body: _Body) -> None:
        declared = _declared(scope["headers"])
        if declared > self.limits.body_bytes:
            raise Refused(413, f"the body has {declared:,} bytes; this gateway takes {self.limits.body_bytes:,}")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                await self._read(receive, body, declared)
        except TimeoutError:
            seconds = self.limits.body_seconds
            raise Refused(408, f"the body did not arrive within {seconds:g} seconds") from None

    async def _read(self, receive: Receive, body: _Body, declared: int) -> None:
        while True:
            if self.held + declared - body.size > self.limits.total_bytes:
                raise Refused(503, "the gateway holds as many unfinished requests as it can; try again")
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Refused(499, "the client went away")
            piece = event.get("body", b"")
            self.held += len(piece)
            body.add(piece)
            if body.size > self.limits.body_bytes:
                raise Refused(413, f"the body is larger than the {self.limits.body_bytes:,} bytes this gateway takes")
            if not event.get("more_body", False):
                return


def presented_key(headers: list[Header]) -> tuple[str | None, list[Header]]:
    """The key of the gateway, and the headers without it.

    With `x-midfold-key` the provider's own key stays where it is; without, the API key is the gateway's, and the
    provider's comes from the gateway's configuration.
    """
    for wanted in (OWN_HEADER, b"x-api-key", b"authorization"):
        for name, value in headers:
            if name == wanted:
                key = _key_in(value.decode("latin-1"))
                gone = (OWN_HEADER,) if wanted == OWN_HEADER else (b"x-api-key", b"authorization")
                return key, [pair for pair in headers if pair[0] not in gone]
    return None, headers


def _key_in(text: str) -> str:
    """The key in a header: bare, as a bearer token, or as the password that a browser asks for."""
    if text.lower().startswith(BEARER):
        return text[len(BEARER) :].strip()
    if text.lower().startswith(BASIC):
        try:
            return b64decode(text[len(BASIC) :]).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return text.strip()


def _declared(headers: list[Header]) -> int:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


class _Body:
    """What has arrived of a request."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def whole(self) -> bytes:
        """In one piece; the pieces are let go."""
        pieces, self.pieces = self.pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Replayed:
    """Gives the body once, which is then whoever's asked for it, and after that what the client still says."""

    def __init__(self, body: list[bytes], receive: Receive) -> None:
        self._body, self._receive = body, receive

    async def __call__(self) -> Event:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await self._receive()


async def _answer(scope: Scope, send: Send, refused: Refused) -> None:
    body = error_body(route_of(scope["method"], scope["path"]).wire, refused.status, str(refused))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    if refused.status == 503:
        headers.append((b"retry-after", b"1"))
    if refused.status == 401 and scope["method"] == "GET":
        headers.append((b"www-authenticate", b'Basic realm="midfold: any name, the key as the password"'))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
