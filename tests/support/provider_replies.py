"""Encode a model's turn for each wire format, whole or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from midfold.testing.answers import Answer, events, value
from support.provider_rules import signature

STEP = 48
Event = dict[str, Any]


class Turn(NamedTuple):
    """Turn of a model: thinking, text, and calls of (id, name, arguments)."""

    text: str = ""
    calls: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    thinking: str = ""


def pieces(text: str) -> list[str]:
    return [text[start : start + STEP] for start in range(0, len(text), STEP)]


def chat(turn: Turn, number: int, model: str, usage: Mapping[str, Any], stream: bool) -> Answer:
    head = {"id": f"chatcmpl-{number}", "created": 1_700_000_000 + number, "model": model}
    calls: list[Event] = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for call, name, arguments in turn.calls
    ]
    finish = "tool_calls" if calls else "stop"
    if not stream:
        message: Event = {"role": "assistant", "content": turn.text or None, "refusal": None}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return value({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[Event] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces(turn.text))]
    for index, call in enumerate(calls):
        first = {"index": index, **call, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        for piece in pieces(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    chunk = {**head, "object": "chat.completion.chunk"}
    items = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    items.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return events([*items, {**chunk, "choices": [], "usage": usage}], done=True)


def anthropic(turn: Turn, number: int, model: str, usage: Mapping[str, Any], stream: bool) -> Answer:
    blocks: list[Event] = []
    if turn.thinking:
        blocks.append({"type": "thinking", "thinking": turn.thinking, "signature": signature(turn.thinking)})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    blocks += [
        {"type": "tool_use", "id": call, "name": name, "input": arguments} for call, name, arguments in turn.calls
    ]
    reason = {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
    if not stream:
        return value({**head, "content": blocks, **reason, "usage": usage})
    begun: Event = {
        **head,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    items: list[Event] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        items += _block_events(index, block)
    items.append({"type": "message_delta", "delta": reason, "usage": {"output_tokens": usage["output_tokens"]}})
    return events([*items, {"type": "message_stop"}], named=True)


def _block_events(index: int, block: Event) -> list[Event]:
    kind = block["type"]
    if kind == "text":
        empty: Event = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    elif kind == "thinking":
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        empty = {**block, "input": {}}
        partial = pieces(json.dumps(block["input"]))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in partial]
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def output_items(turn: Turn, number: int) -> list[Event]:
    """Return a turn as the output items of a response."""
    output: list[Event] = []
    if turn.text:
        part = {"type": "output_text", "text": turn.text, "annotations": []}
        output.append(
            {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant", "content": [part]}
        )
    for call, name, arguments in turn.calls:
        made = {"type": "function_call", "id": f"fc_{call}", "call_id": call, "name": name, "status": "completed"}
        output.append({**made, "arguments": json.dumps(arguments)})
    return output


def responses(turn: Turn, number: int, model: str, usage: Mapping[str, Any], stream: bool) -> Answer:
    output = output_items(turn, number)
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000 + number,
        "model": model,
        "status": "completed",
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if not stream:
        return value(whole)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    items: list[Event] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(output):
        items += _item_events(index, item)
    items.append({"type": "response.completed", "response": whole})
    return events([{**item, "sequence_number": place} for place, item in enumerate(items)], named=True)


def _item_events(index: int, item: Event) -> list[Event]:
    where = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        part = {**where, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        inner: list[Event] = [
            {"type": "response.content_part.added", **part, "part": empty},
            *({"type": "response.output_text.delta", **part, "delta": piece, "logprobs": []} for piece in pieces(text)),
            {"type": "response.output_text.done", **part, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **part, "part": item["content"][0]},
        ]
        begun = {**item, "status": "in_progress", "content": []}
    else:
        inner = [
            *(
                {"type": "response.function_call_arguments.delta", **where, "delta": piece}
                for piece in pieces(item["arguments"])
            ),
            {
                "type": "response.function_call_arguments.done",
                **where,
                "arguments": item["arguments"],
                "name": item["name"],
            },
        ]
        begun = {**item, "status": "in_progress", "arguments": ""}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *inner,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def refused_stream(wire: str, model: str, message: str) -> Answer:
    """Return a stream that begins with 200 and reports an overflow before any content."""
    code = "context_length_exceeded"
    if wire == "anthropic":
        told = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        return events([{"type": "ping"}, told], named=True)
    if wire == "chat":
        head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}
        role = {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        return events([role, {"error": {"type": "invalid_request_error", "message": message, "code": code}}])
    begun = {"id": "resp_0", "object": "response", "created_at": 1_700_000_000, "model": model, "output": []}
    failed = {**begun, "status": "failed", "error": {"code": code, "message": message}}
    items: list[Event] = [
        {"type": "response.created", "response": {**begun, "status": "in_progress"}},
        {"type": "response.in_progress", "response": {**begun, "status": "in_progress"}},
        {"type": "response.failed", "response": failed},
    ]
    return events([{**item, "sequence_number": place} for place, item in enumerate(items)], named=True)
