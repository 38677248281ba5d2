"""OpenAI's caches: growing sessions read almost all they could, folds included, and no plan is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midfold
from midfold import read
from midfold.cache import plan_document, stable_prefix_cache_key
from midfold.cache.markers import mark
from midfold.testing import engines as conversations
from midfold.testing import strategies
from support.automatic_cache import AutomaticCache, BreakpointCache
from support.prefix_cache import Refused

DIALECTS = ("openai-chat", "openai-responses")
SYSTEM = "You are a careful engineer. " * 200
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d " * 40, "parameters": {"type": "object"}}}
    for name in ("run", "read", "edit")
]


def request(dialect: str, model: str, messages: list[Any], tools: list[Any] = TOOLS) -> dict[str, Any]:
    if dialect == "openai-responses":
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        return {"model": model, "instructions": SYSTEM, "tools": flat, "input": messages}
    return {"model": model, "tools": tools, "messages": [{"role": "system", "content": SYSTEM}, *messages]}


def sent(body: dict[str, Any], dialect: str) -> dict[str, Any]:
    document = read(json.dumps(body).encode(), dialect=dialect)
    out: dict[str, Any] = json.loads(mark(document, plan_document(document, provider="openai")))
    return out


def is_models(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("type") in ("function_call", "reasoning")


def asked_for(dialect: str) -> Iterator[list[Any]]:
    """Yield the new messages of each agent request, up to the next model turn."""
    new: list[Any] = []
    for message in (message for messages in conversations.rounds(dialect, 20) for message in messages):
        if new and is_models(message) and not is_models(new[-1]):
            yield new
            new = []
        new.append(message)


def play(dialect: str, model: str, cache: Any) -> tuple[int, int, set[str]]:
    """Run a session with compactions; return tokens read, tokens that could have been read, and the cache keys sent."""
    key = "input" if dialect == "openai-responses" else "messages"
    now = request(dialect, model, [])
    state, got, possible, folds = None, 0, 0, 0
    before: dict[str, Any] | None = None
    keys = set()
    for number, messages in enumerate(asked_for(dialect)):
        result = midfold.compact({**now, key: [*now[key], *messages]}, context_length=24_000, state=state)
        state, folds = result.state, folds + result.changed
        now = json.loads(json.dumps(result.messages))
        body = sent(now, dialect)
        keys.add(body["prompt_cache_key"])
        bill = cache.bill(body, at=number * 30.0)
        if before is not None and not result.changed:
            got += bill.read
            possible += cache.best_read(before, body) if isinstance(cache, AutomaticCache) else cache.best_read(before)
        before = body
    assert folds >= 2
    return got, possible, keys


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("model", "cache"), [("gpt-4o", AutomaticCache), ("gpt-5.6", BreakpointCache)])
def test_a_session_with_compactions_reads_95_per_cent_of_what_it_could(dialect: str, model: str, cache: Any) -> None:
    got, possible, keys = play(dialect, model, cache())
    assert possible > 50_000
    assert got >= 0.95 * possible
    assert len(keys) == 1, "a compaction moves no session to another machine"


def test_a_session_in_gemini_s_implicit_cache_needs_nothing_but_its_bytes() -> None:
    cache = AutomaticCache(minimum=2_048, step=1)
    body = {"model": "gemini-2.5-pro", "messages": [{"role": "system", "content": SYSTEM}]}
    reads = []
    for number, messages in enumerate(conversations.rounds("openai-chat", 12)):
        body["messages"] = [*body["messages"], *messages]
        document = read(body, dialect="openai-chat")
        assert mark(document, plan_document(document, provider="gemini")) is body
        before = cache.bill(body, at=number * 30.0)
        reads.append(before.read / before.prompt)
    assert min(reads[4:]) > 0.5


@given(order=st.permutations(TOOLS), session=st.text(max_size=8))
@settings(max_examples=5, deadline=None)
def test_sessions_of_one_agent_share_a_machine_whatever_the_order_of_their_tools(
    order: list[Any], session: str
) -> None:
    cache = AutomaticCache()
    first = sent(request("openai-chat", "gpt-4o", [{"role": "user", "content": "a"}]), "openai-chat")
    other = sent(request("openai-chat", "gpt-4o", [{"role": "user", "content": session}], order), "openai-chat")
    assert first["prompt_cache_key"] == other["prompt_cache_key"] == stable_prefix_cache_key(SYSTEM, TOOLS)
    assert len(first["prompt_cache_key"]) <= 64
    cache.bill(first)
    if order == TOOLS:
        assert cache.bill(other).read >= 1_024


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_no_plan_for_openai_is_refused(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(strategies.conversations(dialect, max_size=12))
    for model, cache in (("gpt-4o", AutomaticCache()), ("gpt-5.6", BreakpointCache(minimum=0))):
        body = sent(request(dialect, model, messages), dialect)
        try:
            cache.bill(body)
        except Refused as refused:
            raise AssertionError(f"{model}: {refused}") from refused
        marks = json.dumps(body).count('"prompt_cache_breakpoint"')
        assert marks <= (0 if model == "gpt-4o" else 3)
