"""End of hidden rounds: in every case no recall call reaches a client, and its answer is legal."""

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
import pytest

from midfold.testing.answers import Answer, value
from midfold.testing.doubles import Request, ScriptedProvider
from support import provider_replies
from support.fixtures import user
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider
from tests.e2e.test_gateway_recall_streams import WIRES, streamed

PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}
OURS = ("h9", "context_search", {"query": "x"})
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
THEIRS = ("c1", "read_file", {"path": "a.py"})


def stubborn(*last: tuple[str, str, dict[str, Any]], text: str = "So be it.") -> Any:
    """Return a model that searches even if tool calls are disabled."""

    def model(request: Request) -> Turn:
        choice = request.body.get("tool_choice")
        if choice in ("none", {"type": "none"}):
            return Turn(text, last)
        return Turn("", ((f"h{len(request.raw)}", "context_search", {"query": "x"}),))

    return model


def whole(wire: str, gateway: Any) -> dict[str, Any]:
    key = "input" if wire == "responses" else "messages"
    body: dict[str, Any] = {"model": "m", key: [user("Hi.")], "tools": [tool(wire)]}
    status, _, answer = gateway.post(PATHS[wire], body | ({"max_tokens": 50} if wire == "anthropic" else {}))
    assert status == 200
    found: dict[str, Any] = json.loads(answer)
    return found


def tool(wire: str) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
    if wire == "anthropic":
        return {"name": "read_file", "description": "Reads.", "input_schema": shape}
    function = {"name": "read_file", "description": "Reads.", "parameters": shape}
    return {"type": "function", **function} if wire == "responses" else {"type": "function", "function": function}


def ends(wire: str, made: dict[str, Any]) -> tuple[str, list[str], str]:
    """Return the text of an answer, the names of its calls, and its stop reason."""
    if wire == "chat":
        (choice,) = made["choices"]
        calls = [call["function"]["name"] for call in choice["message"].get("tool_calls") or ()]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    parts = made["content"] if wire == "anthropic" else made["output"]
    names = [part["name"] for part in parts if part["type"] in ("tool_use", "function_call")]
    if wire == "anthropic":
        return "".join(part["text"] for part in parts if part["type"] == "text"), names, made["stop_reason"]
    texts = [piece["text"] for part in parts if part["type"] == "message" for piece in part["content"]]
    return "".join(texts), names, made["status"]


STOPS = {"chat": "stop", "anthropic": "end_turn", "responses": "completed"}
CALLS = {"chat": "tool_calls", "anthropic": "tool_use", "responses": "completed"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("last", "text", "names"),
    [
        ((OURS,), "So be it.", []),
        ((OURS, THEIRS), "So be it.", ["read_file"]),
        ((THEIRS, OURS), "", ["read_file"]),
        ((OURS,), "", []),
    ],
    ids=["ours", "ours and theirs", "theirs and ours", "ours without a word"],
)
def test_a_call_of_ours_after_the_last_round_is_left_out_and_the_answer_is_legal(
    wire: str, stream: bool, last: Any, text: str, names: list[str]
) -> None:
    model = stubborn(*last, text=text)
    with RulesProvider(model, window=64_000) as provider, running(provider.url, recall="on") as gateway:
        if stream:
            made = streamed(wire, gateway.url, [user("Hi.")], tools=[tool(wire)]).model_dump()
        else:
            made = whole(wire, gateway)
    assert (len(provider.requests), provider.rejected) == (9, [])
    assert ends(wire, made) == (text, names, (CALLS if names else STOPS)[wire])
    assert "context_search" not in json.dumps(made)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_that_the_provider_keeps_with_such_a_call_can_be_gone_on_from(stream: bool) -> None:
    searching = stubborn(OURS)

    def model(request: Request) -> Turn:
        return Turn("Gladly.") if b"Go on." in request.raw else searching(request)

    with RulesProvider(model, window=64_000) as provider, running(provider.url, recall="on") as gateway:
        more: dict[str, Any] = {"tools": [tool("responses")]}
        if stream:
            made = streamed("responses", gateway.url, [user("Hi.")], **more)
            made = streamed("responses", gateway.url, [user("Go on.")], previous_response_id=made.id, **more)
        else:
            body = {"model": "m", "input": [user("Go on.")], "previous_response_id": whole("responses", gateway)["id"]}
            made = gateway.post(PATHS["responses"], body | more)
    assert provider.rejected == []
    assert "Gladly." in str(made)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_encoded_answer_is_decoded_where_a_call_is_taken_out_of_it(stream: bool) -> None:
    def reply(request: Request) -> Answer:
        is_last = request.body.get("tool_choice") == "none"
        made = provider_replies.chat(Turn("So be it." if is_last else "", (OURS,)), 1, "m", USAGE, stream)
        packed = {"headers": {"content-encoding": "gzip"}, "pieces": (gzip.compress(made.body),), "promised": None}
        return msgspec.structs.replace(made, **packed)

    with ScriptedProvider(then=reply) as provider, running(provider.url, recall="on") as gateway:
        body = {"model": "m", "messages": [user("Hi.")], "stream": stream}
        status, head, answer = gateway.post(PATHS["chat"], body)
    assert (status, len(provider.requests), "content-encoding" in head) == (200, 9, False)
    assert b"So be it." in answer and b"context_search" not in answer and b"tool_calls" not in answer


@pytest.mark.parametrize("arguments", ['{"query": "x', "{}"], ids=["broken", "whole but cut off"])
def test_a_call_that_is_cut_off_twice_is_not_asked_for_again(arguments: str) -> None:
    def reply(request: Request) -> Answer:
        if request.body.get("tool_choice") == "none":
            return provider_replies.chat(Turn("Well."), 1, "m", USAGE, False)
        made = json.loads(provider_replies.chat(Turn("", (OURS,)), 1, "m", USAGE, False).body)
        made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
        made["choices"][0]["finish_reason"] = "length"
        return value(made)

    with ScriptedProvider(then=reply) as provider, running(provider.url, recall="on") as gateway:
        status, _, answer = gateway.post(PATHS["chat"], {"model": "m", "messages": [user("Hi.")]})
    assert (status, len(provider.requests)) == (200, 3)
    assert b"Well." in answer
