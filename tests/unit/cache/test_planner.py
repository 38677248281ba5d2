"""Placement of cache hints by provider, and their explanations."""

from __future__ import annotations

import itertools
import json
from hashlib import sha256
from typing import Any

import pytest

import midfold
from midfold import cache, read
from midfold.cache import plan_document
from midfold.cache.markers import SYSTEM, TOOLS

LONG = "A long instruction that every request repeats. " * 400
CLAUDE = "claude-sonnet-4-5"


def request(turns: int, per_turn: int = 1, **changed: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for turn in range(turns):
        ids = [f"t{turn}_{n}" for n in range(per_turn)]
        calls = [{"type": "tool_use", "id": one, "name": "read", "input": {"n": one}} for one in ids]
        results = [{"type": "tool_result", "tool_use_id": one, "content": f"result {one}"} for one in ids]
        messages += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    tools = [{"name": "read", "description": LONG, "input_schema": {"type": "object"}}]
    return {"model": CLAUDE, "max_tokens": 9, "system": LONG, "tools": tools, "messages": messages, **changed}


def places(value: dict[str, Any], provider: str = "anthropic", **asked: Any) -> list[int]:
    return [hint.message_index for hint in plan_document(read(value), provider=provider, **asked)]


def test_the_documented_strategy_is_the_system_prompt_and_the_last_three() -> None:
    assert places(request(5), strategy="system_and_3") == [SYSTEM, 8, 9, 10]


def test_the_plan_is_tools_system_the_previous_end_and_the_end() -> None:
    assert places(request(5)) == [TOOLS, SYSTEM, 8, 10]


def test_a_turn_longer_than_the_lookback_is_bridged_at_the_previous_end() -> None:
    hints = plan_document(read(request(3, per_turn=12)), provider="anthropic")
    assert [hint.message_index for hint in hints][-2:] == [4, 6]
    assert hints[-2].reason == "the previous request ended here"


def test_the_handoff_of_a_compaction_is_a_boundary() -> None:
    talk = [turn for n in range(60) for turn in (_said("user", f"Why {n}? "), _said("assistant", f"Because {n}. "))]
    folded = midfold.compact(request(1, messages=talk), context_length=32_000)
    assert folded.receipt.status == "compacted"
    hints = plan_document(read(folded.messages), provider="anthropic")
    assert [hint.reason for hint in hints if 0 <= hint.message_index < 4] == [
        "the handoff stays until the next compaction"
    ]


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text * 60}


def test_a_prefix_below_the_minimum_is_not_marked() -> None:
    small = request(2, system="S", tools=[])
    assert places(small) == []
    assert places(request(2, system=LONG, tools=[])) == [SYSTEM, 0, 2, 4]
    assert places(small, models={"claude*": midfold.models.ModelOverride(cache_minimum=0)}) != []


def test_the_clients_markers_take_slots() -> None:
    body = request(5)
    for index in (0, 2):
        content = body["messages"][index]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
        body["messages"][index]["content"] = blocks
    assert places(body) == [SYSTEM, 10]
    assert places({**body, "cache_control": {"type": "ephemeral"}}) == [10]


def test_an_envelope_skips_what_cannot_carry_a_marker() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    body = {"model": f"anthropic/{CLAUDE}", "messages": messages}
    assert places(body, "openrouter", strategy="system_and_3") == [0, 1]
    assert places(body, "openrouter") == [0, 1, 3]
    assert places(body, "litellm", strategy="system_and_3") == [0, 1]
    assert places(body, "openrouter", setting="off") == []


def test_openai_gets_a_key_and_explicit_breakpoints_only_where_the_model_has_them() -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Go."}]
    for model, placements in (
        ("gpt-4o", ["request"]),
        ("gpt-5.6", ["system", "request"]),
        ("gpt-6-sol", ["system", "request"]),
    ):
        hints = plan_document(read({"model": model, "messages": messages}), provider="openai")
        assert [hint.placement for hint in hints] == placements, model
    assert plan_document(read({"model": "gpt-4o", "messages": messages}), provider="openrouter") == ()


def test_the_session_is_the_key_only_where_there_is_nothing_else() -> None:
    bare = read({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]})
    keys = [plan_document(bare, provider="openai", session_id=name) for name in ("", "a", "b")]
    assert keys[0] == ()
    assert keys[1][0].key != keys[2][0].key
    told = read(
        {"model": "gpt-4o", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello."}]}
    )
    one, two = (plan_document(told, provider="openai", session_id=name) for name in ("a", "b"))
    assert one == two != keys[1]


@pytest.mark.parametrize(
    ("provider", "model", "setting", "applies"),
    [
        ("anthropic", "claude-opus-4-6", "auto", True),
        ("openrouter", "anthropic/claude-sonnet-4.5", "auto", True),
        ("openrouter", "openai/gpt-4o", "auto", False),
        ("openrouter", "qwen/qwen3.7-max", "auto", True),
        ("openrouter", "google/gemini-3-pro", "auto", False),
        ("openrouter", "google/gemini-3-pro", "on", True),
        ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "auto", True),
        ("vertex", "claude-sonnet-4-5@20250929", "auto", True),
        ("anthropic", "claude-opus-4-6", "off", False),
        ("anthropic", "gpt-4o", "auto", False),
        ("anthropic", "gpt-4o", "on", True),
        ("openai", "claude-opus-4-6", "auto", False),
        ("somewhere", "claude-opus-4-6", "auto", False),
        ("openai", "gpt-4o", "auto", False),
        ("openai", "gpt-5.6", "auto", True),
        ("deepseek", "deepseek-chat", "auto", False),
        ("openrouter", "qwen3-14b-claude-4.5-opus-distill", "auto", True),
        ("litellm", "qwen3-14b-claude-4.5-opus-distill", "auto", False),
    ],
)
def test_when_caching_applies(provider: str, model: str, setting: Any, applies: bool) -> None:
    assert cache.caching_applies(provider, model, setting) is applies


def test_the_status_line_is_the_documented_one() -> None:
    line = cache.status_line("openrouter", "anthropic/claude-sonnet-4.5", "5m")
    assert line == "💾 Prompt caching: ENABLED (Claude via OpenRouter, 5m TTL)"
    assert cache.status_line("anthropic", CLAUDE, "1h") == "💾 Prompt caching: ENABLED (Claude via Anthropic, 1h TTL)"


@pytest.mark.parametrize(
    ("provider", "model", "setting", "told"),
    [
        ("openai", "gpt-4o", "auto", "AUTOMATIC (OpenAI caches gpt-4o automatically)"),
        ("openai", None, "auto", "AUTOMATIC (OpenAI caches its models automatically)"),
        ("anthropic", CLAUDE, "off", "DISABLED (prompt_caching.enabled is off)"),
        ("anthropic", "gpt-4o", "auto", "NOT MARKED (gpt-4o via Anthropic is not a Claude model)"),
        ("openrouter", "openai/gpt-4o", "auto", "NOT MARKED (openai/gpt-4o via OpenRouter is not a Claude model)"),
        ("somewhere", CLAUDE, "auto", "NOT MARKED (somewhere is not known to accept cache markers)"),
        ("anthropic", None, "auto", "NOT MARKED (no model given; only Claude is marked)"),
        ("anthropic", "gpt-4o", "on", "ENABLED (gpt-4o via Anthropic, 5m TTL)"),
    ],
)
def test_the_status_line_says_why(provider: str, model: str | None, setting: Any, told: str) -> None:
    assert cache.status_line(provider, model, setting=setting) == f"💾 Prompt caching: {told}"


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.anthropic.com", "anthropic"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "bedrock"),
        ("http://localhost:8080/v1", ""),
        ("https://evil-openrouter.ai/v1", ""),
    ],
)
def test_a_provider_is_known_by_its_address(url: str, provider: str) -> None:
    assert cache.provider_of(url) == provider


def test_the_static_key_ignores_order_markers_notes_and_sessions() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"b": 1, "a": 2}}} for name in ("read", "run")
    ]
    key = cache.stable_prefix_cache_key("Be careful.", tools)
    assert len(key) <= 64
    schemas = json.dumps(tools, sort_keys=True, separators=(",", ":"))
    assert key == f"mfpk_{sha256(f'Be careful.{chr(0)}{schemas}'.encode()).hexdigest()}"[:64]
    turned = [
        {"function": {"parameters": {"a": 2, "b": 1}, "name": name}, "type": "function"} for name in ("read", "run")
    ]
    assert key == cache.stable_prefix_cache_key("Be careful.", turned)
    assert key == cache.stable_prefix_cache_key("Be careful.", tools[::-1], session_id="2026-11-16")
    from midfold.compaction.handoff import SYSTEM_NOTE

    assert key == cache.stable_prefix_cache_key(f"Be careful.\n\n{SYSTEM_NOTE}", tools)
    blocks = [{"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}}]
    assert key == cache.stable_prefix_cache_key(blocks, [{**tools[1], "cache_control": {}}, tools[0]])
    assert key != cache.stable_prefix_cache_key("Be quick.", tools)
    assert key != cache.stable_prefix_cache_key("Be careful.", tools[:1])
    assert cache.stable_prefix_cache_key("", [], session_id="s") not in ("", key)
    assert cache.stable_prefix_cache_key("", []) == ""


@pytest.mark.parametrize(("blocks", "is_bridged"), [(6, False), (12, False), (20, True), (24, True)])
def test_the_previous_end_is_marked_before_the_tools_where_a_breakpoint_would_not_find_it(
    blocks: int, is_bridged: bool
) -> None:
    """Anthropic looks back 20 blocks from a breakpoint, so an earlier end needs its own."""
    talk = [turn for n in range(60) for turn in (_said("user", f"Why {n}? "), _said("assistant", f"Because {n}. "))]
    folded = midfold.compact(request(1, messages=talk), context_length=32_000).messages["messages"]
    last = request(1, per_turn=blocks // 2)["messages"][1:]
    found = places(request(1, messages=[*folded, _said("user", "Go on. "), *last]))
    end = len(folded)
    assert (end in found, TOOLS in found) == (is_bridged, not is_bridged)
    assert len(found) == 4


def test_points_for_clients_that_skip_turns_are_less_than_twenty_blocks_apart() -> None:
    turns = [
        {"role": role, "content": [{"type": "text", "text": f"{n} {LONG}"} for n in range(4)]}
        for role in ("user", "assistant") * 15
    ]
    messages = [*turns, {"role": "user", "content": "Go."}]
    found = places(request(1, system="S", tools=[], messages=messages))
    assert len(found) == 4
    assert all(4 * (later - earlier) < 20 for earlier, later in itertools.pairwise(found))
