"""Every message of the shared transcripts round-trips unchanged in all three dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import Message, Text, ToolCall, ToolResult, read, write
from midfold.transcript.laws import pair
from midfold.transcript.splice import message_bytes, message_value
from midfold.types import Thinking
from support import data
from support.convert import to_anthropic, to_responses

SOURCES = ["claude_code_entire", "claude_code_packmind", "codex_agentv", "miniswe_deepseek", "tau_airline_gpt4o"]


def rewritten(message: Message) -> Message:
    return Message(message.role, message.parts, None, message.wire)


@pytest.mark.parametrize("source", SOURCES)
def test_recorded_lines_leave_byte_for_byte_even_when_every_message_is_written_anew(source: str) -> None:
    seen = 0
    for line in data.lines(source):
        document = read(line)
        assert document.dialect.name == "openai-chat"
        assert write(document) == line
        for message in document.messages:
            assert message_bytes(rewritten(message), document.dialect) == bytes(message.wire)
            seen += 1
        assert all("same id" in problem.what for problem in document.problems), document.problems
    assert seen > 500


@pytest.mark.parametrize("convert", [to_anthropic, to_responses])
@pytest.mark.parametrize("source", SOURCES)
def test_converted_conversations_say_the_same_and_leave_byte_for_byte(source: str, convert: Any) -> None:
    for conversation in data.conversations(source):
        body = convert(conversation["messages"])
        raw = json.dumps(body, ensure_ascii=False).encode()
        document = read(raw)
        assert document.dialect.name == ("anthropic" if convert is to_anthropic else "openai-responses")
        assert write(document) == raw
        for message in document.messages:
            assert message_bytes(rewritten(message), document.dialect) == bytes(message.wire)
            assert message_value(rewritten(message), document.dialect) == json.loads(bytes(message.wire))
        assert facts(document.messages) == facts(read(conversation["messages"]).messages)


def facts(messages: tuple[Message, ...]) -> dict[str, list[Any]]:
    """Return the content independent of the dialect: texts, thoughts, calls and results in order."""
    found: dict[str, list[Any]] = {"text": [], "thinking": [], "call": [], "result": []}
    for message in messages:
        if message.role == "system":
            continue
        for part in message.parts:
            if isinstance(part, Text):
                found["text"].append(part.text)
            elif isinstance(part, Thinking):
                found["thinking"].append(part.text)
            elif isinstance(part, ToolCall):
                found["call"].append((part.id, part.name))
            elif isinstance(part, ToolResult):
                found["result"].append((part.call_id, part.text))
    return found


def test_results_find_their_calls_although_ids_are_used_again() -> None:
    reused = 0
    for line in data.lines("tau_airline_gpt4o"):
        pairing = pair(read(line).messages)
        assert not pairing.orphans
        assert not pairing.unanswered
        reused += len(pairing.reused)
    assert reused > 20
