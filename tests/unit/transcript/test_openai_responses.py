from __future__ import annotations

from typing import Any

import pytest

from midfold import Media, Message, Text, ToolCall, ToolResult, read, write
from midfold.transcript.openai_responses import OpenAIResponses
from midfold.transcript.splice import message_value
from midfold.types import Opaque, Thinking


def parse(value: Any) -> Message:
    return read([value], dialect="openai-responses").messages[0]


@pytest.mark.parametrize(
    ("item", "role", "part"),
    [
        ({"role": "user", "content": "hi"}, "user", Text("hi")),
        (
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "r"}]},
            "system",
            Text("r"),
        ),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            "assistant",
            Text("no"),
        ),
        (
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            "assistant",
            ToolCall("1", "f", "{}"),
        ),
        ({"type": "function_call_output", "call_id": "1", "output": "r"}, "tool", ToolResult("1", (Text("r"),))),
        ({"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "x"}, "assistant", ToolCall("1", "f", "x")),
        ({"type": "custom_tool_call_output", "call_id": "1", "output": "r"}, "tool", ToolResult("1", (Text("r"),))),
        (
            {"type": "local_shell_call", "call_id": "1", "action": {"command": ["ls"]}},
            "assistant",
            ToolCall("1", "local_shell", '{"command":["ls"]}'),
        ),
        (
            {
                "type": "computer_call_output",
                "call_id": "1",
                "output": {"type": "computer_screenshot", "image_url": "u"},
            },
            "tool",
            ToolResult("1", (Media("image", "u"),)),
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e"},
            "assistant",
            Thinking("hm", "e"),
        ),
    ],
)
def test_each_item_becomes_a_message_with_the_part_it_means(item: dict[str, Any], role: str, part: Any) -> None:
    message = parse(item)
    assert (message.role, message.parts, message.problems) == (role, (part,), ())


@pytest.mark.parametrize("kind", ["web_search_call", "item_reference", "compaction", "image_generation_call"])
def test_items_we_do_not_read_are_carried(kind: str) -> None:
    message = parse({"type": kind, "id": "x"})
    assert isinstance(message.parts[0], Opaque)
    assert message.problems == ()


def test_a_string_as_input_is_one_user_message_and_stays_a_string() -> None:
    source = b'{"model":"gpt-5.5","input":"hello","store":false}'
    document = read(source)
    assert document.dialect is OpenAIResponses
    assert [message.text for message in document.messages] == ["hello"]
    assert write(document) == source
    longer = write(document, messages=(*document.messages, Message("assistant", (Text("hi"),))))
    assert longer == b'{"model":"gpt-5.5","input":["hello",{"role":"assistant","content":"hi"}],"store":false}'


def test_instructions_are_the_system_prompt() -> None:
    document = read({"model": "gpt-5.5", "instructions": "rules", "input": [{"role": "user", "content": "hi"}]})
    assert document.system is not None
    assert document.system.text == "rules"
    changed = write(document, system=document.system.with_parts((Text("other"),)))
    assert changed["instructions"] == "other"


def test_changed_items_keep_their_kind_and_unknown_fields() -> None:
    cases: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
        (
            {
                "type": "function_call",
                "id": "fc",
                "call_id": "1",
                "name": "f",
                "arguments": '{"a":1}',
                "status": "completed",
            },
            lambda part: ToolCall("1", "f", "{}", wire=part.wire),
            {"arguments": "{}"},
        ),
        (
            {"type": "function_call_output", "id": "fo", "call_id": "1", "output": "long"},
            lambda part: ToolResult("1", (Text("s"),), wire=part.wire),
            {"output": "s"},
        ),
        (
            {"type": "local_shell_call", "call_id": "1", "action": {"command": ["ls"]}, "status": "completed"},
            lambda part: ToolCall("1", "local_shell", '{"command":["x"]}', wire=part.wire),
            {"action": {"command": ["x"]}},
        ),
        (
            {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "long", "id": "ct"},
            lambda part: ToolCall("1", "f", "s", wire=part.wire),
            {"input": "s"},
        ),
    ]
    for item, change, expected in cases:
        message = parse(item)
        changed = message.with_parts((change(message.parts[0]),))
        assert message_value(changed, OpenAIResponses) == {**item, **expected}


def test_new_messages_are_written_in_the_shape_of_the_api() -> None:
    document = read([{"type": "message", "role": "user", "content": "a"}], dialect="openai-responses")
    new = (
        Message("user", (Text("q"),)),
        Message("assistant", (ToolCall("1", "read", "{}"),)),
        Message("tool", (ToolResult("1", (Text("r"),)),)),
        Message("assistant", (Text("a"), Text("b"))),
    )
    assert write(document, messages=new) == [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]},
    ]
