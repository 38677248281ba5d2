"""A summary request with the cached prefix reads that prefix, by the rules of the provider's cache."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold import read
from midfold.cache import plan_document
from midfold.cache.markers import mark
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from support.automatic_cache import AutomaticCache, BreakpointCache
from support.prefix_cache import PrefixCache

SYSTEM = "You are a careful engineer. " * 200
SUMMARY = "## Goal\nPort the parser.\n\n## Progress\n### Done\n- Ported the lexer.\n"
STEPS = 40


def step(number: int, dialect: str) -> list[dict[str, Any]]:
    output = f"line {number} of the output\n" * 60
    if dialect == "anthropic":
        call = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {"n": number}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": output}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    function = {"name": "run", "arguments": f'{{"n": {number}}}'}
    calls = [{"id": f"t{number}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": "I run it.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"t{number}", "content": output},
    ]


class Asked:
    """Summarizer that keeps the request it would send."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.body: Any = None

    def __call__(self, ask: SummaryRequest) -> SummaryAnswer:
        assert ask.prefix is not None
        self.body = ask.prefix("Summarise what stands above.", self.wire)
        return SummaryAnswer(text=SUMMARY, model="own")


def conversation(dialect: str, model: str) -> dict[str, Any]:
    first = {"role": "user", "content": "Port the parser, please. " * 5}
    if dialect == "anthropic":
        return {"model": model, "max_tokens": 9, "system": SYSTEM, "messages": [first]}
    return {"model": model, "messages": [{"role": "system", "content": SYSTEM}, first]}


@pytest.mark.parametrize(
    ("dialect", "provider", "model", "cache"),
    [
        ("anthropic", "anthropic", "claude-sonnet-4-5", PrefixCache(minimum=1024)),
        ("openai-chat", "litellm", "claude-sonnet-4-5", PrefixCache(minimum=1024, host="litellm")),
        ("openai-chat", "openai", "gpt-5.6", BreakpointCache()),
        ("openai-chat", "openai", "gpt-4o", AutomaticCache()),
    ],
)
def test_a_summary_of_the_cached_prefix_reads_most_of_it(dialect: str, provider: str, model: str, cache: Any) -> None:
    body = conversation(dialect, model)
    for number in range(STEPS):
        document = read(body, dialect=dialect)
        cache.bill(mark(document, plan_document(document, provider=provider)), at=number * 20.0)
        body = {**body, "messages": [*body["messages"], *step(number, dialect)]}
    asked = Asked("anthropic" if dialect == "anthropic" else "openai")
    result = midfold.compact(body, target_tokens=6_000, summarizer=asked)
    assert result.receipt.status == "compacted"
    # Anthropic's format has tool results and user text in one message.
    said = asked.body["messages"][-1]["content"]
    assert (said if isinstance(said, str) else said[-1]["text"]) == "Summarise what stands above."
    bill = cache.bill({**asked.body, "model": model}, at=STEPS * 20.0)
    assert bill.read >= 0.8 * bill.prompt
    sent = midfold.read(body, dialect=dialect).messages
    kept = midfold.read(asked.body, dialect=dialect).messages[:-1]
    assert [list(message.texts()) for message in kept] == [list(message.texts()) for message in sent[: len(kept)]]


def test_a_request_of_an_unknown_model_is_not_marked() -> None:
    body = {key: value for key, value in conversation("openai-chat", "").items() if key != "model"}
    for number in range(STEPS):
        body["messages"] += step(number, "openai-chat")
    asked = Asked("openai")
    midfold.compact(body, target_tokens=6_000, summarizer=asked)
    assert "cache" not in str(asked.body)
