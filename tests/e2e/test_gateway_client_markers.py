"""Cache markers in requests of clients that set their own markers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.fixtures import number_lines
from support.gateways import running
from support.prefix_cache import PrefixCache
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

MARK = {"cache_control": {"type": "ephemeral"}}
TOOLS = [
    {"name": "read", "description": "Read a file. " * 150, "input_schema": {"type": "object"}},
    {"name": "grep", "description": "Search. " * 20, "input_schema": {"type": "object"}, **MARK},
]
SYSTEM = [{"type": "text", "text": "You are a careful engineer. " * 100, **MARK}]


def steps(count: int) -> list[dict[str, Any]]:
    """Return a conversation without markers, as Continue and qwen-code send it."""
    out: list[dict[str, Any]] = [{"role": "user", "content": "Read every module."}]
    for number in range(count):
        call = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {"path": f"m{number}.py"}}
        text = number_lines(f"line {{n}} of module {number}", 40)
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text}
        out += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return out


def send(bodies: list[dict[str, Any]], window: int = 400_000) -> list[dict[str, Any]]:
    """Return the provider's requests for these bodies."""
    with (
        RulesProvider(lambda request: Turn("fine"), window=window) as provider,
        running(provider.url, window=window) as gateway,
    ):
        for body in bodies:
            assert gateway.post("/v1/messages", body)[0] == 200
    assert provider.rejected == []
    return [request.body for request in provider.requests]


def markers(value: Any) -> int:
    return json.dumps(value).count('"cache_control"')


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "qwen3-coder-plus", "house-model"])
def test_free_slots_are_used_where_a_client_marks_only_tools_and_system(model: str) -> None:
    base = {"model": model, "max_tokens": 9, "tools": TOOLS, "system": SYSTEM}
    received = send([{**base, "messages": steps(count)} for count in range(1, 20)])
    cache = PrefixCache()
    bills = [cache.bill(body, at=10.0 * number) for number, body in enumerate(received)]
    assert sum(bill.read for bill in bills) >= 0.85 * sum(bill.prompt for bill in bills)
    for body in received:
        assert (body["tools"], body["system"]) == (TOOLS, SYSTEM)
        assert 3 <= markers(body) <= 4


def test_no_fifth_marker_and_none_beside_a_clients_own_in_the_conversation() -> None:
    base = {"model": "claude-sonnet-4-5", "max_tokens": 9}
    marked = steps(6)
    marked[4]["content"][0] |= MARK
    four = [{"type": "text", "text": f"Rule {number}. " * 300, **MARK} for number in range(3)]
    bodies = [
        {**base, "tools": TOOLS, "system": SYSTEM, "messages": marked},
        {**base, "tools": TOOLS, "system": four, "messages": steps(6)},
        {**base, "tools": TOOLS, "system": SYSTEM, "messages": steps(6), **MARK},
    ]
    assert send(bodies) == bodies


def test_a_model_of_another_name_that_its_client_does_not_mark_stays_unmarked() -> None:
    body = {"model": "house-model", "max_tokens": 9, "system": "Rules. " * 900, "messages": steps(6)}
    assert send([body]) == [body]


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "qwen3-coder-plus", "glm-4.6", "house-model"])
def test_markers_stay_within_four_and_the_clients_own_in_place_through_folds(model: str) -> None:
    base = {"model": model, "max_tokens": 9, "tools": TOOLS, "system": SYSTEM}
    received = send([{**base, "messages": steps(count)} for count in range(1, 110, 3)], window=24_000)
    assert any("CONTEXT COMPACTION" in json.dumps(body) for body in received)
    for body in received:
        assert body["tools"][:2] == TOOLS
        assert body["system"][0] == SYSTEM[0]
        assert 3 <= markers(body) <= 4
        assert markers(body["messages"]) >= 1
