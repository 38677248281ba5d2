"""Answers of an agent's model on either wire: text, tool calls, usage.

ScriptedProvider([turn("openai", "Let me look.", [("shell", {"command": "ls"})]), turn("openai", "Done.")])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from midfold.testing.answers import Answer, events, value
from midfold.transcript import jsonio

Called = tuple[str, Mapping[str, Any]]
_numbers = count(1)


def turn(
    wire: str,
    text: str = "",
    calls: Sequence[Called] = (),
    *,
    prompt_tokens: int = 0,
    cached: int = 0,
    stream: bool = True,
    finish: str | None = None,
) -> Answer:
    """One answer of a model: what it says, and the tools it calls. Without `prompt_tokens` it reports no usage."""
    named = [(f"call_{next(_numbers)}", name, arguments) for name, arguments in calls]
    if wire == "openai":
        return _openai(text, named, prompt_tokens, cached, stream, finish or ("tool_calls" if calls else "stop"))
    return _anthropic(text, named, prompt_tokens, cached, stream, finish or ("tool_use" if calls else "end_turn"))


def _pieces(text: str, size: int = 12) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _openai(text: str, calls: list[Any], prompt: int, cached: int, stream: bool, finish: str) -> Answer:
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
    written = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": jsonio.text_of(arguments)}}
        for id_, name, arguments in calls
    ]
    if not stream:
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": written} if written else {})
        whole: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
        return value(whole | ({"usage": usage} if prompt else {}))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(text)]
    for index, call in enumerate(written):
        arguments = call["function"]["arguments"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments, 20)
        ]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return events([*chunks, *([{"choices": [], "usage": usage}] if prompt else [])], done=True)


def _anthropic(text: str, calls: list[Any], prompt: int, cached: int, stream: bool, finish: str) -> Answer:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": id_, "name": name, "input": dict(given)} for id_, name, given in calls]
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": 9} if prompt else {}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "stop_sequence": None}
    if not stream:
        return value({**head, "content": blocks, "stop_reason": finish, "usage": usage})
    items: list[dict[str, Any]] = [{"type": "message_start", "message": {**head, "content": [], "usage": usage}}]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        opened = {**block, "text": ""} if is_text else {**block, "input": {}}
        items.append({"type": "content_block_start", "index": index, "content_block": opened})
        kind, field = ("text_delta", "text") if is_text else ("input_json_delta", "partial_json")
        whole = block["text"] if is_text else jsonio.text_of(block["input"])
        for piece in _pieces(whole):
            items.append({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}})
        items.append({"type": "content_block_stop", "index": index})
    items.append({"type": "message_delta", "delta": {"stop_reason": finish}, "usage": {"output_tokens": 9}})
    return events([*items, {"type": "message_stop"}], named=True)
