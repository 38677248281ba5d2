"""Requests for other hosts are refused: a page elsewhere must not reach a store through a name it controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class OnlyHosts:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_ours(scope):
            from starlette.responses import PlainTextResponse

            refused = PlainTextResponse(f"expected a request for one of {', '.join(sorted(self.hosts))}", 421)
            await refused(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        given = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1:
            return False
        host, colon, port = given[0].rpartition(":")
        return (host if colon and port.isdigit() else given[0]) in self.hosts
