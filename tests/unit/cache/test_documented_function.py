"""`apply_anthropic_cache_control`, by each line of the documented table."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import midfold
from midfold import read
from midfold.cache import apply_anthropic_cache_control as apply
from midfold.cache.breakpoints import plan

MARK = {"type": "ephemeral"}


def test_string_content_becomes_one_text_block() -> None:
    out = apply([{"role": "user", "content": "Hi"}], "5m")
    assert out == [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": MARK}]}]


def test_list_content_is_marked_on_its_last_element() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    out = apply([{"role": "user", "content": content}], "1h")
    assert out[0]["content"] == [content[0], {**content[1], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


def test_empty_content_is_marked_on_the_message() -> None:
    for content in (None, "", []):
        assert apply([{"role": "assistant", "content": content}], "5m")[0]["cache_control"] == MARK


def test_tool_messages_are_marked_natively_and_skipped_elsewhere() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "c", "content": "42"}]
    assert apply(messages, "5m", native_anthropic=True)[1]["cache_control"] == MARK
    assert apply(messages, "5m")[1] == messages[1]


def test_system_and_the_last_three_that_can_carry_one() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "S"}]
    for n in range(5):
        messages += [{"role": "user", "content": f"q{n}"}, {"role": "tool", "tool_call_id": "c", "content": "42"}]
    out = apply(messages, "5m")
    assert [index for index, message in enumerate(out) if message != messages[index]] == [0, 5, 7, 9]


def test_without_a_system_prompt_three_are_marked() -> None:
    out = apply([{"role": "user", "content": f"{n}"} for n in range(6)], "5m")
    assert sum("cache_control" in str(message) for message in out) == 3


def test_the_clients_markers_are_counted_and_kept() -> None:
    own = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": MARK}]} for _ in range(3)]
    messages = [{"role": "system", "content": "S"}, *own, {"role": "user", "content": "end"}]
    out = apply(messages, "5m")
    assert str(out).count("cache_control") == 4
    assert out[1:4] == own


def test_thinking_and_blank_text_carry_nothing() -> None:
    messages = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
        {"role": "user", "content": " "},
    ]
    assert apply(messages, "5m", native_anthropic=True) == messages


def test_the_messages_are_copied_deeply() -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": f"{n}"}]} for n in range(9)]
    before = copy.deepcopy(messages)
    out = apply(messages, "5m")
    for message in out:
        message["content"][0]["text"] = "changed"
        message["content"].append({})
        message["more"] = True
    assert messages == before


@pytest.mark.parametrize("ttl", ["10m", "1H", "", None, 300])
def test_an_unknown_lifetime_is_refused(ttl: Any) -> None:
    messages = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Go."}]
    transcript = read(messages).messages
    for call in (
        lambda: apply(messages, ttl=ttl),
        lambda: plan(transcript, provider="anthropic", model="claude-opus-4-6", ttl=ttl),
    ):
        with pytest.raises(midfold.ConfigError, match="ttl: expected '5m' or '1h', found"):
            call()
    assert apply(messages, ttl="1h")[0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
