from __future__ import annotations

from typing import Any

from midfold import Media, Message, Text, ToolCall, ToolResult, read, write
from midfold.transcript.anthropic import Anthropic
from midfold.transcript.splice import message_value
from midfold.types import Opaque, Thinking


def parse(value: Any) -> Message:
    return read([value], dialect="anthropic").messages[0]


def test_each_block_becomes_the_part_it_means() -> None:
    blocks = [
        {"type": "compaction", "content": "earlier", "signature": "s"},
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "hello"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    ]
    message = parse({"role": "assistant", "content": blocks})
    assert isinstance(message.parts[0], Opaque)
    assert message.parts[1:5] == (
        Thinking("hm", "sig"),
        Thinking("", "xx", True),
        Text("hello"),
        ToolCall("t1", "read", '{"path":"a"}'),
    )
    assert isinstance(message.parts[5], Opaque)
    assert message.problems == ()


def test_results_carry_text_pictures_and_failure() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "is_error": True,
        "content": [{"type": "text", "text": "x"}, image],
    }
    message = parse({"role": "user", "content": [result, {"type": "text", "text": "and?"}]})
    assert message.role == "user"
    assert message.parts == (
        ToolResult("t1", (Text("x"), Media("image", "AA", "image/png")), True),
        Text("and?"),
    )


def test_documents_by_address_and_file_are_media() -> None:
    blocks = [
        {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ]
    parts = parse({"role": "user", "content": blocks}).parts
    assert parts == (Media("document", "https://x/a.pdf"), Media("image", "file_1"))


def test_the_system_prompt_is_read_as_string_and_as_blocks() -> None:
    messages = [{"role": "user", "content": "hi"}]
    plain = read({"system": "rules", "messages": messages})
    blocks = [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]
    listed = read({"system": blocks, "messages": messages})
    assert plain.dialect is listed.dialect is Anthropic
    assert plain.system is not None
    assert plain.system == listed.system
    assert plain.system.role == "system"
    assert read({"system": None, "messages": messages}).system is None


def test_a_block_can_be_added_to_the_system_prompt_without_touching_the_others() -> None:
    body = {
        "system": [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
    }
    document = read(body)
    assert document.system is not None
    noted = document.system.with_parts((*document.system.parts, Text("note")))
    written = write(document, system=noted)
    assert written["system"] == [*body["system"], {"type": "text", "text": "note"}]  # type: ignore[misc]
    assert written["messages"][0] is body["messages"][0]  # type: ignore[index]
    as_string = read(b'{"max_tokens":1e1,"system":"rules","messages":[]}')
    assert as_string.system is not None
    changed = as_string.system.with_parts((Text("rules and note"),))
    assert write(as_string, system=changed) == b'{"max_tokens":1e1,"system":"rules and note","messages":[]}'


def test_a_shorter_result_keeps_its_id_marker_and_neighbours() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": "long " * 50,
        "cache_control": {"type": "ephemeral"},
    }
    value = {"role": "user", "content": [result, {"type": "text", "text": "and?"}]}
    message = parse(value)
    old = message.parts[0]
    assert isinstance(old, ToolResult)
    digest = ToolResult(old.call_id, (Text("short"),), old.is_error, wire=old.wire)
    written = message_value(message.with_parts((digest, *message.parts[1:])), Anthropic)
    assert written == {"role": "user", "content": [{**result, "content": "short"}, value["content"][1]]}


def test_shrunk_arguments_are_written_as_an_object() -> None:
    message = parse(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "w", "input": {"t": "long"}}]}
    )
    call = message.parts[0]
    written = message_value(message.with_parts((ToolCall("1", "w", '{"t": "s"}', wire=call.wire),)), Anthropic)
    assert written["content"][0]["input"] == {"t": "s"}


def test_new_messages_are_written_in_the_shape_of_the_api() -> None:
    document = read([{"role": "user", "content": "a"}], dialect="anthropic")
    new = (
        Message("user", (Text("q"),)),
        Message("assistant", (Thinking("hm", "sig"), ToolCall("1", "read", ""))),
        Message("user", (ToolResult("1", (Text("r"),), True), Text("go on"))),
        Message("tool", (ToolResult("2", ()),)),
    )
    assert write(document, messages=new) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "tool_use", "id": "1", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2"}]},
    ]
