"""Real recordings, sent as their agents would: the whole history in each request, with a small window."""

from __future__ import annotations

import os
from typing import Any

import pytest

from support.data import conversations
from support.gateways import running
from support.provider_replies import Turn
from support.provider_rules import check, prompt_tokens
from support.rules_provider import RulesProvider

FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
WINDOW = 16_000
FULL = bool(os.environ.get("MIDFOLD_SOAK"))
EVERY_SOURCE = [
    "claude_code_entire",
    "claude_code_packmind",
    "codex_agentv",
    "miniswe_deepseek",
    "tau_airline_gpt4o",
]
MANY = 1 << 40


def recording(source: str) -> list[dict[str, Any]]:
    """Return the first 150 messages of a long recording in API format."""
    long = next(one for one in conversations(source) if len(one["messages"]) >= 150)
    return [{key: message[key] for key in FIELDS if key in message} for message in long["messages"][:150]]


def ends(messages: list[dict[str, Any]]) -> list[int]:
    """Return up to a dozen positions where a request could have ended; recordings have gaps."""
    asked = [end for end in range(6, len(messages) + 1) if messages[end - 1]["role"] in ("user", "tool")]
    legal = [end for end in asked if check("chat", {"model": "m", "messages": messages[:end]}, MANY) is None]
    return legal[:: max(len(legal) // 12, 1)]


@pytest.mark.parametrize("source", ["claude_code_entire", "claude_code_packmind", "miniswe_deepseek"])
def test_every_request_of_a_recording_is_legal_and_goes_on_where_the_last_one_ended(source: str) -> None:
    messages = recording(source)
    actions: list[str] = []
    with (
        RulesProvider(lambda request: Turn("ok"), window=MANY) as provider,
        running(provider.url, window=WINDOW) as gateway,
    ):
        before = b""
        for end in ends(messages):
            gateway.post("/v1/chat/completions", {"model": "m", "messages": messages[:end]})
            sent, action = provider.requests[-1].raw, gateway.accounts[-1].action
            if action == "checkpoint":
                assert sent.startswith(before[: before.rindex(b"]")])
            before = sent
            actions.append(action)
        assert provider.rejected == []
        assert {"compacted", "pruned"} & set(actions)
        assert gateway.sessions.check(deep=True) == []
        assert len(gateway.sessions.all()) == 1


@pytest.mark.parametrize("source", EVERY_SOURCE if FULL else ["claude_code_packmind", "codex_agentv"])
def test_requests_are_refused_only_where_system_prompts_leave_no_room(source: str) -> None:
    """Includes the start of a session, with nothing between head and tail and a few huge results."""
    long = [one["messages"] for one in conversations(source) if len(one["messages"]) >= 40]
    refused: list[int] = []
    sent = 0
    for recorded in long[:8]:
        messages = [{key: one[key] for key in FIELDS if key in one} for one in recorded[: 200 if FULL else 60]]
        with (
            RulesProvider(lambda request: Turn("ok"), window=WINDOW) as provider,
            running(provider.url, window=WINDOW) as gateway,
        ):
            for end in ends(messages)[: None if FULL else 4]:
                status, _, answer = gateway.post("/v1/chat/completions", {"model": "m", "messages": messages[:end]})
                sent += 1
                if status != 200:
                    assert b"context_length_exceeded" in answer
                    refused.append(system_tokens(messages[:end]))
    assert sent >= 4
    assert all(tokens > 0.8 * WINDOW for tokens in refused), refused


def system_tokens(messages: list[dict[str, Any]]) -> int:
    """Return the tokens of the system messages, which are never shortened."""
    return prompt_tokens("chat", {"messages": [message for message in messages if message["role"] == "system"]})
