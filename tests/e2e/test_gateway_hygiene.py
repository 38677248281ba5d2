"""Hygiene uses reported usage first, and reads every request that an upper bound does not rule out."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from midfold.gateway.limits import Policy
from midfold.testing.answers import Answer, openai_json, value
from midfold.testing.doubles import Request, ScriptedProvider
from support.fixtures import assistant, call, user
from support.gateways import running, settings

WINDOW = 20_000
CHAT = "/v1/chat/completions"


def reporting(tokens: int) -> Answer:
    told = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
    return value({**json.loads(openai_json("fine").body), "usage": told})


def hex_dump(lines: int, seed: int) -> str:
    digits = random.Random(seed)
    return "\n".join(" ".join(f"{digits.randrange(256):02x}" for _ in range(16)) for _ in range(lines))


def picture(number: int) -> dict[str, Any]:
    address = {"type": "image_url", "image_url": {"url": f"https://pictures.example/{number}.png"}}
    return {"role": "user", "content": [{"type": "text", "text": f"Picture {number}."}, address]}


DUMPS = [turn for number in range(7) for turn in call(number, "xxd", {"file": f"{number}"}, hex_dump(85, number))]
DUMP = [user("Read the dumps."), *DUMPS, user("And?")]
PICTURES = [turn for number in range(12) for turn in (picture(number), assistant("Seen."))]
SHORT = [turn for number in range(12) for turn in (user(f"Look at {number}."), assistant("Seen."))]
AGAIN = [assistant("None."), user("Look again.")]


def body(messages: list[Any]) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": messages}


@pytest.mark.parametrize("messages", [DUMP, [*PICTURES, user("Which is red?")]], ids=["hex", "pictures"])
def test_a_dense_request_near_the_window_is_made_smaller_before_it_is_sent(messages: list[Any]) -> None:
    with ScriptedProvider(then=lambda _: reporting(5_000)) as provider, running(provider.url, window=WINDOW) as gateway:
        _, head, _ = gateway.post(CHAT, body(messages))
    assert head["x-midfold-action"] in ("compacted", "pruned")
    assert int(head["x-midfold-tokens-before"]) >= 0.85 * WINDOW > int(head["x-midfold-tokens-after"])
    assert len(json.dumps(messages)) < 2 * 0.85 * WINDOW


def test_what_the_provider_reported_counts_more_than_the_size_of_the_body() -> None:
    with (
        ScriptedProvider(then=lambda _: reporting(18_900)) as provider,
        running(provider.url, window=WINDOW) as gateway,
    ):
        _, first, _ = gateway.post(CHAT, body([*SHORT, user("Which is red?")]))
        _, then, _ = gateway.post(CHAT, body([*SHORT, user("Which is red?"), *AGAIN]))
    assert "x-midfold-tokens-before" not in first, "by its bytes it cannot be large"
    assert int(then["x-midfold-tokens-before"]) >= 18_900


def test_reports_of_one_owner_are_not_used_for_another() -> None:
    short = body([*SHORT, user("Which is red?"), *AGAIN])
    with (
        ScriptedProvider(then=lambda _: reporting(18_900)) as provider,
        running(provider.url, window=WINDOW) as gateway,
    ):
        gateway.post(CHAT, body([*SHORT, user("Which is red?")]), authorization="Bearer one")
        _, other, _ = gateway.post(CHAT, short, authorization="Bearer two")
        _, same, _ = gateway.post(CHAT, short, authorization="Bearer one")
    assert "x-midfold-tokens-before" not in other
    assert int(same["x-midfold-tokens-before"]) >= 18_900


def test_a_small_request_is_not_read() -> None:
    def ok(_: Request) -> Answer:
        return reporting(900)

    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        for _ in range(2):
            _, head, _ = gateway.post(CHAT, body([*SHORT, user("Which is red?")]))
            assert "x-midfold-tokens-before" not in head


def test_the_bound_counts_bytes_messages_and_pictures() -> None:
    limits = Policy(settings("http://127.0.0.1:1", window=100_000)).limits("claude-opus-4-6", 0)
    least = int(limits.trigger / limits.meter.factor)
    assert limits.may_reach_trigger(b"x" * (least + 1)) and not limits.may_reach_trigger(b"x" * (least - 10))
    assert limits.may_reach_trigger(b"x" * (least // 2), density=2.1)
    messages = b'{"role":"user"},' * (limits.trigger // limits.meter.message_overhead)
    assert len(messages) < least and limits.may_reach_trigger(messages)
    for field in (b'"image_url"', b'"input_image"', b'"document"', b'{"type":"image",'):
        assert limits.may_reach_trigger(field * (least // 1_600))
