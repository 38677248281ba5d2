"""Helpers for small ASGI applications in tests. Imports nothing, because one of them runs as a separate program."""

from __future__ import annotations

from typing import Any


async def whole_body(receive: Any) -> bytes:
    """Return the body of a request that may arrive in several chunks."""
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body
