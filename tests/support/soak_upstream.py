"""Provider that misbehaves on purpose and checks the requests that reach it.

    python soak_upstream.py PORT WINDOW [MOOD]

Every message carries the mark of its session ("S7."). The provider refuses overlong requests, answers with the mark
in
the request, and records a fault for requests that mix marks or do not end with the newest turn. `GET /soak` returns
the
counts. Some answers are errors, late, slow, truncated or invalid.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import Counter
from typing import Any

from asgi import whole_body

MARK = re.compile(r"\bS(\d+)\.")
TURN = re.compile(r"\bT(\d+)\b")
KINDS = ["good"] * 82 + ["error"] * 6 + ["hang"] + ["slow"] * 4 + ["garbage"] * 4 + ["cut"] * 3
HANG = 4.0


class Upstream:
    """ASGI application of the provider."""

    def __init__(self, window: int, mood: str = "") -> None:
        self.window = window
        self.kinds = [mood] if mood else KINDS
        self.tally: Counter[str] = Counter()
        self.faults: list[str] = []
        self.choice = random.Random(11)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await whole_body(receive)
        if scope["path"] == "/soak":
            await answer(send, 200, {"tally": self.tally, "faults": self.faults[:20]})
        else:
            await self.complete(json.loads(body), send)

    async def complete(self, request: dict[str, Any], send: Any) -> None:
        text = json.dumps(request["messages"])
        tokens = len(text) // 4
        if tokens > self.window:
            self.tally["overflow"] += 1
            told = f"This model's maximum context length is {self.window} tokens, you requested {tokens}."
            await answer(send, 400, {"error": {"message": told, "code": "context_length_exceeded", "type": "x"}})
            return
        mark, turn = self.judge(request["messages"], text)
        kind = self.choice.choice(self.kinds)
        self.tally[kind] += 1
        if kind == "error":
            await answer(send, 500, {"error": {"message": "the provider is not well", "type": "server_error"}})
        elif kind == "hang":
            await asyncio.sleep(HANG)
            await answer(send, 504, {"error": {"message": "late", "type": "server_error"}})
        else:
            await self.reply(f"S{mark}. answer to T{turn}", tokens, bool(request.get("stream")), kind, send)

    def judge(self, messages: list[dict[str, Any]], text: str) -> tuple[str, str]:
        marks = set(MARK.findall(text))
        last = str(messages[-1]["content"])
        turns = TURN.findall(last)
        if len(marks) != 1:
            self.faults.append(f"a request with the marks {sorted(marks)}")
        if messages[-1]["role"] != "user" or not turns:
            self.faults.append("a request that does not end with the newest turn")
        return (next(iter(marks)) if marks else "none"), (turns[-1] if turns else "none")

    async def reply(self, said: str, tokens: int, stream: bool, kind: str, send: Any) -> None:
        usage = {"prompt_tokens": tokens, "completion_tokens": 8, "total_tokens": tokens + 8}
        if not stream:
            message = {"role": "assistant", "content": said}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await answer(send, 200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in [said[at : at + 6] for at in range(0, len(said), 6)]:
            event = {
                "id": "x",
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"content": piece}}],
            }
            await part(send, b"data: " + json.dumps(event).encode() + b"\n\n")
            if kind == "slow":
                await asyncio.sleep(0.15)
            elif kind == "garbage":
                await part(send, b"event: \xff\xfe\ndata: {not json\n\n:\n\ndata\n\n")
            elif kind == "cut":
                raise ConnectionResetError
        await part(send, b"data: " + json.dumps({"id": "x", "choices": [], "usage": usage}).encode() + b"\n\n")
        await part(send, b"data: [DONE]\n\n", more=False)


async def part(send: Any, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def answer(send: Any, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await part(send, body, more=False)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(Upstream(int(sys.argv[2]), *sys.argv[3:]), port=int(sys.argv[1]), log_level="critical", lifespan="off")
