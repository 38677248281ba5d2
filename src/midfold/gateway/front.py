"""Which requests the gateway answers itself: `/healthz`, and the pages that are put beside it.

Rules of this file:
1. Nothing that a relayed request does not need is imported before the gateway listens: pages are made when one of them
   is first asked for, and the client of the upstreams is loaded once the first answer can be given.
2. Everything that is not the gateway's own goes straight to the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from midfold.gateway.client import aiohttp_module
from midfold.gateway.exchange import JSON, Receive, Scope, Send
from midfold.gateway.routes import NOT_A_PATH, UNSERVED, is_origin_form
from midfold.gateway.shapes import error_body

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from midfold.gateway.app import Gateway

HEALTH = "/healthz"
WARM_UP_AFTER = 0.2
"""Seconds; who asks earlier does not wait for it, but loads what is needed then and there."""


class Later(NamedTuple):
    """Starlette routes that are made when somebody asks for them; `own` is what their paths begin with."""

    own: tuple[str, ...]
    make: Callable[[], Sequence[BaseRoute]]


class Front:
    """The ASGI application: the gateway's own paths, and the gateway."""

    def __init__(self, gateway: Gateway, routes: Sequence[BaseRoute] = (), later: Later | None = None) -> None:
        self.gateway = gateway
        self._routes, self._later = list(routes), later
        named = [first_of(path_of(route)) for route in routes]
        self._own = frozenset([HEALTH, *named, *(later.own if later else ())])
        self._below = tuple(f"{own}/" for own in self._own if own != "/")
        self._inner: Any = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and (refusal := _unserved(scope)) is not None:
            await _told(scope, send, *refusal)
        elif scope["type"] == "http" and scope["path"] == HEALTH:
            await self._healthy(scope, send)
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
                self._inner = await asyncio.to_thread(self._made)
        return self._inner

    def _made(self) -> Any:
        from starlette.applications import Starlette

        return Starlette(routes=[*self._routes, *(self._later.make() if self._later else ())])

    async def _healthy(self, scope: Scope, send: Send) -> None:
        reading = scope["method"] in ("GET", "HEAD")
        told = (
            {"status": "ok", "mode": self.gateway.settings.mode} if reading else {"error": "only GET is answered here"}
        )
        await _told(scope, send, 200 if reading else 405, msgspec.json.encode(told))

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the server's start to its end."""
        await receive()
        loop = asyncio.get_running_loop()
        loading = loop.call_later(WARM_UP_AFTER, loop.run_in_executor, None, aiohttp_module)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        loading.cancel()
        await self.gateway.close()
        await send({"type": "lifespan.shutdown.complete"})


def _unserved(scope: Scope) -> tuple[int, bytes] | None:
    """What is wrong with a request that goes nowhere, whoever sends it."""
    if scope["method"] in UNSERVED:
        return 405, error_body(None, 405, f"{scope['method']} is not served here")
    if not is_origin_form(scope.get("raw_path") or scope["path"].encode()):
        return 400, error_body(None, 400, NOT_A_PATH)
    return None


async def _told(scope: Scope, send: Send, status: int, body: bytes) -> None:
    headers = [JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def path_of(route: BaseRoute) -> str:
    return str(getattr(route, "path", HEALTH))


def first_of(path: str) -> str:
    """The first segment of a path: all below it is the gateway's own."""
    return "/" + path.strip("/").partition("/")[0]
