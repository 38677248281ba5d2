"""Malformed stream events are relayed unchanged, and never end a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midfold.gateway.stream_merge import MERGED_STREAMS
from midfold.recall import NAMES
from midfold.transcript.replies import read_answer
from midfold.transcript.sse import EventReader, StreamEvent, event_bytes

HIDDEN = sorted(NAMES)[0]
KEYS = (
    *("choices", "delta", "message", "tool_calls", "function", "name", "arguments", "content", "index", "id", "role"),
    *("finish_reason", "refusal", "reasoning_content", "type", "content_block", "text", "stop_reason", "usage", "item"),
    *(
        "response",
        "output",
        "output_index",
        "sequence_number",
        "error",
        "call_id",
        "status",
        "summary",
        "part",
        "logprobs",
    ),
)
WORDS = (
    *(HIDDEN, "terminal", "tool_use", "tool_calls", "stop", "text", "function_call", "message", "message_start"),
    *("content_block_start", "content_block_delta", "content_block_stop", "message_delta", "response.completed"),
    *("response.output_item.added", "response.output_item.done", "response.output_text.delta", "reasoning", "{}", ""),
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(allow_nan=False), st.sampled_from(WORDS))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), max_size=4)
SHOWN = {
    "openai-chat": {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hm."}}]},
    "anthropic": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hm."}},
    "openai-responses": {"type": "response.output_text.delta", "output_index": 0, "delta": "Hm."},
}
every_dialect = pytest.mark.parametrize("dialect", list(MERGED_STREAMS))


def streamed(*values: Any) -> list[StreamEvent]:
    reader = EventReader()
    return [*reader.feed(b"".join(event_bytes("", value) for value in values)), *reader.end()]


def other_calls(value: Any) -> Any:
    """Return the value without the names of hidden tools."""
    return json.loads(json.dumps(value).replace(HIDDEN, "terminal"))


@every_dialect
@given(events=EVENTS)
@example(events=[{"choices": 7}])
@example(events=[{"choices": [{"delta": {"tool_calls": 7}}]}])
@example(events=[{"choices": [{"delta": {"tool_calls": [7]}, "finish_reason": "tool_calls"}]}])
@example(events=[{"type": "content_block_delta", "index": 0, "delta": 7}])
@example(events=[{"item": {"type": []}}])
@example(events=[{"response": {"output": 7}}])
def test_every_event_of_a_turn_without_hidden_calls_passes_as_it_came(dialect: str, events: list[Any]) -> None:
    joined, came = MERGED_STREAMS[dialect](NAMES), streamed(*map(other_calls, events))
    sent = [joined.feed(event) for event in came]
    joined.turn.finish()
    assert b"".join([*sent, joined.rest()]) == b"".join(event.raw for event in came)


@every_dialect
@given(events=EVENTS, is_last=st.booleans())
@example(events=[{"choices": 7}], is_last=True)
@example(events=[{"choices": [{"delta": {"content": ["a"]}}]}], is_last=False)
def test_no_event_breaks_a_stream_that_goes_on_after_a_hidden_turn(
    dialect: str, events: list[Any], is_last: bool
) -> None:
    joined = MERGED_STREAMS[dialect](NAMES)
    for event in streamed(SHOWN[dialect], *events):
        joined.feed(event)
    joined.turn.finish()
    joined.hide()
    for event in streamed(SHOWN[dialect], *events):
        joined.feed(event)
    turn = joined.turn.finish()
    if is_last:
        joined.end(turn)
    joined.rest()


@every_dialect
@given(value=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
@example(value={"choices": 7})
@example(value={"choices": [{"message": {"tool_calls": [7, {"function": {"name": HIDDEN}}]}}]})
@example(value={"content": [7, {"type": "tool_use", "name": HIDDEN, "id": "x", "input": {}}]})
def test_no_answer_in_one_piece_breaks_its_reading(dialect: str, value: dict[str, Any]) -> None:
    joined = MERGED_STREAMS[dialect](NAMES)
    turn = read_answer(dialect, json.dumps(value).encode())
    joined.end(turn)
    joined.strip(value)
