"""conversation-compression-spec.md, reports, partial compaction, breakdown and rendering, line by line."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

import midfold
from midfold.compaction.receipt import receipt_schema
from midfold.compaction.redact import redact
from midfold.compaction.render import failure, fence, render_value
from midfold.compaction.summary import template
from midfold.transcript.breakdown import context_breakdown
from midfold.transcript.document import tool_of
from midfold.transcript.message import Message
from support import fixtures
from support.build import PORTING as SESSION
from support.build import SECRET, WINDOW, Asked
from support.build import ported as folded
from support.fixtures import assistant, number_lines, user

# Persistence metadata


def test_reports_say_how_to_persist_and_a_noop_needs_nothing() -> None:
    result = folded()
    report = result.receipt
    assert (report.old_messages, report.new_messages) == (len(SESSION), len(result.messages))
    assert report.persistence == "in_place_archive"
    assert report.recoverable
    assert report.fold in result.archive
    quiet = midfold.compact(SESSION[:3], context_length=WINDOW).receipt
    assert (quiet.status, quiet.persistence) == ("unchanged", "no_persistence_change")
    assert quiet.reason


def test_receipts_follow_their_schema() -> None:
    schema = receipt_schema()
    for options in ({}, {"force": True}, {"target_tokens": 1_000}, {"keep_last_exchanges": 1}):
        report = json.loads(json.dumps(midfold.compact(SESSION, context_length=WINDOW, **options).receipt.to_dict()))
        jsonschema.validate(report, schema)
        for name, wrong in (("status", "fine"), ("old_tokens", "many"), ("digests", {})):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**report, name: wrong}, schema)


# Manual partial compression


def test_keep_last_2_preserves_the_last_two_exchanges_verbatim() -> None:
    fixture = fixtures.keep_last_n_exchanges(keep=2)
    head, tail = midfold.split_for_partial_compaction(fixture.messages, 2)
    assert tail[0]["content"].startswith("Question 10")
    assert [*head, *tail] == fixture.messages
    result = midfold.compact(fixture.messages, **fixture.settings)
    assert all(mine is theirs for mine, theirs in zip(result.messages[-len(tail) :], tail, strict=True))
    assert [m["role"] for m in result.messages[:4]] == ["system", "user", "assistant", "user"]


def test_a_split_that_leaves_no_head_is_a_noop() -> None:
    fixture = fixtures.keep_last_n_exchanges(exchanges=3)
    assert midfold.split_for_partial_compaction(fixture.messages, 9) == ([], fixture.messages)
    result = midfold.compact(fixture.messages, context_length=64_000, keep_last_exchanges=9)
    assert result.messages is fixture.messages
    assert result.receipt.reason


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_rejoined_messages_do_not_violate_role_alternation(role: str) -> None:
    joined = midfold.rejoin([user("a"), {"role": role, "content": "b"}], [{"role": role, "content": "c"}])
    roles = [message["role"] for message in joined]
    assert all(one != two for one, two in itertools.pairwise(roles[1:]))
    apart = midfold.rejoin([user("a")], [assistant("b")])
    assert apart == [user("a"), assistant("b")]


def test_a_preview_counts_both_sides_and_changes_nothing() -> None:
    fixture = fixtures.keep_last_n_exchanges()
    frozen = json.dumps(fixture.messages)
    seen = midfold.preview(fixture.messages, 2)
    assert (seen.head_messages, seen.tail_messages, seen.total_messages) == (41, 8, 49)
    assert seen.head_tokens > seen.tail_tokens > 0
    assert seen.total_tokens == seen.head_tokens + seen.tail_tokens
    assert json.dumps(fixture.messages) == frozen


# Context breakdown


def test_the_breakdown_separates_conversation_from_static_cost_and_prefers_measurements() -> None:
    messages = midfold.read(SESSION).messages
    tools = tuple(
        tool_of({"name": name, "description": number_lines("d {n}", 50)}) for name in ("own", "mcp__files__x")
    )
    found = context_breakdown(
        messages, midfold.Meter(), tools=tools, sections={"memory": "m " * 9}, context_max_tokens=9
    )
    sizes = {bucket.name: bucket.tokens for bucket in found.categories}
    wanted = {
        "system prompt",
        "tool definitions",
        "MCP tools",
        "rules",
        "skills",
        "sub-agents",
        "memory",
        "conversation",
    }
    assert wanted <= set(sizes)
    assert sum(sizes.values()) == found.estimated_total_tokens == found.total_tokens
    compacted = midfold.read(folded().messages).messages
    after = context_breakdown(compacted, midfold.Meter(), tools=tools, measured_prompt_tokens=777)
    shrunk = {bucket.name: bucket.tokens for bucket in after.categories}
    assert shrunk["tool definitions"] == sizes["tool definitions"]
    assert shrunk["conversation"] < sizes["conversation"]
    assert after.total_tokens == 777


def test_the_breakdown_needs_no_raw_prompt_text() -> None:
    found = context_breakdown((Message("user", ()), *midfold.read([user("XYZZY")]).messages), midfold.Meter())
    assert "XYZZY" not in repr(found)


# Structured rendering


def test_structured_output_is_rendered_compactly_without_losing_status_or_error() -> None:
    value = {"rows": list(range(10_000)), "log": "x" * 50_000, "status": "failed", "error": "disk full"}
    text = render_value(value, max_chars=600)
    assert len(text) <= 600
    assert "disk full" in text
    assert failure(value)


def test_deep_or_large_json_cannot_blow_the_budget() -> None:
    deep: Any = "end"
    for _ in range(5_000):
        deep = [deep]
    assert len(render_value(deep)) < 1_000
    assert len(render_value([{"k": "v" * 1_000}] * 5_000)) <= 8_000


def test_credentials_under_known_keys_are_redacted_when_rendered() -> None:
    text = render_value({"password": "hunter22hunter", "nested": [{"api_key": SECRET}], "note": f"token {SECRET}"})
    assert "hunter22" not in text
    assert SECRET not in text
    assert redact(f"password={SECRET}") != f"password={SECRET}"


def test_fenced_text_cannot_be_broken_by_backticks() -> None:
    body = "a\n````\nb\n```"
    fenced = fence(body).split("\n")
    assert fenced[0] == fenced[-1] == "`````"


def test_the_template_is_shown_to_the_model() -> None:
    asked = Asked("## Goal\nx")
    folded(summarizer=asked, focus="the zebra lexer")
    prompt = asked.asks[0].prompt()
    assert template() in prompt
    assert "the zebra lexer" in prompt
    assert f"about {asked.asks[0].asked_tokens:,} tokens" in prompt


# Benchmark fixtures, cache hints


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_every_benchmark_fixture_is_reproduced_by_a_stub_summarizer(name: str) -> None:
    def run() -> tuple[str, str]:
        fixture = fixtures.FIXTURES[name]()
        settings = {"summarizer": lambda ask: "## Goal\nA stub.", **fixture.settings}
        result = midfold.compact(fixture.messages, **settings)
        return json.dumps(result.messages), json.dumps(result.receipt.to_dict())

    assert run() == run()


def test_the_huge_terminal_output_lands_below_the_threshold() -> None:
    fixture = fixtures.huge_terminal_output()
    report = midfold.compact(fixture.messages, **fixture.settings).receipt
    assert report.old_tokens > 2 * report.context_length
    assert report.new_tokens <= report.threshold_tokens
    assert [digest.kind for digest in report.digests] == ["spill"]


def test_cache_hints_are_apart_from_the_messages_and_the_report() -> None:
    result = folded()
    before = json.dumps(result.messages)
    hints = result.cache_hints
    assert 1 <= len(hints) <= 4
    assert json.dumps(result.messages) == before
    assert "cache" not in before + json.dumps(result.receipt.to_dict())
