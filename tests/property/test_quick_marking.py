"""The fast paths of marking produce the same bytes as the slow paths."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from midfold.cache import plan, plan_document
from midfold.cache.breakpoints import LOOKBACK, _best, _planned_places, _Request, measure_for
from midfold.cache.markers import SYSTEM, TOOLS, mark, splice_array
from midfold.compaction.handoff import handoff
from midfold.testing.strategies import conversations
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, read
from midfold.transcript.jsonio import entries, gaps, places
from midfold.transcript.splice import message_value, replace_values
from support.effort import effort

MARKS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
ANTHROPIC: type[Dialect] = DIALECTS["anthropic"]


def body(talk: list[Any], marks: Any, **more: Any) -> bytes:
    return json.dumps({"model": "claude-opus-4-6", "messages": talk, **more}, separators=marks).encode()


@settings(max_examples=effort(15, 60))
@given(conversations("anthropic"), MARKS, st.integers(0, 4), st.booleans(), st.booleans())
def test_a_plan_of_a_request_that_surely_has_no_markers_is_the_plan_of_one_that_is_searched(
    talk: list[Any], marks: Any, reserved: int, has_system: bool, has_tools: bool
) -> None:
    more: dict[str, Any] = {"system": "You are careful. " * 40} if has_system else {}
    tools = [{"name": "t", "description": "é" * 900, "input_schema": {}}] if has_tools else []
    document = read(body(talk, marks, **more, **({"tools": tools} if tools else {})), dialect="anthropic")
    quick = plan_document(document, provider="anthropic")
    long = plan(
        document.messages,
        document.tools,
        system=document.system,
        provider="anthropic",
        model=document.model,
        dialect="anthropic",
    )
    assert quick == long
    request = _Request(document.messages, document.tools, document.system, "anthropic", "anthropic")
    every = list(_planned_places(request))
    least = request.first_cached(*measure_for("claude-opus-4-6"))
    first = list({place.at: None for place in every if place.at >= least})
    assert [place.at for place in _best(iter(every), least, reserved)] == first[:reserved]


@settings(max_examples=effort(15, 60))
@given(conversations("anthropic"), MARKS)
def test_marks_are_put_where_they_would_be_if_every_byte_were_copied_around_them(talk: list[Any], marks: Any) -> None:
    source = body(talk, marks, metadata={"x": 1e-7})
    document = read(source, dialect="anthropic")
    hints = plan_document(document, provider="anthropic", strategy="system_and_3", setting="on")
    done = bytes(mark(document, hints))
    if not hints:
        assert done is source
        return
    array = bytes(entries(done)["messages"])
    before = bytes(entries(source)["messages"])
    old, new = ([message.wire for message in one.messages] for one in (document, read(done, dialect="anthropic")))
    assert gaps(array, new) == gaps(before, old)
    marked = {hint.message_index for hint in hints}
    assert all(bytes(one) == bytes(two) for at, (one, two) in enumerate(zip(old, new, strict=True)) if at not in marked)
    assert replace_values(done, {"messages": before}) == source


@given(st.lists(st.integers() | st.text(max_size=5), max_size=6), MARKS, st.integers(0, 5))
def test_elements_are_replaced_where_they_stand(items: list[Any], marks: Any, place: int) -> None:
    source = json.dumps(items, separators=marks).encode()
    old = [Raw(json.dumps(item).encode()) for item in items]
    assert [source[start:end] for start, end in places(source, old)] == [bytes(one) for one in old]
    if place < len(items):
        changed = [*items[:place], {"new": [1]}, *items[place + 1 :]]
        assert jsonio.decode(splice_array(source, old, {place: {"new": [1]}})) == changed


def test_the_end_of_a_previous_request_that_is_far_back_comes_before_what_only_outlives() -> None:
    """Rule 2 of the planner: beyond the lookback, a prefix is found only by its own breakpoint."""
    folded = message_value(handoff("## Goal\nGo on.", "0" * 12, "user"), ANTHROPIC)
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "t", "input": {}} for n in range(LOOKBACK)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "fine"} for n in range(LOOKBACK)]
    talk = [
        folded,
        {"role": "assistant", "content": "I go on."},
        {"role": "user", "content": "Good. " * 900},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    tools = [{"name": "t", "description": "word " * 5_000, "input_schema": {}}]
    document = read(body(talk, (",", ":"), system="Rules. " * 900, tools=tools), dialect="anthropic")
    found = [hint.message_index for hint in plan_document(document, provider="anthropic")]
    assert found == [SYSTEM, 0, 2, 4] and TOOLS not in found
