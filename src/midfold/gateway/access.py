"""Access control for the private gateway of `midfold run`: one key, one gateway per provider.

1. No request is answered without the key, because other accounts share the loopback interface.
2. Clients send the key as the header `x-midfold-key`, as the first path segment (for clients that accept only a
   base URL) or as the password of HTTP basic authentication. It is removed from path, query and headers, so neither
   a gateway nor an upstream sees it. Request bodies are not searched.
3. All requests with the key have the same owner, even when the client's provider credential rotates.
4. The next path segment names the gateway; the rest is the provider's path. All other paths are the gateway's own
   pages.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from midfold.gateway.admission import OWN_HEADER, Admission, key_in_header
from midfold.gateway.exchange import JSON, NO_OWNER, Receive, Scope, Send
from midfold.gateway.routes import error_body
from midfold.gateway.server import GatewayApplication
from midfold.gateway.upstream import aiohttp_module

REFUSED = "this gateway is private to one command; requests need its key"
AUTHORIZATION = b"authorization"


class GuardedGateway(NamedTuple):
    """A gateway application and the admission layer in front of it."""

    app: GatewayApplication
    door: Admission


class PrivateAccess:
    """ASGI application that checks the key and dispatches to the gateways; the first gateway serves the pages."""

    def __init__(self, key: str, gateways: Mapping[str, GuardedGateway]) -> None:
        self._key = key.encode()
        self._gateways = dict(gateways)
        self._admissions = {name.encode(): gateway.door for name, gateway in gateways.items()}
        self._pages = next(iter(self._admissions.values()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        inner = self._without_key(scope) if scope["type"] == "http" else None
        if inner is None:
            await _refuse(scope, send)
            return
        inner["state"] = {**scope.get("state", {}), "owner": NO_OWNER}
        name = _first_segment(inner)
        if name in self._admissions:
            await self._admissions[name](_without_first_segment(inner, name), receive, send)
        else:
            await self._pages(inner, receive, send)

    def _without_key(self, scope: Scope) -> Scope | None:
        """Return the request with the key removed, or None if the key is missing."""
        first = _first_segment(scope)
        if self._is_key(first):
            return self._clean(_without_first_segment(scope, first))
        for name, value in scope["headers"]:
            if name in (OWN_HEADER, AUTHORIZATION) and self._is_key(key_in_header(value.decode("latin-1")).encode()):
                return self._clean(scope)
        return None

    def _clean(self, scope: Scope) -> Scope:
        """Return the request without headers that contain the key, and with the key removed from path and query."""
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if not self._holds_key(value) and self._key.lower() not in name.lower()
        ]
        raw, query = (self._cut(scope.get(name) or b"") for name in ("raw_path", "query_string"))
        path = scope["path"] if raw == scope["raw_path"] else unquote(raw)
        return {**scope, "headers": headers, "path": path or "/", "raw_path": raw or b"/", "query_string": query}

    def _holds_key(self, value: bytes) -> bool:
        known = key_in_header(value.decode("latin-1")).encode()
        return self._key in value or self._key in known or self._key in unquote_to_bytes(value)

    def _cut(self, text: bytes) -> bytes:
        """Return a path or query without the key; empty if it still contains the key percent-encoded."""
        while self._key in text:
            text = text.replace(b"/" + self._key, b"").replace(self._key, b"")
        return b"" if self._key in unquote_to_bytes(text) else text

    def _is_key(self, text: bytes) -> bool:
        return hmac.compare_digest(text, self._key)

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI lifespan; close all gateways on shutdown."""
        await receive()
        asyncio.get_running_loop().run_in_executor(None, aiohttp_module)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for gateway in self._gateways.values():
            await gateway.app.gateway.close()
        await send({"type": "lifespan.shutdown.complete"})


def _first_segment(scope: Scope) -> bytes:
    raw: bytes = scope["raw_path"]
    return raw[1:].partition(b"/")[0]


def _without_first_segment(scope: Scope, segment: bytes) -> Scope:
    """Return the request without the first segment of its path. The segment must not be percent-encoded."""
    path = scope["path"][1 + len(segment) :] or "/"
    return {**scope, "path": path, "raw_path": scope["raw_path"][1 + len(segment) :] or b"/"}


async def _refuse(scope: Scope, send: Send) -> None:
    body = error_body(None, 401, REFUSED)
    headers = [JSON, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    if scope.get("method") == "GET":
        headers.append((b"www-authenticate", b'Basic realm="midfold: any name, the key as the password"'))
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
