"""Provider of the gateway benchmark: answers immediately, whole or as a stream.

python -m uvicorn bench.gateways.upstream:app
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

EVENTS = 20
_USAGE = {"prompt_tokens": 1_000, "completion_tokens": 20, "total_tokens": 1_020}
_HEAD = {"id": "chatcmpl-bench", "created": 1, "model": "gpt-4o"}
_MESSAGE = {"role": "assistant", "content": "All of it is done, and every test passes."}
WHOLE = json.dumps(
    {
        **_HEAD,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
).encode()


def _event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    value = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


PIECES = [_event({"role": "assistant", "content": f"word {n} "}) for n in range(EVENTS)]
PIECES += [_event({}, usage=_USAGE), b"data: [DONE]\n\n"]
PAUSE = 0.02
"""Seconds between the events of a stream that requests a pause."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if b'"stream":true' not in body[-200:].replace(b" ", b"") and b'"stream":true' not in body[:200].replace(b" ", b""):
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(WHOLE)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": WHOLE})
        return
    head = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    slow = b"slowly" in body
    for piece in PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(PAUSE if slow else 0)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
