"""Fuzzing tools: a provider that reports the requests it received, raw sockets, and malformed requests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
from typing import Any, NamedTuple

from hypothesis import strategies as st

from support.asgi import whole_body

MODEL = "fuzz-model"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/responses/compact")


class Echo:
    """Provider (ASGI application) that answers with the hash of the request body."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            while scope["type"] == "lifespan":
                event = await receive()
                await send({"type": f"{event['type']}.complete"})
                if event["type"] == "lifespan.shutdown":
                    return
            return
        body = await whole_body(receive)
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 3, "input_tokens": len(body) // 4}
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        value = {"id": "x", "data": [], "choices": [choice], "usage": usage}
        answer = json.dumps(value).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
            (b"x-sha256", hashlib.sha256(body).hexdigest().encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Spoken(NamedTuple):
    """Reply of the server; without a status if the connection was closed or the server waits for more input."""

    status: int
    data: bytes


def speak(port: int, data: bytes, patience: float = 10.0, quiet: float = 0.15) -> Spoken:
    """Send bytes on a new connection; after `quiet` seconds without data the reply counts as complete."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        connection.settimeout(quiet)
        with contextlib.suppress(OSError):
            while not _is_whole(answer) and (piece := connection.recv(65_536)):
                answer += piece
    found = STATUS.match(answer)
    return Spoken(int(found[1]) if found else 0, answer)


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = LENGTH.search(head + b"\r\n")
    return bool(end and length) and len(body) >= int(length[1] if length else 0)


# Unusual JSON

INJECTIONS = (
    "' OR 1=1 --",
    '"; DROP TABLE sessions; --',
    "words MATCH '*'",
    'NEAR("a" "b", 9)',
    "%s %(x)s :name {now} $1",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "../../etc/passwd\x00",
    "\ud83d\ude00 \u202e \uffff",
    "a" * 600,
)
words = st.sampled_from(INJECTIONS) | st.text(max_size=40)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4))
roles = st.sampled_from(["system", "user", "assistant", "tool", "developer", "function", ""]) | anything
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image", "thinking", "input_text", "x"]) | anything},
    optional={
        "text": anything,
        "id": anything,
        "name": anything,
        "input": anything,
        "tool_use_id": anything,
        "content": anything,
        "source": anything,
        "signature": anything,
        "cache_control": anything,
    },
)
calls = st.fixed_dictionaries({}, optional={"id": anything, "type": anything, "function": anything | blocks})
message = st.fixed_dictionaries(
    {"role": roles},
    optional={
        "content": anything | st.lists(blocks | anything, max_size=3),
        "tool_calls": anything | st.lists(calls, max_size=3),
        "tool_call_id": anything,
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | anything,
        "call_id": anything,
        "output": anything,
    },
)
messages = st.lists(message | anything, max_size=6) | anything


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a request body of any structure, often long enough to be folded, sometimes with invalid bytes."""
    talk = draw(messages)
    if isinstance(talk, list) and draw(st.booleans()):
        filler = [
            {"role": role, "content": f"{number} " + "lorem ipsum dolor sit amet " * 20}
            for number in range(draw(st.integers(4, 12)))
            for role in ("user", "assistant")
        ]
        at = draw(st.integers(0, len(filler)))
        talk = [*filler[:at], *talk, *filler[at:]]
    body: dict[str, Any] = {
        "model": draw(st.just(MODEL) | anything),
        draw(st.sampled_from(["messages", "input"])): talk,
    }
    for name in draw(st.sets(st.sampled_from(["system", "tools", "stream", "max_tokens", "instructions", "metadata"]))):
        body[name] = draw(anything)
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 3)) == 0:
        data = draw(broken(data))
    return data


@st.composite
def broken(draw: st.DrawFn, data: bytes) -> bytes:
    """Change, remove or insert a few bytes, or truncate the end."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(made) - 1, 0)))
        made[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(made[: draw(st.integers(0, len(made)))] if draw(st.booleans()) else made)


DEEP = (
    b'{"model":"fuzz-model","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model":"fuzz-model","messages":[{"role":"user","content":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}]}",
    b'{"model":' + b"9" * 200_000 + b',"messages":[]}',
    b"[" * 500_000,
    b'{"model":"fuzz-model","input":[{"role":"user","content":"half \\ud83d","x":tru}]}',
    b'{"model":"fuzz-model","input":[{"role":"user","content":"half \\ud83d"}],"instructions":{"a" 1}}',
)

# Unusual request heads

methods = st.sampled_from(
    [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"CONNECT", b"TRACE", b"PRI", b"get"]
)
targets = st.sampled_from(
    [path.encode() for path in PATHS]
    + [b"/", b"/healthz", b"/readyz", b"/metrics", b"/v1/models", b"/sessions", b"/api/overview", b"*", b"//", b"/%00"]
    + [b"http://evil/v1/messages", b"/../../etc/passwd", b"/v1/../healthz", b"/v1/messages#x", b"/\xff\xfe", b"/%zz"]
    + [b"/search?q=%27%20OR%201%3D1", b"/sessions/%2e%2e%2f", b"/api/sessions/x/unfold/mf-%00", b"/" + b"a" * 70_000]
)
headers = st.sampled_from(
    (
        b"content-length: 5",
        b"content-length: -1",
        b"content-length: 99999999999999999999",
        b"content-length: 5, 6",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
        b"Transfer-Encoding : chunked",
        b"te: x",
        b"expect: 100-continue",
        b"connection: upgrade\r\nupgrade: websocket",
        b"connection: close, x-api-key",
        b"host: a\r\nhost: b",
        b" folded: line",
        b"x\x00y: z",
        b"no colon here",
        b"x-midfold-session: ../../x",
        b"x-midfold-session: \xff\xfe",
        b"x-midfold-bypass: yes",
        b"authorization: Basic !!!",
        b"origin: null",
        b"accept-encoding: br;q=1, *",
        b"content-encoding: gzip",
        b"cookie: " + b"c" * 5_000,
        b"x: " + b"h" * 70_000,
    )
)
chunks = st.sampled_from(
    [b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"5;x=y\r\nhello\r\n0\r\n\r\n", b"zz\r\n"]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a request, well formed or not, possibly followed by a second one."""
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"http/1.1", b""]))
    lines = [draw(methods) + b" " + draw(targets) + b" " + version, b"host: x"]
    lines += draw(st.lists(headers, max_size=4))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + draw(chunks | st.binary(max_size=60) | bodies())
    if draw(st.booleans()):
        data = draw(broken(data))
    return data + draw(st.sampled_from([b"", b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"]))
