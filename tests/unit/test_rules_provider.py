"""The strict test provider: every rule can fail, and valid requests pass."""

from __future__ import annotations

from typing import Any

import pytest

from support.provider_rules import check, signature
from support.rules_provider import SentPrefixes

USER = {"role": "user", "content": "hi"}
TEXT = {"role": "assistant", "content": "ok"}
TOLD = {"role": "system", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
TOOLS = {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "t"}}]}
EFFORT = {"role": "system", "output_config": {"effort": "low"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "x"}


def use(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": one, "name": "t", "input": {}} for one in ids]}


def answers(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": "x"} for one in ids]}


def thought(text: str, signed: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": text, "signature": signed}]}


CHAT = [
    ([USER, CALLS, result("a"), result("b"), USER], None),
    ([USER, CALLS, result("b"), result("a")], None),
    ([], "at least one"),
    ([{"role": "robot", "content": ""}], "not supported"),
    ([{**USER, "metadata": {}}], "Additional properties"),
    ([USER, CALLS, result("a"), USER], "did not have response messages: b"),
    ([USER, CALLS, result("a")], "did not have response messages: b"),
    ([USER, result("a")], "preceding message"),
    ([USER, {"role": "assistant", "content": None}], "expected a string"),
    ([{"role": "user", "content": "word " * 2_000}], "maximum context length is 1000 tokens"),
]
ANTHROPIC = [
    ([USER, use("a", "b"), answers("b", "a"), TEXT], None),
    ([USER, thought("hm", signature("hm")), USER], None),
    ([TEXT], "first message must use the user role"),
    ([USER, USER], "roles must alternate"),
    ([USER, TOLD], None),
    ([USER, use("a"), answers("a"), TOLD, TEXT, USER, TOLD, TEXT], None),
    ([TOLD, USER], "first message must use the user role"),
    ([USER, TEXT, TOLD], "must follow a 'user' message"),
    ([USER, TOLD, TOLD], "must be last or be followed by an 'assistant' message"),
    ([USER, TOLD, USER], "must be last or be followed by an 'assistant' message"),
    ([USER, use("a"), TOLD], "must follow a 'user' message"),
    ([USER, {**TOLD, "content": [{"type": "image"}]}], "text and changes of the tools only"),
    ([USER, TOOLS, TEXT, USER, EFFORT, TEXT, USER, {**TOLD, "clear_at": "next_user_message"}], None),
    ([USER, {"role": "system", "output_config": {}}], "content must not be empty"),
    ([{**TOOLS, "role": "user"}], "only role 'system'"),
    ([{**USER, "clear_at": "never"}], "Extra inputs"),
    ([USER, {"role": "developer", "content": "x"}], "unexpected role"),
    ([{"role": "user", "content": " "}], "non-whitespace"),
    ([{"role": "user", "content": []}], "must not be empty"),
    ([USER, use("a"), USER], "without tool_result"),
    ([USER, use("a")], "without tool_result"),
    ([USER, TEXT, answers("a")], "unexpected `tool_use_id`"),
    ([USER, thought("changed", signature("hm")), USER], "cannot be modified"),
    ([{"role": "user", "content": [{"type": "text", "text": "x", "extra": 1}]}], "Extra inputs"),
    ([{"role": "user", "content": [{"type": "odd"}]}], "is unknown"),
    ([{"role": "user", "content": "word " * 2_000}], "prompt is too long"),
    ([{"role": "user", "content": "word " * 950}], "exceed context limit"),
]
RESPONSES = [
    ([USER, {"type": "function_call", "call_id": "a"}, {"type": "function_call_output", "call_id": "a"}], None),
    ([USER, {"type": "function_call", "call_id": "a"}], "No tool output found"),
    ([USER, {"type": "function_call_output", "call_id": "a"}], "No tool call found"),
    (
        [{"type": "reasoning", "id": "rs_1"}, {"type": "function_call_output", "call_id": "a"}],
        "without its required following item",
    ),
    ([], "expected a string or a list"),
]


@pytest.mark.parametrize(
    ("wire", "items", "words"),
    [
        (wire, *case)
        for wire, cases in (("chat", CHAT), ("anthropic", ANTHROPIC), ("responses", RESPONSES))
        for case in cases
    ],
)
def test_rules(wire: str, items: list[Any], words: str | None) -> None:
    body = {"model": "m", "max_tokens": 64, "input" if wire == "responses" else "messages": items}
    problem = check(wire, body, 1_000)
    if words is None:
        assert problem is None
    else:
        assert problem is not None and words in problem.message


def test_a_request_needs_a_model_and_anthropic_a_length() -> None:
    assert check("chat", {"messages": [USER]}, 100) is not None
    assert check("anthropic", {"model": "m", "messages": [USER]}, 100) is not None
    assert check("chat", [], 100) is not None


def test_automatic_caching_reads_what_was_sent_before_in_steps() -> None:
    cache = SentPrefixes()
    first = {"model": "m", "messages": [{"role": "user", "content": "word " * 3_000}]}
    assert cache.bill("chat", first).read == 0
    longer = {"model": "m", "messages": [*first["messages"], TEXT]}  # type: ignore[misc]
    read = cache.bill("chat", longer).read
    assert read > 2_800 and read % 128 == 0
    assert cache.bill("chat", {**longer, "model": "other"}).read == 0
    changed = {"model": "m", "messages": [{"role": "user", "content": "other " + "word " * 3_000}]}
    assert cache.bill("chat", changed).read == 0
