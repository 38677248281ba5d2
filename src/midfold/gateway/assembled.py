"""A model's whole turn, put together from an answer in any of the three dialects, streamed or not.

It is given back in the shape of a request: what a client would put into its history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from midfold.transcript import jsonio
from midfold.transcript.sse import EventReader

_CHAT_FIELDS = ("role", "content", "tool_calls", "reasoning_content", "reasoning_details")


class Call(NamedTuple):
    """A call of a tool; `arguments` is an object, or None where the model wrote something else."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None


class Assembled(NamedTuple):
    """The turn as messages of a request, and the calls in it."""

    messages: tuple[dict[str, Any], ...]
    calls: tuple[Call, ...]


NOTHING = Assembled((), ())


def assembled(dialect: str, data: bytes) -> Assembled:
    """The turn in an answer's body; nothing if it cannot be read."""
    try:
        if data.lstrip()[:1] == b"{":
            whole = jsonio.decode(data)
        else:
            whole = _STREAMED[dialect](_events(data))
        return _READERS[dialect](whole)
    except (jsonio.NotJSON, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return NOTHING


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for event in EventReader().feed(data + b"\n\n"):
        if event.data != "[DONE]":
            value = jsonio.decode(event.data)
            if isinstance(value, dict):
                yield value


def _object(text: Any) -> Mapping[str, Any] | None:
    try:
        value = jsonio.decode(text or "{}") if isinstance(text, str) else text
    except jsonio.NotJSON:
        return None
    return value if isinstance(value, Mapping) else None


def _chat(whole: Mapping[str, Any]) -> Assembled:
    message = whole["choices"][0]["message"]
    kept = {key: message[key] for key in _CHAT_FIELDS if message.get(key) is not None or key == "content"}
    kept["content"] = message.get("content")
    calls = [call for call in message.get("tool_calls") or () if call.get("type", "function") == "function"]
    return Assembled(
        ({"role": "assistant", **kept},),
        tuple(Call(call["id"], call["function"]["name"], _object(call["function"].get("arguments"))) for call in calls),
    )


def _chat_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            for field in ("content", "reasoning_content"):
                if isinstance(delta.get(field), str):
                    message[field] = (message.get(field) or "") + delta[field]
            for piece in delta.get("tool_calls") or ():
                _grow(calls, piece)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message}]}


def _grow(calls: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(piece.get("index", 0), empty)
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _anthropic(whole: Mapping[str, Any]) -> Assembled:
    blocks = [{key: value for key, value in block.items() if value is not None} for block in whole["content"]]
    kept = [block for block in blocks if block.get("type") != "text" or block.get("text")]
    calls = tuple(
        Call(block["id"], block["name"], _object(block.get("input")))
        for block in kept
        if block.get("type") == "tool_use"
    )
    return Assembled(({"role": "assistant", "content": kept},), calls)


def _anthropic_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    blocks: dict[int, dict[str, Any]] = {}
    partial: dict[int, str] = {}
    fields = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
    for event in events:
        if event.get("type") == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event.get("type") == "content_block_delta":
            index, delta = event["index"], event["delta"]
            field = fields.get(delta["type"])
            if field is not None:
                blocks[index][field] = blocks[index].get(field, "") + delta[field]
            elif delta["type"] == "input_json_delta":
                partial[index] = partial.get(index, "") + delta["partial_json"]
    for index, text in partial.items():
        blocks[index]["input"] = json.loads(text or "{}")
    return {"content": [blocks[index] for index in sorted(blocks)]}


def _responses(whole: Mapping[str, Any]) -> Assembled:
    items = tuple(whole["output"])
    calls = tuple(
        Call(item["call_id"], item["name"], _object(item.get("arguments")))
        for item in items
        if item.get("type") == "function_call"
    )
    return Assembled(items, calls)


def _responses_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    for event in events:
        if event.get("type") in ("response.completed", "response.incomplete"):
            response: dict[str, Any] = event["response"]
            return response
    raise ValueError("the stream ended without its response")


_READERS = {"openai-chat": _chat, "anthropic": _anthropic, "openai-responses": _responses}
_STREAMED = {"openai-chat": _chat_stream, "anthropic": _anthropic_stream, "openai-responses": _responses_stream}


def result_messages(dialect: str, answers: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Answers to calls, by call id, as messages of a request."""
    if dialect == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in answers]
        return [{"role": "user", "content": blocks}]
    if dialect == "openai-chat":
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in answers]
    return [{"type": "function_call_output", "call_id": call, "output": text} for call, text in answers]
