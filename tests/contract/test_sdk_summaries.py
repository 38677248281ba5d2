"""Requests of the summary client match the official SDKs' types, and it parses their response models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message as ClaudeMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

import midfold
from midfold.model.summarizer import ModelSummarizer
from midfold.testing import FakeClock, Request, ScriptedProvider
from midfold.testing.answers import Answer, events, raw, summary, tool_call
from midfold.testing.engines import long_conversation
from support.summaries import ASK, GOOD, WAYS, WIRES, ask_of, make

REQUESTS: dict[str, TypeAdapter[Any]] = {
    "openai": TypeAdapter(CompletionCreateParamsStreaming),
    "anthropic": TypeAdapter(MessageCreateParamsStreaming),
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE = {"prompt_tokens": 1_000, "completion_tokens": 90, "total_tokens": 1_090}
CLAUDE_USAGE = {
    "input_tokens": 100,
    "output_tokens": 90,
    "cache_read_input_tokens": 900,
    "cache_creation_input_tokens": 0,
}


def walked(value: Any) -> Any:
    """Consume iterables; pydantic checks iterables of TypedDicts only when they are iterated."""
    if isinstance(value, dict):
        return {key: walked(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [walked(item) for item in value]


def fits(wire: str, request: Request) -> None:
    checked = walked(REQUESTS[wire].validate_python(request.body, strict=False))
    assert set(request.body) <= set(checked), "a field that the SDK does not know"
    assert request.body["stream"] is True


@pytest.mark.parametrize("wire", WIRES)
def test_requests_fit_the_types_first_pieces_continuations_and_merges(wire: Any) -> None:
    script = [summary(wire, "## Goal\nhalf", "length"), summary(wire, "the rest")]
    with ScriptedProvider(script, then=summary(wire, GOOD)) as provider:
        ask = ask_of(long_conversation("openai-chat", 20)[1:], previous=GOOD, focus="tests")
        make("now", provider.endpoint(wire, context_length=12_000, reasoning_effort="low"), ask=ask)
    assert len(provider.requests) > 3
    for request in provider.requests:
        fits(wire, request)


@pytest.mark.parametrize("wire", WIRES)
def test_a_cached_prefix_fits_the_types(wire: Any) -> None:
    messages = long_conversation("openai-chat" if wire == "openai" else "anthropic", 12)
    function = {"name": "read_file", "description": "reads", "parameters": {"type": "object", "properties": {}}}
    claude = {"name": "read_file", "description": "reads", "input_schema": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}] if wire == "openai" else [claude]
    body = {"model": "own", "messages": messages, "tools": tools, "max_tokens": 500}
    with ScriptedProvider([summary(wire, GOOD)]) as provider:
        endpoint = provider.endpoint(wire, model="own", reuse_prefix=True)
        midfold.compact(body, context_length=20_000, force=True, summarizer=ModelSummarizer(endpoint))
    fits(wire, provider.requests[0])
    assert provider.requests[0].body["tools"] == tools


def test_the_check_can_fail() -> None:
    for wire, adapter in REQUESTS.items():
        with pytest.raises(ValueError, match="validation error"):
            walked(adapter.validate_python({"model": "m", "stream": True, "messages": [{"role": "robot"}]})), wire


# Answers as the SDKs' models serialize them


def completion(**changes: Any) -> Answer:
    message = {"role": "assistant", "content": GOOD, "refusal": None, **changes.pop("message", {})}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "message": message, **changes}
    made = ChatCompletion.model_validate(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    )
    return raw(made.model_dump_json())


def chunks(*deltas: tuple[dict[str, Any], str | None]) -> Answer:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    made = [
        ChatCompletionChunk.model_validate({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]})
        for delta, end in deltas
    ]
    last = ChatCompletionChunk.model_validate({**head, "choices": [], "usage": USAGE})
    return events([json.loads(item.model_dump_json()) for item in [*made, last]], done=True)


def claude_message(blocks: list[Any], stop: str = "end_turn") -> Answer:
    made = ClaudeMessage.model_validate(
        {
            "id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks, "stop_reason": stop,
            "stop_sequence": None, "usage": CLAUDE_USAGE,
        }
    )  # fmt: skip
    return raw(made.model_dump_json())


def claude_events(*items: dict[str, Any]) -> Answer:
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    whole = [
        {
            "type": "message_start",
            "message": {**start, "stop_reason": None, "stop_sequence": None, "usage": CLAUDE_USAGE},
        },
        *items,
        {"type": "message_stop"},
    ]
    return events([json.loads(EVENT.validate_python(item).model_dump_json()) for item in whole], named=True)


def claude_end(reason: str) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 9},
    }


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
HALF = len(GOOD) // 2
GOOD_ANSWERS: dict[str, tuple[str, Answer]] = {
    "a completion": ("openai", completion()),
    "chunks": ("openai", chunks(({"role": "assistant"}, None), ({"content": GOOD}, None), ({}, "stop"))),
    "a message": ("anthropic", claude_message([{"type": "text", "text": GOOD}])),
    "a message with thinking": ("anthropic", claude_message([THOUGHT, {"type": "text", "text": GOOD}])),
    "events": (
        "anthropic",
        claude_events(
            {"type": "content_block_start", "index": 0, "content_block": {**THOUGHT, "thinking": "", "signature": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "content_block_start",
                "index": 1,
                "content_block": {"type": "text", "text": "", "citations": None},
            },
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": GOOD[:HALF]}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": GOOD[HALF:]}},
            {"type": "content_block_stop", "index": 1},
            claude_end("end_turn"),
        ),
    ),
}
BAD_ANSWERS: dict[str, tuple[str, Answer, str]] = {
    "a refusal": ("openai", completion(message={"content": None, "refusal": "No."}), "filtered"),
    "a refusal in chunks": ("openai", chunks(({"refusal": "No."}, None), ({}, "stop")), "filtered"),
    "a filter": ("openai", completion(finish_reason="content_filter"), "filtered"),
    "a filter in chunks": ("openai", chunks(({"content": "half"}, None), ({}, "content_filter")), "filtered"),
    "a refusal of Claude's": ("anthropic", claude_message([], "refusal"), "filtered"),
    "a refusal in events": ("anthropic", claude_events(claude_end("refusal")), "filtered"),
    "a tool call": ("openai", tool_call("openai", stream=False), "malformed"),
    "a tool use": ("anthropic", claude_message([TOOL_USE], "tool_use"), "malformed"),
    "no text": ("anthropic", claude_message([THOUGHT]), "malformed"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(GOOD_ANSWERS))
def test_answers_of_the_sdks_models_are_understood(way: str, name: str) -> None:
    wire, answer = GOOD_ANSWERS[name]
    with ScriptedProvider([answer]) as provider:
        assert make(way, provider.endpoint(wire)).text == GOOD  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(BAD_ANSWERS))
def test_answers_of_the_sdks_models_that_are_no_summary_are_understood_too(name: str) -> None:
    wire, answer, kind = BAD_ANSWERS[name]
    with ScriptedProvider(then=answer) as provider:
        assert make("now", provider.endpoint(wire)).failure.kind == kind  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_the_scripted_answers_are_what_the_sdks_models_accept(wire: str, stream: bool) -> None:
    """A test double that no SDK could read would prove nothing."""
    answer = summary(wire, GOOD, stream=stream)
    if not stream and wire == "openai":
        assert ChatCompletion.model_validate_json(answer.body, strict=False).choices[0].message.content == GOOD
        return
    if not stream:
        assert ClaudeMessage.model_validate_json(answer.body, strict=False).content[0].text == GOOD  # type: ignore[union-attr]
        return
    said = ""
    for piece in answer.pieces:
        data = piece.decode().partition("data: ")[2].strip()
        if data == "[DONE]" or '"ping"' in data:
            continue
        if wire == "openai":
            said += "".join(one.delta.content or "" for one in ChatCompletionChunk.model_validate_json(data).choices)
        else:
            said += getattr(getattr(EVENT.validate_json(data), "delta", None), "text", "")
    assert said == GOOD


@pytest.mark.parametrize("wire", WIRES)
def test_the_official_clients_read_the_scripted_provider(wire: str) -> None:
    with ScriptedProvider(then=summary(wire, GOOD, stream=False)) as provider:
        if wire == "openai":
            from openai import OpenAI

            with OpenAI(api_key="none", base_url=f"{provider.url}/v1", max_retries=0) as client:
                made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert made.choices[0].message.content == GOOD
        else:
            from anthropic import Anthropic

            with Anthropic(api_key="none", base_url=provider.url, max_retries=0) as claude:
                told = claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
            assert told.content[0].text == GOOD  # type: ignore[union-attr]
    assert FakeClock().slept == []
    assert ASK.budget_tokens
