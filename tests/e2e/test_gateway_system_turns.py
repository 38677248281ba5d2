"""System messages that Claude Code sends between others are relayed, and folds around them are accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import midfold
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
MESSAGES = "/v1/messages"


def told(number: int) -> dict[str, Any]:
    text = f"<system-reminder>reminder {number}: never touch the branch release-{number}</system-reminder>"
    return {"role": "system", "content": [{"type": "text", "text": text}]}


def setting(number: int) -> dict[str, Any]:
    """Return a system message with fields of Anthropic's beta: another tool, settings, text for one turn."""
    tool = {"type": "tool_reference", "name": f"tool_{number}"}
    return (
        {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]},
        {"role": "system", "output_config": {"effort": "low"}},
        {**told(number), "clear_at": "next_user_message"},
    )[number // 3 % 3]


def session(steps: int, told: Callable[[int], dict[str, Any]] = told) -> list[dict[str, Any]]:
    """Return a user message with a reminder after it, then steps; every third result has a reminder after it."""
    out: list[dict[str, Any]] = [{"role": "user", "content": "Port the parser to Rust."}, told(0)]
    for number in range(1, steps + 1):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"path": f"src/f{number}.py"}}
        text = f"the number of f{number} is {number * 7} " + "lorem ipsum dolor sit amet " * 60
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
        out += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        out += [told(number)] if number % 3 == 0 else []
    return out


def body(messages: list[dict[str, Any]]) -> bytes:
    whole = {"model": "claude-opus-4-8", "max_tokens": 64, "system": "You are careful.", "messages": messages}
    return json.dumps(whole, separators=(", ", " : ")).encode()


@pytest.mark.parametrize("told", [told, setting])
def test_a_small_request_passes_byte_for_byte(told: Callable[[int], dict[str, Any]]) -> None:
    with (
        RulesProvider(lambda _: Turn("ok"), window=WINDOW) as provider,
        running(provider.url, window=WINDOW, caching="off") as gateway,
    ):
        status, _, _ = gateway.post(MESSAGES, body(session(6, told)))
    assert (status, provider.rejected) == (200, [])
    assert provider.requests[0].raw == body(session(6, told))


def test_a_long_session_is_folded_again_and_again_and_never_refused(tmp_path: Path) -> None:
    actions, kept = [], []
    with (
        RulesProvider(lambda _: Turn("ok"), window=WINDOW) as provider,
        midfold.open(f"sqlite:///{tmp_path}/g.db?synchronous=normal") as sessions,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
    ):
        for steps in range(10, 100, 3):
            status, head, _ = gateway.post(MESSAGES, body(session(steps)))
            assert status == 200
            actions.append(head["x-midfold-action"])
            kept.append(json.dumps(provider.requests[-1].body["messages"]))
        assert sessions.check(deep=True) == []
    assert provider.rejected == []
    assert actions.count("compacted") >= 2
    for steps, text in zip(range(10, 100, 3), kept, strict=True):
        assert f"release-{steps - steps % 3}<" in text, "the newest reminder"


def test_changes_of_the_tools_reach_the_provider_in_their_order_after_every_fold(tmp_path: Path) -> None:
    actions = []
    with (
        RulesProvider(lambda _: Turn("ok"), window=WINDOW) as provider,
        midfold.open(f"sqlite:///{tmp_path}/g.db?synchronous=normal") as sessions,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
    ):
        for steps in range(9, 72, 3):
            status, head, _ = gateway.post(MESSAGES, body(session(steps, setting)))
            assert (status, provider.rejected) == (200, [])
            actions.append(head["x-midfold-action"])
            added = re.findall(r'"tool_(\d+)"', json.dumps(provider.requests[-1].body["messages"]))
            assert added == [str(number) for number in range(0, steps + 1, 9)]
    assert actions.count("compacted") >= 2
