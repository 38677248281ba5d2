"""Convert OpenAI chat to Anthropic and Responses, written from the providers' documentation without midfold's code."""

from __future__ import annotations

import json
from typing import Any


def to_anthropic(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request body: separate system prompt, tool results as blocks of user messages, adjacent messages
    merged.
    """
    system = [message["content"] for message in messages if message["role"] == "system"]
    out: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _anthropic_blocks(message)
        if out and out[-1]["role"] == role:
            out[-1]["content"].extend(blocks)
        else:
            out.append({"role": role, "content": blocks})
    body: dict[str, Any] = {"model": "claude-opus-4-6", "max_tokens": 4096, "messages": out}
    if system:
        body["system"] = [{"type": "text", "text": text} for text in system]
    return body


def _anthropic_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return [block]
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": "c2lnbmVk"})
    if content:
        blocks.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = {"raw": function["arguments"]}
        if not isinstance(arguments, dict):
            arguments = {"value": arguments}
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def to_responses(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request body: separate instructions, one item per call and result."""
    items: list[dict[str, Any]] = []
    instructions = ""
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "system":
            instructions += content
            continue
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": content})
            continue
        if message.get("reasoning_content"):
            summary = [{"type": "summary_text", "text": message["reasoning_content"]}]
            items.append({"type": "reasoning", "id": f"rs_{len(items)}", "summary": summary})
        if content:
            kind = "output_text" if role == "assistant" else "input_text"
            block: dict[str, Any] = {"type": kind, "text": content}
            item: dict[str, Any] = {"type": "message", "role": role, "content": [block]}
            if role == "assistant":
                block["annotations"] = []
                item |= {"id": f"msg_{len(items)}", "status": "completed"}
            items.append(item)
        for call in message.get("tool_calls") or []:
            function = call["function"]
            items.append(
                {
                    "type": "function_call",
                    "call_id": call["id"],
                    "name": function["name"],
                    "arguments": function["arguments"],
                }
            )
    return {"model": "gpt-5.5", "instructions": instructions or None, "input": items}
