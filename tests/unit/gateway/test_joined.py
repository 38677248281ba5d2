"""Turns of a model joined into one stream: when events are relayed, and the client's result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.gateway.hidden_turns import raw_messages, without_hidden
from midfold.gateway.stream_merge import MERGED_STREAMS, SEPARATOR, MergedStream, ShownPart
from midfold.recall import NAMES
from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Message
from midfold.transcript.splice import message_value
from midfold.transcript.sse import EventReader, StreamEvent
from support import provider_replies
from support.provider_replies import Turn

MAKERS = {
    "openai-chat": provider_replies.chat,
    "anthropic": provider_replies.anthropic,
    "openai-responses": provider_replies.responses,
}
USAGE = {
    "openai-chat": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}},
    "anthropic": {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 7},
    "openai-responses": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60}, "output_tokens": 7},
}
HIDDEN = (("h1", "context_search", {"query": "x" * 90}),)
THEIRS = (("c1", "terminal", {"command": "ls"}),)
LONG_TEXT = "A sentence that is longer than one piece of a stream is, so that there are several. " * 3
every_dialect = pytest.mark.parametrize("dialect", list(MAKERS))


def stream(dialect: str, turn: Turn, number: int = 1) -> list[StreamEvent]:
    answer = MAKERS[dialect](turn, number, "m", USAGE[dialect], True)
    reader = EventReader()
    return [*reader.feed(b"".join(answer.pieces)), *reader.end()]


def fed(joined: MergedStream, events: list[StreamEvent]) -> list[bytes]:
    return [joined.feed(event) for event in events]


def values(data: bytes) -> list[dict[str, Any]]:
    reader = EventReader()
    return [event.value for event in [*reader.feed(data), *reader.end()] if event.value]


@every_dialect
@pytest.mark.parametrize(
    "turn", [Turn(LONG_TEXT), Turn(LONG_TEXT, THEIRS), Turn("", THEIRS), Turn("Hm.", thinking="So. " * 40), Turn()]
)
def test_a_stream_without_hidden_calls_is_relayed_byte_for_byte(dialect: str, turn: Turn) -> None:
    joined, events = MERGED_STREAMS[dialect](NAMES), stream(dialect, turn)
    sent = fed(joined, events)
    assert b"".join([*sent, joined.rest()]) == b"".join(event.raw for event in events)
    if turn.text:
        first = next(place for place, event in enumerate(events) if turn.text[:20] in event.data)
        assert b"".join(sent[: first + 1]) == b"".join(event.raw for event in events[: first + 1])


@every_dialect
@pytest.mark.parametrize("calls", [HIDDEN, (*HIDDEN, *THEIRS)])
def test_what_is_said_is_relayed_at_once_and_hidden_calls_wait_for_the_end_of_the_turn(
    dialect: str, calls: tuple[Any, ...]
) -> None:
    joined, events = MERGED_STREAMS[dialect](NAMES), stream(dialect, Turn(LONG_TEXT, calls))
    sent = fed(joined, events)
    call = next(place for place, event in enumerate(events) if "h1" in event.data)
    assert b"".join(sent[:call]) == b"".join(event.raw for event in events[:call])
    assert not any(sent[call:]) and not joined.is_for_client


@every_dialect
@pytest.mark.parametrize("text", ["", LONG_TEXT])
def test_a_turn_whose_first_call_is_the_clients_is_relayed_without_the_hidden_ones(dialect: str, text: str) -> None:
    more = (("c2", "terminal", {"command": "pwd"}),)
    joined, events = MERGED_STREAMS[dialect](NAMES), stream(dialect, Turn(text, (*THEIRS, *HIDDEN, *more)))
    sent = fed(joined, events)
    first = next(place for place, event in enumerate(events) if "c1" in event.data)
    hidden = next(place for place, event in enumerate(events) if "h1" in event.data)
    assert b"".join(sent[:hidden]) == b"".join(event.raw for event in events[:hidden])
    assert all(sent[first:hidden]) and not any(sent[hidden:]) and joined.is_for_client
    whole = b"".join([*sent, joined.rest()])
    expected = b"".join(event.raw for event in stream(dialect, Turn(text, (*THEIRS, *more))))
    same = [{**one, "sequence_number": 0} for one in values(whole)]
    assert same == [{**one, "sequence_number": 0} for one in values(expected)]


@every_dialect
def test_after_a_turn_that_said_nothing_the_next_one_is_relayed_as_it_came(dialect: str) -> None:
    joined = MERGED_STREAMS[dialect](NAMES)
    assert not any(fed(joined, stream(dialect, Turn("", HIDDEN), 1)))
    joined.hide()
    events = stream(dialect, Turn(LONG_TEXT), 2)
    sent = b"".join(fed(joined, events)) + joined.rest()
    assert sent == b"".join(event.raw for event in events) and joined.seen == []


def test_two_turns_as_one_anthropic_message() -> None:
    joined = MERGED_STREAMS["anthropic"](NAMES)
    sent = b"".join(fed(joined, stream("anthropic", Turn("One.", HIDDEN, thinking="Hm."), 1)))
    joined.hide()
    sent += b"".join(fed(joined, stream("anthropic", Turn("Two.", THEIRS), 2))) + joined.rest()
    found = values(sent)
    kinds = [one["type"] for one in found]
    assert (kinds.count("message_start"), kinds.count("message_stop"), kinds.count("message_delta")) == (1, 1, 1)
    starts = [(one["index"], one["content_block"]["type"]) for one in found if one["type"] == "content_block_start"]
    assert starts == [(0, "thinking"), (1, "text"), (2, "text"), (3, "tool_use")]
    end = next(one for one in found if one["type"] == "message_delta")
    assert (end["delta"]["stop_reason"], end["usage"]) == ("tool_use", USAGE["anthropic"])
    assert joined.seen == [ShownPart("thinking", "Hm."), ShownPart("text", "One.")]
    assert b"context_search" not in sent


def test_two_turns_as_one_response() -> None:
    joined = MERGED_STREAMS["openai-responses"](NAMES)
    sent = b"".join(fed(joined, stream("openai-responses", Turn("One.", HIDDEN), 1)))
    joined.hide()
    sent += b"".join(fed(joined, stream("openai-responses", Turn("Two."), 2))) + joined.rest()
    found = values(sent)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    whole = found[-1]["response"]
    assert [item["content"][0]["text"] for item in whole["output"]] == ["One.", "Two."]
    assert (whole["id"], joined.renamed) == ("resp_1", {"resp_1": "resp_2"})
    assert {one["output_index"] for one in found if "output_index" in one} == {0, 1}


def test_reasoning_of_a_response_waits_for_the_item_it_belongs_to() -> None:
    joined = MERGED_STREAMS["openai-responses"](NAMES)
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    thought = StreamEvent(
        b"event: a\ndata: {}\n\n", "a", json.dumps({"type": "response.output_item.done", "item": item})
    )
    assert joined.feed(thought) == b""
    said = StreamEvent(b"b", "b", json.dumps({"type": "response.output_text.delta", "delta": "x"}))
    assert joined.feed(said) == thought.raw + b"b"


@every_dialect
def test_a_stream_that_cannot_go_on_ends_with_an_error_of_its_dialect(dialect: str) -> None:
    (found,) = values(MERGED_STREAMS[dialect](NAMES).error({"type": "overloaded_error", "message": "busy"}))
    assert found["error"] == {"type": "overloaded_error", "message": "busy"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_raw_events_are_the_bytes_that_came_in_however_they_are_cut(size: int, ending: bytes) -> None:
    data = b": hello\n\nevent: a\ndata: 1\n\ndata: x\ndata: y\n\nrest".replace(b"\n", ending)
    reader = EventReader()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    events = [*(event for piece in pieces for event in reader.feed(piece)), *reader.end()]
    assert b"".join(event.raw for event in events) == data
    assert [(event.name, event.data) for event in events if event.data] == [("a", "1"), ("", "x\ny")]


SEEN = (ShownPart("thinking", "Hm."), ShownPart("text", "One."))
BLOCKS = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "One."}]
REST = [{"type": "text", "text": "Two.", "x": 1e-7}]


@pytest.mark.parametrize(
    ("dialect", "seen", "content", "left"),
    [
        ("anthropic", SEEN, [*BLOCKS, *REST], REST),
        ("anthropic", SEEN, [*BLOCKS[1:], *REST], REST),
        ("anthropic", SEEN, "One.Two.", "Two."),
        ("anthropic", SEEN, "Something else.", "Something else."),
        ("anthropic", SEEN, BLOCKS, BLOCKS),
        ("openai-chat", (ShownPart("text", "One." + SEPARATOR),), f"One.{SEPARATOR}Two.", "Two."),
        (
            "openai-chat",
            (ShownPart("text", "One. "),),
            [{"type": "text", "text": "One. Two."}],
            [{"type": "text", "text": "Two."}],
        ),
        ("openai-chat", (ShownPart("text", "One."),), "One.", "One."),
        ("openai-responses", (ShownPart("text", "One."),), "One.Two.", "Two."),
    ],
)
def test_what_was_seen_of_a_hidden_turn_is_taken_out_of_the_clients_answer(
    dialect: str, seen: tuple[ShownPart, ...], content: Any, left: Any
) -> None:
    (message,) = raw_messages([{"role": "assistant", "content": content, "kept": True}], DIALECTS[dialect])
    found, rest = without_hidden(message, seen, DIALECTS[dialect])
    assert isinstance(found, Message) and not rest
    assert message_value(found, DIALECTS[dialect]) == {"role": "assistant", "content": left, "kept": True}


def test_items_that_were_seen_are_left_out() -> None:
    part = {"type": "output_text", "text": "One."}
    items = [{"type": "reasoning", "id": "rs_1"}, {"type": "message", "role": "assistant", "content": [part]}]
    seen: Any = [ShownPart("item", "rs_1"), ShownPart("text", "One.")]
    for message in raw_messages(items, DIALECTS["openai-responses"]):
        found, seen = without_hidden(message, seen, DIALECTS["openai-responses"])
        assert found is None
    assert not seen
