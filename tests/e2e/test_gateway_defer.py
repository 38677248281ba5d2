"""The gateway leaves compaction to clients that compact themselves before the limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.config import Config
from midfold.config.load import parse
from support.fixtures import assistant, number_lines, user
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 200_000
CLAUDE, CODEX = "claude-cli/2.1.197 (external, sdk-cli)", "codex_exec/0.166.0 (Debian 12.0.0; x86_64) xterm"
OPENCODE = "opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3.14"
"""User-Agent headers of these clients, recorded on 2026-11-17."""


def settings(upstream: str, *, defers: bool, mode: str = "hygiene", **more: Any) -> Config:
    gateway = {"upstream": upstream, "defer_to_client": defers, "mode": mode}
    return parse(json.dumps({"gateway": gateway, **more})).config


def story(tokens: int) -> list[dict[str, Any]]:
    """Return messages of about so many tokens, as estimated for Claude Sonnet 4.5."""
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 40)
    talk = [turn for n in range(tokens // 1_644) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]
    return [user("Tell me a story."), *talk]


def action(agent: str, tokens: int, *, model: str = "claude-sonnet-4-5", real: int = WINDOW, **options: Any) -> str:
    body = {"model": model, "max_tokens": 9, "messages": story(tokens)}
    with (
        RulesProvider(lambda request: Turn("fine"), window=real) as provider,
        running(provider.url, config=settings(provider.url, **options)) as gateway,
    ):
        status, head, told = gateway.post("/v1/messages", body, user_agent=agent)
        assert status == 200, told
        return head["x-midfold-action"]


@pytest.mark.parametrize("agent", [CLAUDE, CODEX, OPENCODE])
@pytest.mark.parametrize("mode", ["hygiene", "manage"])
def test_a_client_that_compacts_by_itself_is_left_to_it_if_the_settings_say_so(agent: str, mode: str) -> None:
    assert action(agent, 178_000, defers=True, mode=mode) == "relayed"
    assert action(agent, 178_000, defers=False, mode=mode) in ("compacted", "pruned")


def test_one_that_does_not_compact_is_folded_before_the_limit() -> None:
    assert action(CLAUDE, 196_000, defers=True, real=1_000_000) in ("compacted", "pruned")


def test_others_and_models_whose_window_the_client_does_not_know_are_folded_as_ever() -> None:
    assert action("Anthropic/Python 2.8.0", 178_000, defers=True) in ("compacted", "pruned")
    assert action("curl claude-cli/2.1", 178_000, defers=True) in ("compacted", "pruned")
    smaller = {"claude-sonnet-4-5": {"context_window": 150_000}}
    assert action(CLAUDE, 135_000, defers=True, models=smaller) in ("compacted", "pruned")
    unknown = {"my-own": {"context_window": 150_000}}
    assert action(CLAUDE, 155_000, model="my-own", defers=True, models=unknown) in ("compacted", "pruned")
