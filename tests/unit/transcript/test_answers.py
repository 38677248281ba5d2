"""Answers in all three dialects, whole and streaming, valid and broken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.testing.answers import events, turn
from midfold.transcript import jsonio
from midfold.transcript.replies import ENDED_EARLY, AnswerReader, ModelAnswer, read_answer, result_messages
from support.provider_replies import Turn, anthropic, chat, responses
from support.provider_rules import check
from support.timing import assert_in_proportion

DIALECTS = {"openai": "openai-chat", "anthropic": "anthropic"}

CALLS = [("shell", {"command": "ls", "timeout": 5}), ("read_file", {"path": "ä/ö.txt"})]


def read(wire: str, body: bytes, size: int = 7) -> tuple[str, ModelAnswer]:
    reader = AnswerReader(DIALECTS[wire])
    heard = [text for start in range(0, len(body), size) for text in reader.feed(body[start : start + size])]
    return "".join(heard), reader.finish()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_streams_and_whole_answers_say_the_same(wire: str, size: int) -> None:
    made = {stream: turn(wire, "Let me see.", CALLS, prompt_tokens=90, stream=stream) for stream in (True, False)}
    heard, streamed = read(wire, made[True].body, size)
    silent, whole = read(wire, made[False].body, size)
    assert (heard, silent) == ("Let me see.", "")
    for answer in (streamed, whole):
        assert answer.text == "Let me see."
        assert [(call.name, jsonio.decode(call.arguments)) for call in answer.calls] == CALLS
        assert answer.message["role"] == "assistant"
        assert answer.usage
    names = [sorted(answer.message) for answer in (streamed, whole)]
    assert names[0] == names[1]


def test_blocks_of_thinking_are_kept_with_their_signature() -> None:
    items: list[Any] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm, "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "yes."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "xyz"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "index": 3, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    heard, answer = read("anthropic", events(items, named=True).body)
    assert heard == answer.text == "Yes."
    assert answer.message["content"] == [
        {"type": "thinking", "thinking": "Hm, yes.", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Yes."},
    ]
    assert answer.usage == {"input_tokens": 5, "output_tokens": 9}


def test_servers_without_an_index_and_with_reasoning_are_understood() -> None:
    call = {"type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    deltas: list[Any] = [
        {"reasoning_content": "I think."},
        {"tool_calls": [{**call, "id": "a"}]},
        {"tool_calls": [{**call, "id": "b"}]},
    ]
    items: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    items.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    _, answer = read("openai", events(items, done=True).body)
    assert [call.id for call in answer.calls] == ["a", "b"]
    assert answer.message["reasoning_content"] == "I think."


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_an_answer_that_breaks_off_says_so_and_keeps_what_came(wire: str, share: float) -> None:
    body = turn(wire, "A long answer, which will not come to its end.", CALLS).cut(share).body
    heard, answer = read(wire, body)
    assert answer.problem == ENDED_EARLY
    assert heard == answer.text


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>Bad Gateway</html>", "a web page"),
        (b"[]", "not an object"),
        (b"upstream connect error", "not JSON"),
        (b'{"choices": []}', "no message"),
        (b"data: {oops\n\n", "not a JSON object"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b"data: " + b"1," * 300_000 + b"\n\n", "exceeds the size limits"),
        (b"", ENDED_EARLY),
    ],
)
def test_what_is_no_answer_says_what_it_is_instead(body: bytes, problem: str) -> None:
    _, answer = read("openai", body, 100_000)
    assert problem in answer.problem
    assert (answer.calls, answer.error) == ((), None)


def test_an_answer_larger_than_may_be_is_not_read_on() -> None:
    reader = AnswerReader("openai-chat", largest=2_000_000)
    assert list(reader.feed(b'{"choices": [' + b" " * 1_999_000)) == [] and not reader.has_failed
    assert list(reader.feed(b" " * 2_000)) == [] and reader.has_failed
    assert reader.finish().problem == "the response is larger than 2 MB"


OVERFLOW = {"message": "maximum context length is 4096 tokens", "code": 400}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("openai-chat", {"error": OVERFLOW}),
        ("anthropic", {"type": "error", "error": OVERFLOW}),
        ("openai-responses", {"type": "error", **OVERFLOW}),
        ("openai-responses", {"type": "response.failed", "response": {"error": OVERFLOW, "output": []}}),
    ],
)
def test_an_error_inside_an_answer_is_its_error(dialect: str, body: dict[str, Any]) -> None:
    reader = AnswerReader(dialect)
    assert list(reader.feed(events([{"choices": []}, body]).body)) == []
    error = reader.finish().error
    assert (error["message"], error["code"], reader.has_failed) == (OVERFLOW["message"], 400, True)


def test_what_a_server_adds_to_a_call_is_sent_back_with_it() -> None:
    """Gemini sends its thought signatures this way."""
    first = {"index": 0, "id": "a", "extra_content": {"google": {"thought_signature": "s"}}, "function": {"name": "f"}}
    items: list[Any] = [
        {"choices": [{"delta": {"tool_calls": [first]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ]
    _, answer = read("openai", events(items, done=True).body)
    (call,) = answer.message["tool_calls"]
    assert call["extra_content"] == first["extra_content"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_the_choice_that_is_read_is_the_first_one() -> None:
    items: list[Any] = [
        {"choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"choices": [{"index": 0, "delta": {"content": "mine"}, "finish_reason": "stop"}]},
    ]
    assert read("openai", events(items, done=True).body)[1].text == "mine"


def test_a_response_whose_last_event_leaves_out_its_items_is_what_was_told_before() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    items: list[Any] = [
        {"type": "response.output_text.delta", "delta": "Yes."},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"output": [], "usage": {"input_tokens": 5}}},
    ]
    reader = AnswerReader("openai-responses")
    assert list(reader.feed(events(items).body)) == ["Yes."]
    answer = reader.finish()
    assert (answer.text, answer.messages, answer.usage) == ("Yes.", (item,), {"input_tokens": 5})


def test_arguments_that_were_cut_off_are_kept_as_text_for_the_api() -> None:
    items: list[Any] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "shell"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"comm'}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_stop"},
    ]
    _, answer = read("anthropic", events(items, named=True).body)
    assert answer.finish == "length"
    assert answer.message["content"][0]["input"] == {"unreadable": '{"comm'}


TURN = Turn("Let me see.", (("c1", "a", {"x": [1, "ü"]}), ("c2", "b", {})), thinking="hm")
MAKERS = {"openai-chat": chat, "anthropic": anthropic, "openai-responses": responses}


@pytest.mark.parametrize("dialect", MAKERS)
def test_a_turn_is_put_together_alike_from_a_stream_and_from_a_whole_answer(dialect: str) -> None:
    usage = {"output_tokens": 1}
    whole = read_answer(dialect, MAKERS[dialect](TURN, 1, "m", usage, False).body)
    stream = read_answer(dialect, MAKERS[dialect](TURN, 1, "m", usage, True).body)
    assert whole == stream
    assert [(call.id, call.name, jsonio.decode(call.arguments)) for call in whole.calls] == [
        ("c1", "a", {"x": [1, "ü"]}),
        ("c2", "b", {}),
    ]
    wire = {"openai-chat": "chat", "anthropic": "anthropic", "openai-responses": "responses"}[dialect]
    key = "input" if wire == "responses" else "messages"
    results = result_messages(dialect, [("c1", "one"), ("c2", "two")])
    body = {"model": "m", "max_tokens": 9, key: [{"role": "user", "content": "hi"}, *whole.messages, *results]}
    assert check(wire, body, 10_000) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"data: {}\n\n", b"<html>", b'{"choices": []}', b'{"content": 1}'])
@pytest.mark.parametrize("dialect", MAKERS)
def test_an_answer_nobody_can_read_has_no_calls(dialect: str, data: bytes) -> None:
    assert read_answer(dialect, data).calls == ()


FIELDS = [
    "type",
    "error",
    "usage",
    "choices",
    "delta",
    "message",
    "index",
    "content",
    "tool_calls",
    "function",
    "arguments",
    "id",
    "finish_reason",
    "refusal",
    "text",
    "reason",
    "content_block",
    "partial_json",
    "response",
    "output",
    "item",
    "incomplete_details",
    "stop_reason",
]
KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "message_delta",
    "message_stop",
    "error",
    "text_delta",
    "input_json_delta",
    "response.output_text.delta",
    "response.output_item.done",
    "response.completed",
    "response.failed",
    "function_call",
    "tool_use",
]
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), odd), max_size=4), st.sampled_from(sorted(MAKERS)), st.booleans())
def test_no_answer_is_too_odd_to_be_read(found: list[tuple[str, Any]], dialect: str, is_stream: bool) -> None:
    values = [{"type": kind, **value} if isinstance(value, dict) else value for kind, value in found]
    body = events(values).body if is_stream else jsonio.encode(values[0] if values else None)
    answer = read_answer(dialect, body)
    assert isinstance(answer.text, str)
    assert jsonio.encode(list(answer.messages))


@pytest.mark.parametrize("call", ['{"id":"%d"}', '{"index":%d}', '{"function":{"arguments":"%d"}}'])
def test_time_is_linear_in_the_calls_of_an_answer(call: str) -> None:
    def work(count: int) -> None:
        calls = ",".join(call % number for number in range(count))
        body = b'{"choices":[{"message":{"tool_calls":[' + calls.encode() + b"]}}]}"
        assert len(read_answer("openai-chat", body).calls) == count

    assert_in_proportion(work, 5_000, (20_000, 8))
