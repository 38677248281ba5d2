"""For any conversation, cache plans are legal, reach almost all possible hits, and change no other byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Raw

import midfold
from midfold import read
from midfold.cache import plan_document
from midfold.cache.markers import mark
from midfold.models import ModelOverride
from midfold.testing import engines as conversations
from midfold.testing import strategies
from midfold.transcript.jsonio import elements
from support.effort import effort
from support.prefix_cache import PrefixCache, Refused

SMALL = {"*": ModelOverride(cache_minimum=200), "claude*": ModelOverride(cache_minimum=200, factor=0.5)}
MODELS = {"anthropic": "claude-sonnet-4-5", "openrouter": "anthropic/claude-sonnet-4.5", "litellm": "claude-sonnet-4-5"}
STRATEGIES = ("planned", "system_and_3")


def sent(body: dict[str, Any], provider: str, **asked: Any) -> dict[str, Any]:
    dialect = "anthropic" if provider == "anthropic" else "openai-chat"
    document = read(json.dumps(body).encode(), dialect=dialect)
    out: dict[str, Any] = json.loads(mark(document, plan_document(document, provider=provider, **asked)))
    return out


MARKERS = ("cache_control", "prompt_cache_breakpoint")


def without_markers(value: Any) -> Any:
    """Return the content a provider reads: without markers, and with strings as one text block."""
    if isinstance(value, dict):
        inner = {key: _listed(item) if key in ("content", "output") else item for key, item in value.items()}
        bare = {key: without_markers(item) for key, item in inner.items() if key not in MARKERS}
        return bare if bare.get("type") != "message" else {key: bare[key] for key in bare if key != "type"}
    return [without_markers(item) for item in value] if isinstance(value, list) else value


def _listed(content: Any) -> Any:
    """Return a message's text as blocks; OpenAI's different names for text blocks are treated alike."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    texts = ("input_text", "output_text")
    if isinstance(content, list):
        return [
            {**one, "type": "text"} if isinstance(one, dict) and one.get("type") in texts else one for one in content
        ]
    return content


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw steps of an agent: parallel calls, texts, lengths of results, and durations."""
    step = st.fixed_dictionaries(
        {
            "calls": st.integers(0, 30),
            "text": st.sampled_from(["", " ", "I look.", "I look at it closely. " * 20]),
            "thinking": st.booleans(),
            "result": st.sampled_from(["", "ok", "line of output\n" * 40]),
            "gap": st.sampled_from([2, 30, 290, 400]),
        }
    )
    return draw(st.lists(step, min_size=2, max_size=14))


def native(step: dict[str, Any], number: int) -> list[dict[str, Any]]:
    ids = [f"t{number}_{n}" for n in range(step["calls"])]
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}] if step["thinking"] else []
    said = [{"type": "text", "text": step["text"]}] if step["text"].strip() or not (ids or thought) else []
    calls = [{"type": "tool_use", "id": one, "name": "run", "input": {}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": step["result"]} for one in ids]
    answer = results or [{"type": "text", "text": "Go on."}]
    return [{"role": "assistant", "content": [*thought, *said, *calls]}, {"role": "user", "content": answer}]


def envelope(step: dict[str, Any], number: int) -> list[dict[str, Any]]:
    ids = [f"t{number}_{n}" for n in range(step["calls"])]
    calls = [{"id": one, "type": "function", "function": {"name": "run", "arguments": "{}"}} for one in ids]
    answer = {"role": "assistant", "content": step["text"] or None, **({"tool_calls": calls} if calls else {})}
    results = [{"role": "tool", "tool_call_id": one, "content": step["result"]} for one in ids]
    return [answer, *(results or [{"role": "user", "content": "Go on."}])]


@pytest.mark.parametrize("provider", MODELS)
@given(steps=turns())
@settings(max_examples=10, deadline=None)
def test_on_growing_sessions_a_plan_reads_95_per_cent_of_what_any_plan_could(
    provider: str, steps: list[dict[str, Any]]
) -> None:
    cache = PrefixCache(minimum=400, host=provider)
    system = "You are a careful engineer. " * 60
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Please fix the build. " * 10}]
    if provider != "anthropic":
        messages.insert(0, {"role": "system", "content": system})
    got = possible = reachable = 0
    now = 0.0
    for number, step in enumerate(steps):
        base: dict[str, Any] = {"model": MODELS[provider], "messages": list(messages)}
        body = {**base, "system": system, "max_tokens": 9} if provider == "anthropic" else base
        request = sent(body, provider, models=SMALL)
        bill = cache.bill(request, at=now)
        assert bill.prompt == sum(map(cache.count, (block.value for block in cache.blocks(body))))
        got += bill.read
        possible += reachable
        reachable = cache.best_read(body) if step["gap"] <= 300 else 0
        now += step["gap"]
        messages += (native if provider == "anthropic" else envelope)(step, number)
    assert got >= 0.95 * possible


def with_own_markers(body: dict[str, Any], places: list[int], ttls: list[str]) -> dict[str, Any]:
    """Return the body with markers of the client; long lifetimes first, as the API requires."""
    blocks = [
        block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]
    ]
    marked = sorted({place % len(blocks) for place in places}) if blocks else []
    for place, ttl in zip(marked, sorted(ttls), strict=False):
        blocks[place]["cache_control"] = {"type": "ephemeral", "ttl": ttl}
    return body


@given(
    messages=strategies.conversations("anthropic", max_size=12),
    places=st.lists(st.integers(0, 40), max_size=4),
    ttls=st.lists(st.sampled_from(["5m", "1h"]), min_size=4, max_size=4),
    ttl=st.sampled_from(["5m", "1h"]),
    strategy=st.sampled_from(STRATEGIES),
    automatic=st.booleans(),
)
@settings(max_examples=effort(10, 40), deadline=None)
def test_no_plan_is_refused_whatever_the_client_marked(
    messages: list[Any], places: list[int], ttls: list[str], ttl: Any, strategy: Any, automatic: bool
) -> None:
    body: dict[str, Any] = {"model": "claude-opus-4-6", "system": "S", "max_tokens": 9, "messages": messages}
    tools = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}, "defer_loading": True}]
    body = with_own_markers({**body, "tools": tools}, places, ttls)
    if automatic:
        body["cache_control"] = {"type": "ephemeral"}
    cache = PrefixCache(minimum=0)
    try:
        cache.bill(body)
    except Refused:
        assume(False)
    for models in (SMALL, {"claude*": ModelOverride(cache_minimum=0)}):
        request = sent(body, "anthropic", ttl=ttl, strategy=strategy, models=models)
        cache.bill(request)
        assert without_markers(request)["messages"] == without_markers(body)["messages"]


@given(messages=strategies.conversations("openai-chat", max_size=12), strategy=st.sampled_from(STRATEGIES))
@settings(max_examples=effort(10, 25), deadline=None)
def test_no_envelope_is_refused(messages: list[Any], strategy: Any) -> None:
    for provider in ("openrouter", "litellm"):
        body = {"model": MODELS[provider], "messages": messages}
        request = sent(body, provider, strategy=strategy, models={"claude*": ModelOverride(cache_minimum=0)})
        PrefixCache(minimum=0, host=provider).bill(request)
        for before, after in zip(messages, request["messages"], strict=True):
            assert after.get("tool_calls") == before.get("tool_calls")
            assert "cache_control" not in after


@pytest.mark.parametrize("dialect", strategies.DIALECTS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_malformed_conversations_are_marked_or_left_but_never_broken(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(strategies.malformed_messages(dialect), max_size=6))
    document = read(messages, dialect=dialect)
    for provider in ("anthropic", "openrouter", "openai"):
        hints = plan_document(document, provider=provider, model="claude-opus-4-6", setting="on", models=SMALL)
        out = mark(document, hints)
        assert len(out) == len(messages)


# Bytes across turns


def wires(source: bytes, key: str) -> list[bytes]:
    return [bytes(raw) for raw in elements(Raw(read(source).body[key]))]  # type: ignore[index]


@pytest.mark.parametrize("dialect", strategies.DIALECTS)
def test_50_turns_with_compactions_change_the_prefix_only_where_they_fold(dialect: str) -> None:
    key = "input" if dialect == "openai-responses" else "messages"
    fixed = b'"system":"You help.","max_tokens":9,' if dialect == "anthropic" else b'"instructions":"You help.",'
    fixed = b"" if dialect == "openai-chat" else fixed
    held: list[bytes] = []
    state = None
    folds = 0
    for number, messages in enumerate(conversations.rounds(dialect, 50)):
        before = list(held)
        held += [json.dumps(message, ensure_ascii=number % 2 == 0).encode() for message in messages]
        source = b'{"model":"claude-sonnet-4-5",' + fixed + b'"' + key.encode() + b'":[' + b" ,".join(held) + b"]}"
        result = midfold.compact(source, context_length=24_000, state=state)
        state = result.state
        now = wires(result.messages, key)
        assert [json.loads(one) for one in now] == [json.loads(one) for one in now if one]
        if not result.changed:
            assert result.messages is source
            assert now[: len(before)] == before
        else:
            folds += 1
            report = result.receipt
            changed = [digest.message for digest in report.digests] + (
                [report.boundary.start] if report.boundary else []
            )
            first = min(changed)
            assert now[:first] == held[:first]
            kept = set(held)
            fresh = [one for one in now if one not in kept]
            assert len(fresh) <= len(report.digests) + 3
        again = midfold.compact(result.messages, context_length=24_000, state=state)
        assert again.messages is result.messages
        assert_only_marked(result.messages, dialect)
        held = now
    assert folds >= 4


def assert_only_marked(source: bytes, dialect: str) -> None:
    """Assert that a sent request without its markers equals the planned request."""
    document = read(source, dialect=dialect)
    provider = {"anthropic": "anthropic", "openai-chat": "openrouter", "openai-responses": "openai"}[dialect]
    model = {"openai-responses": "gpt-5.6"}.get(dialect)
    marked = mark(document, plan_document(document, provider=provider, model=model, models=SMALL))
    field = b"prompt_cache_breakpoint" if dialect == "openai-responses" else b"cache_control"
    assert field in marked
    old, new = json.loads(source), json.loads(marked)
    assert (new.pop("prompt_cache_key", None) is not None) is (dialect == "openai-responses")
    assert without_markers(new) == without_markers(old)
