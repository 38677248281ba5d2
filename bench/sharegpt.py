"""Recorded conversations as ShareGPT trajectories, in the format Hermes records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def convert(conversation: dict[str, Any]) -> dict[str, Any]:
    """Convert a conversation: thoughts and calls are marked in the text of a gpt turn; results of a batch share a tool
    turn.
    """
    turns = list(_turns(conversation["messages"]))
    return {
        "id": conversation["id"],
        "conversations": turns,
        "metadata": {"model": conversation.get("model")},
        "completed": True,
    }


def _turns(messages: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    results: list[str] = []
    names: list[str] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            name = names[len(results)] if len(results) < len(names) else "unknown"
            results.append(_result(message, name))
            continue
        if results:
            yield {"from": "tool", "value": "\n".join(results)}
            results = []
        if role != "assistant":
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            yield {"from": "human" if role == "user" else "system", "value": text}
            continue
        calls = [call["function"] for call in message.get("tool_calls") or []]
        names = [call["name"] for call in calls]
        thought = f"<think>\n{message.get('reasoning_content') or ''}\n</think>"
        pieces = [thought, *([content] if content.strip() else []), *map(_call, calls)]
        yield {"from": "gpt", "value": "\n".join(pieces).rstrip()}
    if results:
        yield {"from": "tool", "value": "\n".join(results)}


def _call(function: dict[str, Any]) -> str:
    value = {"name": function["name"], "arguments": _decoded(function["arguments"])}
    return f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>"


def _result(message: dict[str, Any], name: str) -> str:
    content = message["content"]
    if isinstance(content, str) and content.strip().startswith(("{", "[")):
        content = _decoded(content)
    value = {"tool_call_id": message.get("tool_call_id", ""), "name": name, "content": content}
    return f"<tool_response>\n{json.dumps(value, ensure_ascii=False)}\n</tool_response>"


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
