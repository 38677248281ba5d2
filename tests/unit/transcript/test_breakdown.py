from __future__ import annotations

from midfold import Meter, read
from midfold.transcript.breakdown import KINDS, by_kind, context_breakdown, largest
from midfold.types import Tool

BODY = {
    "model": "claude-opus-4-6",
    "system": "You are helpful.",
    "tools": [{"name": "read", "description": "Reads a file", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "please look " * 20},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm " * 30, "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [
                        {"type": "text", "text": "line\n" * 500},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
                    ],
                }
            ],
        },
    ],
}


def test_every_token_is_in_one_category_and_they_add_up() -> None:
    document = read(BODY)
    meter = Meter(factor=1.11, message_overhead=38)
    assert document.system is not None
    kinds = by_kind(document.messages, meter, system=document.system, tools=document.tools)
    assert set(kinds) == set(KINDS)
    units = meter.tool_units(document.tools) + sum(map(meter.units, (document.system, *document.messages)))
    assert sum(kinds.values()) == meter.tokens(units, 4)
    spent = {"system prompt", "tool definitions", "user text", "thinking", "tool calls", "tool results", "media"}
    assert {kind for kind, tokens in kinds.items() if tokens} == spent | {"message framing"}


def test_the_largest_messages_name_their_tools() -> None:
    found = largest(read(BODY).messages, Meter(), 2)
    assert [item.position for item in found] == [2, 0]
    assert found[0].tools == ("read",)
    assert found[0].role == "user"


def test_static_costs_stand_apart_from_the_conversation_and_labels_are_the_callers() -> None:
    document = read(BODY)
    tools = (*document.tools, Tool("mcp__files__list", '{"name": "mcp__files__list"}'))
    meter = Meter()
    plain = context_breakdown(document.messages, meter, system=document.system, tools=tools)
    sizes = {bucket.name: bucket.tokens for bucket in plain.categories}
    assert sizes["conversation"] == meter.count(document.messages).tokens
    assert sizes["system prompt"] > 0
    assert sizes["MCP tools"] > 0
    assert sum(sizes.values()) == plain.estimated_total_tokens == plain.total_tokens
    labelled = context_breakdown(
        document.messages,
        meter,
        system=document.system,
        tools=tools,
        sections={"rules": "You are", "project notes": "helpful"},
        measured_prompt_tokens=9_999,
        context_max_tokens=20_000,
    )
    now = {bucket.name: bucket.tokens for bucket in labelled.categories}
    assert now["rules"] > 0
    assert now["project notes"] > 0
    assert now["system prompt"] < sizes["system prompt"]
    assert labelled.total_tokens == 9_999


def test_a_labelled_section_is_taken_off_where_it_stands() -> None:
    rules, memory = "Rule: never push. " * 40, "The user likes tabs. " * 40
    messages = read([{"role": "system", "content": f"Be good.\n{rules}"}, {"role": "user", "content": memory}]).messages
    tools = (Tool("mcp__files__read", "{}"), Tool("mcp", "{}"), Tool("mcp_toolset", "{}"))
    plain = context_breakdown(messages, Meter())
    found = context_breakdown(
        messages, Meter(), sections={"rules": rules, "memory": memory, "skills": "elsewhere " * 9}
    )
    sizes = {bucket.name: bucket.tokens for bucket in found.categories}
    assert sizes["system prompt"] < sizes["rules"]
    assert sizes["conversation"] < sizes["memory"]
    assert found.estimated_total_tokens == plain.estimated_total_tokens + sizes["skills"]
    with_tools = context_breakdown((), Meter(), tools=tools)
    assert {bucket.name for bucket in with_tools.categories if bucket.tokens} == {"MCP tools"}


def test_shares_add_up_to_the_window_and_follow_what_was_measured() -> None:
    document = read(BODY)
    known = {"system": document.system, "tools": document.tools, "context_max_tokens": 20_000, "reserved_tokens": 4_000}
    plain = context_breakdown(document.messages, Meter(), **known)  # type: ignore[arg-type]
    measured = context_breakdown(document.messages, Meter(), measured_prompt_tokens=9_000, **known)  # type: ignore[arg-type]
    for found in (plain, measured):
        sizes = {share.name: share.tokens for share in found.shares}
        assert list(sizes) == [
            "system prompt", "tool definitions", "conversation", "reserved for the answer", "free space"
        ]  # fmt: skip
        assert sum(sizes.values()) == 20_000
        assert sizes["reserved for the answer"] == 4_000
        assert sizes["free space"] == 16_000 - found.total_tokens
        assert abs(sum(share.share for share in found.shares) - 1) < 1e-9
    assert measured.total_tokens == 9_000
    assert measured.shares[0].tokens > 2 * plain.shares[0].tokens


def test_a_prompt_beyond_its_window_leaves_nothing_free_and_without_a_window_shares_are_of_the_prompt() -> None:
    document = read(BODY)
    full = context_breakdown(document.messages, Meter(), context_max_tokens=1_000)
    assert [share.name for share in full.shares] == ["conversation"]
    assert full.shares[0].share > 1
    assert [share.share for share in context_breakdown(document.messages, Meter()).shares] == [1.0]
    assert context_breakdown((), Meter()).shares == ()


def test_a_sample_of_the_conversation_stands_for_all_of_it() -> None:
    document = read(BODY)
    part = context_breakdown(document.messages, Meter(), system=document.system)
    whole = part.scale_conversation(3)
    assert whole.categories[:-1] == part.categories[:-1]
    assert whole.categories[-1].tokens == 3 * part.categories[-1].tokens
    assert whole.estimated_total_tokens == sum(bucket.tokens for bucket in whole.categories)
