"""midfold's output is valid for the official SDKs' types: real, converted, changed and new conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import MessageParam
from anthropic.types import TextBlockParam as SystemBlock
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from midfold import Message, Text, ToolCall, ToolResult, read, write
from support.convert import to_anthropic, to_responses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "coding-session.json"
ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "openai-chat": TypeAdapter(list[ChatCompletionMessageParam]),
    "openai-responses": TypeAdapter(list[ResponseInputItemParam]),
    "anthropic": TypeAdapter(list[MessageParam]),
}
NEW = (
    Message("user", (Text("question"),)),
    Message("assistant", (Text("let me see"),)),
    Message("assistant", (ToolCall("c1", "read_file", '{"path": "a.py"}'),)),
    Message("tool", (ToolResult("c1", (Text("contents"),)),)),
)


def bodies() -> dict[str, dict[str, Any]]:
    chat = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    for message in chat["messages"]:
        message.pop("name", None)
    return {
        "openai-chat": chat,
        "openai-responses": to_responses(chat["messages"]),
        "anthropic": to_anthropic(chat["messages"]),
    }


def materialise(value: Any) -> Any:
    """Consume iterables; pydantic checks iterables of TypedDicts only when they are iterated."""
    if isinstance(value, dict):
        return {key: materialise(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [materialise(item) for item in value]


@pytest.mark.parametrize("dialect", sorted(ADAPTERS))
def test_a_converted_conversation_is_read_without_problems_and_leaves_byte_for_byte(dialect: str) -> None:
    body = bodies()[dialect]
    source = json.dumps(body).encode()
    document = read(source)
    assert document.dialect.name == dialect
    assert document.problems == ()
    assert write(document) == source
    materialise(ADAPTERS[dialect].validate_python(body[document.dialect.list_key]))


@pytest.mark.parametrize("dialect", sorted(ADAPTERS))
def test_changed_and_new_messages_fit_the_sdk_types(dialect: str) -> None:
    body = bodies()[dialect]
    document = read(body)
    shortened = tuple(message.with_parts(tuple(map(_short, message.parts))) for message in document.messages)
    written = write(document, messages=(*NEW, *shortened))[document.dialect.list_key]
    checked = materialise(ADAPTERS[dialect].validate_python(written))
    assert len(checked) == len(document.messages) + len(NEW)
    assert len(json.dumps(written)) < len(json.dumps(body))


def _short(part: Any) -> Any:
    if isinstance(part, ToolResult):
        return ToolResult(part.call_id, (Text("[digest]"),), part.is_error, part.name, wire=part.wire)
    return part


def test_the_check_can_fail() -> None:
    with pytest.raises(ValueError, match="validation error"):
        materialise(ADAPTERS["anthropic"].validate_python([{"role": "user", "content": [{"type": "tool_result"}]}]))


def test_system_blocks_fit_the_sdk_types() -> None:
    document = read({"system": [{"type": "text", "text": "rules"}], "messages": []})
    assert document.system is not None
    written = write(document, system=document.system.with_parts((*document.system.parts, Text("note"))))
    materialise(TypeAdapter(list[SystemBlock]).validate_python(written["system"]))
