from __future__ import annotations

from typing import Any

import pytest

from midfold import read
from midfold.testing import strategies

CHAT, RESPONSES, ANTHROPIC = "openai-chat", "openai-responses", "anthropic"
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ([], CHAT),
        ([USER], CHAT),
        ([None, USER], CHAT),
        ([USER, {"role": "assistant", "content": None, "tool_calls": []}], CHAT),
        ([{"role": "system", "content": "s"}, USER, {"role": "tool", "tool_call_id": "1", "content": "r"}], CHAT),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}], CHAT),
        (
            [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}],
            ANTHROPIC,
        ),
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], ANTHROPIC),
        (
            [{"type": "message", "role": "assistant", "stop_reason": "end", "content": [{"type": "thinking"}]}],
            ANTHROPIC,
        ),
        ([USER, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}], RESPONSES),
        ([{"role": "system", "content": "s"}, {"type": "reasoning", "summary": []}], RESPONSES),
        ([{"type": "message", "role": "user", "content": "hi"}], RESPONSES),
        ([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], RESPONSES),
        ({"messages": [USER], "system": "s"}, ANTHROPIC),
        ({"messages": [USER], "tools": [{"name": "a", "input_schema": {}}]}, ANTHROPIC),
        ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "a"}}]}, CHAT),
        ({"messages": [USER]}, CHAT),
        ({"input": [USER]}, RESPONSES),
        ({"input": "hi"}, RESPONSES),
    ],
)
def test_the_dialect_is_told_by_the_shape(source: Any, name: str) -> None:
    assert read(source).dialect.name == name


@pytest.mark.parametrize("name", strategies.DIALECTS)
def test_a_given_dialect_is_not_questioned(name: str) -> None:
    assert read([USER], dialect=name).dialect.name == name
