"""What small ASGI applications of the tests share. It imports nothing: one of them is a program of its own."""

from __future__ import annotations

from typing import Any


async def whole_body(receive: Any) -> bytes:
    """The body of a request, however many pieces it comes in."""
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body
