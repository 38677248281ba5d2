from __future__ import annotations

from typing import Any

from midfold import Media, Message, Text, ToolCall, ToolResult, read, write
from midfold.transcript.openai_chat import OpenAIChat
from midfold.transcript.splice import message_value
from midfold.types import Opaque, Thinking


def parse(value: Any) -> Message:
    return read([value], dialect="openai-chat").messages[0]


def test_each_field_becomes_the_part_it_means() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    message = parse(
        {"role": "assistant", "content": "text", "reasoning_content": "hm", "tool_calls": [call], "refusal": "no"}
    )
    assert message.role == "assistant"
    assert message.parts == (
        Thinking("hm"),
        Opaque("refusal", "no"),
        Text("text"),
        ToolCall("c1", "read", '{"path": "a"}'),
    )
    assert message.problems == ()


def test_a_developer_message_is_a_system_message_and_stays_developer() -> None:
    message = parse({"role": "developer", "content": "rules"})
    assert message.role == "system"
    assert message_value(message.with_parts((Text("x"),)), OpenAIChat) == {"role": "developer", "content": "x"}


def test_a_tool_result_with_parts() -> None:
    message = parse({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}], "name": "read"})
    assert message.parts == (ToolResult("c1", (Text("a"),), False, "read"),)


def test_legacy_function_calls_and_results() -> None:
    call = parse({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert call.parts == (ToolCall("", "f", "{}"),)
    result = parse({"role": "function", "name": "f", "content": "r"})
    assert result.parts == (ToolResult("", (Text("r"),), False, "f"),)
    changed = result.with_parts((ToolResult("", (Text("short"),), False, "f"),))
    assert message_value(changed, OpenAIChat) == {"role": "function", "name": "f", "content": "short"}


def test_custom_tool_calls_keep_their_free_text() -> None:
    value = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}],
    }
    message = parse(value)
    assert message.parts == (ToolCall("1", "sql", "SELECT"),)
    changed = message.with_parts((ToolCall("1", "sql", "…", wire=message.parts[0].wire),))
    assert message_value(changed, OpenAIChat)["tool_calls"][0]["custom"] == {"name": "sql", "input": "…"}


def test_images_sound_and_files_are_media() -> None:
    blocks = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "input_audio", "input_audio": {"data": "BB", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "video_url", "video_url": {"url": "x"}},
    ]
    message = parse({"role": "user", "content": blocks})
    assert message.parts[:3] == (
        Media("image", "data:image/png;base64,AA", "image/png"),
        Media("audio", "BB", "wav"),
        Media("document", "f1"),
    )
    assert isinstance(message.parts[3], Opaque)
    assert message_value(message.with_parts(message.parts[1:]), OpenAIChat)["content"] == blocks[1:]


def test_stripping_calls_keeps_the_text_and_removes_the_field() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    message = parse({"role": "assistant", "content": "text", "tool_calls": [call], "x": 1})
    changed = message.with_parts((Text("text"),))
    assert message_value(changed, OpenAIChat) == {"role": "assistant", "content": "text", "x": 1}


def test_dropping_thoughts_removes_their_field_and_nothing_else() -> None:
    message = parse({"role": "assistant", "content": "a", "reasoning_content": "long", "reasoning_details": [{"d": 1}]})
    kept = tuple(part for part in message.parts if not isinstance(part, Thinking))
    value = message_value(message.with_parts(kept), OpenAIChat)
    assert value == {"role": "assistant", "content": "a", "reasoning_details": [{"d": 1}]}
    only_text = message_value(message.with_parts((Text("a"),)), OpenAIChat)
    assert only_text == {"role": "assistant", "content": "a"}


def test_a_changed_text_block_keeps_its_cache_marker() -> None:
    block = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    message = parse({"role": "user", "content": [block]})
    changed = message.with_parts((Text("short", wire=message.parts[0].wire),))
    assert message_value(changed, OpenAIChat)["content"] == [{**block, "text": "short"}]


def test_new_messages_are_written_in_the_shape_of_the_api() -> None:
    document = read([{"role": "user", "content": "a"}], dialect="openai-chat")
    new = (
        Message("user", (Text("q"),)),
        Message("assistant", (ToolCall("1", "read", "{}"),)),
        Message("tool", (ToolResult("1", (Text("r"),)),)),
        Message("assistant", (Text("a"), Text("b"))),
        Message("assistant", ()),
    )
    assert write(document, messages=new) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": ""},
    ]
