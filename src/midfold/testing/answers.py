r"""Responses of a scripted provider: valid summaries in every wire format, and real-world failures.

    openai_json("## Goal\n...")                    anthropic_stream("## Goal\n...").slow(0.05)
    error(429, headers={"retry-after": "7"})       openai_stream("...").cut(0.5).reset()
    turn("openai", "Let me look.", [("shell", {"command": "ls"})])

An `Answer` is a value; its methods return changed copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Literal

import msgspec

from midfold.transcript import jsonio

Ending = Literal["whole", "half_closed", "reset"]
JSON = "application/json"
EVENTS = "text/event-stream"
PAGE = "<!doctype html>\n<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"
_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""Finish reasons of the two wire formats."""
_INPUT_DELTA = ("input_json_delta", "partial_json")
_numbers = count(1)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response: head, body in pieces, and how the connection ends."""

    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    pieces: tuple[bytes, ...] = ()
    pause: float = 0.0
    """Seconds before the head of the response, and between the pieces of its body."""
    head_pause: float = 0.0
    """Seconds between the bytes of the head."""
    ending: Ending = "whole"
    promised: int | None = None
    """The content-length; without one the body is sent in chunks."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def slow(self, pause: float, size: int | None = None) -> Answer:
        """Return a copy that trickles in pieces of `size` bytes, or in the existing pieces."""
        pieces = self.pieces if size is None else _cut(self.body, size)
        return msgspec.structs.replace(self, pieces=pieces, pause=pause)

    def slow_head(self, pause: float) -> Answer:
        """Return a copy whose status line and headers trickle byte by byte."""
        return msgspec.structs.replace(self, head_pause=pause)

    def in_pieces(self, size: int) -> Answer:
        return msgspec.structs.replace(self, pieces=_cut(self.body, size))

    def cut(self, share: float) -> Answer:
        """Return a copy with only the first part of the body, properly ended, like a proxy that gave up."""
        return msgspec.structs.replace(self, pieces=(self.body[: int(len(self.body) * share)],))

    def half_closed(self, share: float = 0.5) -> Answer:
        """Return a copy whose connection closes cleanly after a part of the promised body."""
        body = self.body
        return msgspec.structs.replace(
            self, pieces=(body[: int(len(body) * share)],), promised=len(body), ending="half_closed"
        )

    def reset(self, share: float = 0.5) -> Answer:
        """Return a copy whose connection is reset after a part of the promised body; with 0, before the head."""
        body = self.body
        return msgspec.structs.replace(
            self, pieces=(body[: int(len(body) * share)],) if share else (), promised=len(body), ending="reset"
        )

    def with_type(self, content_type: str) -> Answer:
        return msgspec.structs.replace(self, content_type=content_type)

    def with_headers(self, **headers: str) -> Answer:
        """Return a copy with more headers; underscores become hyphens."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return msgspec.structs.replace(self, headers={**self.headers, **more})


def _cut(body: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(body[start : start + size] for start in range(0, len(body), size))


def raw(body: bytes | str, content_type: str = JSON, status: int = 200) -> Answer:
    """Return a response with arbitrary bytes and content type."""
    data = body.encode() if isinstance(body, str) else body
    return Answer(status=status, content_type=content_type, pieces=(data,) if data else ())


def value(body: Any, status: int = 200) -> Answer:
    """Return a response with a JSON value."""
    return raw(jsonio.encode(body), JSON, status)


def events(items: Iterable[Any], *, named: bool = False, done: bool = False) -> Answer:
    """Return an event stream of JSON values; `named` for Anthropic's event names, `done` for OpenAI's final event."""
    pieces = [
        (f"event: {item['type']}\n" if named else "").encode() + b"data: " + jsonio.encode(item) + b"\n\n"
        for item in items
    ]
    return Answer(content_type=EVENTS, pieces=(*pieces, *([b"data: [DONE]\n\n"] if done else [])))


def empty(status: int = 200, content_type: str = JSON) -> Answer:
    return raw(b"", content_type, status)


def page(status: int = 200) -> Answer:
    """Return an HTML page, as a proxy sends in place of the provider."""
    return raw(PAGE, "text/html; charset=utf-8", status)


def huge(size: int = 9_000_000) -> Answer:
    """Return a body larger than any client should read."""
    return raw(b'{"choices": [' + b" " * size + b"]}").in_pieces(1 << 16)


def redirect(location: str, status: int = 307) -> Answer:
    return raw(b"", "text/plain", status).with_headers(location=location)


def error(
    status: int, message: str = "", kind: str = "", code: str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return an error in a form that both OpenAI and Anthropic clients read."""
    body = {"type": "error", "error": {"type": kind or "error", "message": message, "code": code, "param": None}}
    return msgspec.structs.replace(value(body, status), headers=dict(headers or {}))


def openai_json(
    text: str | None, finish: str = "stop", *, cached: int = 0, refusal: str | None = None, calls: Sequence[Any] = ()
) -> Answer:
    """Return a chat completion."""
    return _openai(text, finish, calls, _openai_usage(1_000, cached, 100), stream=False, refusal=refusal)


def openai_stream(text: str, finish: str | None = "stop", *, cached: int = 0, size: int = 40) -> Answer:
    """Return a chat completion as a stream; without `finish` it ends too early."""
    return _openai(text, finish, (), _openai_usage(1_000, cached, 100), stream=True, size=size)


def anthropic_json(text: str, finish: str = "stop", *, cached: int = 0) -> Answer:
    """Return an Anthropic message."""
    return _anthropic([_text(text)], finish, _anthropic_usage(1_000, cached, 100), stream=False)


def anthropic_stream(text: str, finish: str | None = "stop", *, cached: int = 0, size: int = 40) -> Answer:
    """Return an Anthropic message as a stream; without `finish` it ends too early."""
    return _anthropic([_text(text)], finish, _anthropic_usage(1_000, cached, 100), stream=True, size=size)


def summary(wire: str, text: str, finish: str = "stop", *, stream: bool = True, cached: int = 0) -> Answer:
    """Return a valid summary in either wire format."""
    if wire == "openai":
        return (openai_stream if stream else openai_json)(text, finish, cached=cached)
    return (anthropic_stream if stream else anthropic_json)(text, finish, cached=cached)


def tool_call(wire: str, *, stream: bool = True) -> Answer:
    """Return a response that calls a tool instead of writing a summary."""
    return turn(wire, calls=[("sh", {})], prompt_tokens=5, stream=stream)


def declined_answer(wire: str, *, stream: bool = True) -> Answer:
    """Return a response that was stopped by a content filter or the model's policy."""
    if wire == "openai" and not stream:
        return openai_json(None, "stop", refusal="I cannot help with that.")
    return summary(wire, "", "content_filter", stream=stream)


def turn(
    wire: str,
    text: str = "",
    calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
    *,
    prompt_tokens: int = 0,
    cached: int = 0,
    stream: bool = True,
    finish: str | None = None,
) -> Answer:
    """Return an agent model's response: its text, and tool calls by name and arguments.

    Without `prompt_tokens` it reports no usage.
    """
    reason = finish or ("tool_calls" if calls else "stop")
    named = [(f"call_{next(_numbers)}", name, arguments) for name, arguments in calls]
    if wire == "openai":
        made = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": jsonio.text_of(arguments)}}
            for id_, name, arguments in named
        ]
        usage = _openai_usage(prompt_tokens, cached, 9) if prompt_tokens else {}
        return _openai(text or None, reason, made, usage, stream=stream, size=12)
    blocks = [_text(text)] if text else []
    blocks += [{"type": "tool_use", "id": id_, "name": name, "input": dict(given)} for id_, name, given in named]
    usage = _anthropic_usage(prompt_tokens, cached, 9) if prompt_tokens else {}
    return _anthropic(blocks, reason, usage, stream=stream, size=12)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _openai_usage(prompt: int, cached: int, output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _anthropic_usage(prompt: int, cached: int, output: int) -> dict[str, Any]:
    return {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": output}


def _openai(
    text: str | None,
    finish: str | None,
    calls: Sequence[Any],
    usage: dict[str, Any],
    *,
    stream: bool,
    size: int = 40,
    refusal: str | None = None,
) -> Answer:
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
    reported = {"usage": usage} if usage else {}
    if not stream:
        message = {"role": "assistant", "content": text, "refusal": refusal} | ({"tool_calls": calls} if calls else {})
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return value({**head, "choices": [choice], **reported})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(text or "", size)]
    for index, call in enumerate(calls):
        function = call["function"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(function["arguments"], size)
        ]
    chunk = {**head, "object": "chat.completion.chunk"}
    items = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish:
        items.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if finish and usage:
        items.append({**chunk, "choices": [], **reported})
    return events(items, done=finish is not None)


def _anthropic(
    blocks: Sequence[dict[str, Any]], finish: str | None, usage: dict[str, Any], *, stream: bool, size: int = 40
) -> Answer:
    reason = {"stop_reason": _ENDS.get(finish or "", finish), "stop_sequence": None}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted"}
    if not stream:
        return value({**head, "content": blocks, **reason, "usage": usage})
    begun: dict[str, Any] = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    items: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        key, kind, field = ("text", "text_delta", "text") if "text" in block else ("input", *_INPUT_DELTA)
        whole, empty = (block[key], "") if key == "text" else (jsonio.text_of(block[key]), {})
        items.append({"type": "content_block_start", "index": index, "content_block": {**block, key: empty}})
        for piece in _pieces(whole, size):
            items.append({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}})
        items.append({"type": "content_block_stop", "index": index})
    if finish is None:
        return events(items[:-1], named=True)
    output = {"output_tokens": usage.get("output_tokens", 9)}
    items += [{"type": "message_delta", "delta": reason, "usage": output}, {"type": "message_stop"}]
    return events(items, named=True)
