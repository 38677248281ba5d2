"""A change to one part leaves every other part, field and byte unchanged; values that cannot be written are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import Media, Message, Text, ToolCall, ToolResult, TranscriptError, read, write
from midfold.transcript.document import DIALECTS
from midfold.transcript.splice import message_bytes, message_value
from midfold.types import Opaque, Thinking

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def appended(value: dict[str, Any], dialect: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message with one more text, from a dict and from bytes."""
    (from_dict,) = read([value], dialect=dialect).messages
    (from_bytes,) = read(json.dumps([value]).encode(), dialect=dialect).messages
    kind = DIALECTS[dialect]
    written = message_value(from_dict.with_parts((*from_dict.parts, Text("more"))), kind)
    raw = message_bytes(from_bytes.with_parts((*from_bytes.parts, Text("more"))), kind)
    return written, json.loads(raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "A", "reasoning": "B"},
        {"tool_calls": "oops"},
        {"tool_calls": [None, "str", 5]},
        {"tool_calls": [{"id": 5, "type": "function", "function": None}]},
        {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"function_call": {"name": "f", "arguments": None}},
        {"role": "weird"},
        {"role": 7},
    ],
)
def test_fields_of_a_chat_message_that_nobody_touched_stay(fields: dict[str, Any]) -> None:
    value = {"role": "assistant", "content": "text", **fields}
    for written in appended(value, "openai-chat"):
        content = [{"type": "text", "text": "text"}, {"type": "text", "text": "more"}]
        assert written == {**value, "content": content}


@pytest.mark.parametrize("blocks", [[None], [5], [{"type": "text", "text": 5}], [{"type": "x", "n": 1}], ["plain"]])
@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic"])
def test_odd_blocks_that_nobody_touched_stay(dialect: str, blocks: list[Any]) -> None:
    for written in appended({"role": "user", "content": blocks}, dialect):
        assert written["content"] == [*blocks, {"type": "text", "text": "more"}]


def test_an_unreadable_role_stays_in_the_other_dialects() -> None:
    for dialect in ("anthropic", "openai-responses"):
        for written in appended({"role": 5, "content": "a"}, dialect):
            assert written["role"] == 5


def test_a_result_without_content_keeps_its_null() -> None:
    block = {"type": "tool_result", "tool_use_id": "1", "content": None}
    for written in appended({"role": "user", "content": [block]}, "anthropic"):
        assert written["content"][0] == block


def test_numbers_in_blocks_that_nobody_touched_keep_their_digits() -> None:
    source = b'[{"role":"user","content":[{"type":"text","text":"a","x":1E5,"y":1.10},{"type":"text","text":"b"}]}]'
    document = read(source)
    parts = document.messages[0].parts
    changed = document.messages[0].with_parts((parts[0], Text("c", wire=parts[1].wire)))
    assert write(document, messages=(changed,)) == source.replace(b'"b"', b'"c"')


def test_a_repeated_key_is_removed_everywhere() -> None:
    call = json.dumps(CALL).encode()
    source = b'[{"role":"assistant","content":"a","tool_calls":[%b],"tool_calls":[%b]}]' % (call, call)
    document = read(source)
    changed = document.messages[0].with_parts((Text("a"),))
    assert write(document, messages=(changed,)) == b'[{"role":"assistant","content":"a"}]'


def test_one_changed_call_leaves_its_siblings() -> None:
    odd = {"id": 7, "type": "function", "function": {"name": "g", "arguments": {"a": 1}}, "x": 1}
    message = read([{"role": "assistant", "content": None, "tool_calls": [CALL, odd]}]).messages[0]
    first = ToolCall("1", "f", '{"short":1}', wire=message.parts[0].wire)
    written = message_value(message.with_parts((first, message.parts[1])), DIALECTS["openai-chat"])
    assert written["tool_calls"][1] is odd
    assert written["tool_calls"][0]["function"]["arguments"] == '{"short":1}'


@pytest.mark.parametrize(
    ("dialect", "media", "expected"),
    [
        (
            "openai-chat",
            Media("image", "AA", "image/gif"),
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AA"}},
        ),
        ("openai-chat", Media("image", "https://x/y"), {"type": "image_url", "image_url": {"url": "https://x/y"}}),
        ("openai-chat", Media("audio", "BB"), {"type": "input_audio", "input_audio": {"data": "BB", "format": "wav"}}),
        ("openai-responses", Media("image", "https://x/y"), {"type": "input_image", "image_url": "https://x/y"}),
        (
            "anthropic",
            Media("image", "https://x/y"),
            {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
        ),
        (
            "anthropic",
            Media("document", "CC"),
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "CC"}},
        ),
    ],
)
def test_new_media_are_written_as_each_api_has_them(dialect: str, media: Media, expected: dict[str, Any]) -> None:
    message = Message("user", (Text("see"), media))
    assert message_value(message, DIALECTS[dialect])["content"][1] == expected


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ("openai-chat", Message("tool", (ToolResult("1", ()), ToolResult("2", ())))),
        ("openai-chat", Message("tool", (ToolResult("1", ()), Text("and")))),
        ("openai-responses", Message("assistant", (Text("a"), ToolCall("1", "f", "{}")))),
        ("anthropic", Message("user", (Media("audio", "AA"),))),
    ],
)
def test_what_a_dialect_cannot_say_is_refused(dialect: str, message: Message) -> None:
    with pytest.raises(TranscriptError):
        message_value(message, DIALECTS[dialect])


def test_a_new_unknown_block_becomes_text_rather_than_nothing() -> None:
    for dialect in ("openai-chat", "anthropic"):
        written = message_value(Message("user", (Text("a"), Opaque("x", "body"))), DIALECTS[dialect])
        assert written["content"][1]["text"] == "body"


def test_a_new_thought_is_an_item_of_its_own_in_responses() -> None:
    written = message_value(Message("assistant", (Thinking("hm", "e"),)), DIALECTS["openai-responses"])
    assert written == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "e",
    }


def test_arguments_that_are_no_object_are_wrapped_for_anthropic() -> None:
    for arguments, value in (("not json", "not json"), ("[1]", [1])):
        written = message_value(Message("assistant", (ToolCall("1", "f", arguments),)), DIALECTS["anthropic"])
        assert written["content"][0]["input"] == {"arguments": value}
