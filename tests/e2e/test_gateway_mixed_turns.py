"""A turn that calls recall tools and the client's tools together costs no extra turn, in any dialect, whole or
streamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.testing import answers
from midfold.testing.doubles import Request, ScriptedProvider
from midfold.transcript import jsonio
from support import provider_replies
from support.clients import anthropic_client, closing, openai_client
from support.fixtures import assistant, user
from support.gateways import Running, running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WIRES = ("chat", "anthropic", "responses")
OURS = ("h1", "context_search", {"query": "deploy token"})
THEIRS = ("c1", "sh", {"command": "ls"})
MORE = ("c2", "sh", {"command": "pwd"})
ORDERS = {
    "ours first": (OURS, THEIRS, MORE),
    "theirs first": (THEIRS, OURS, MORE),
    "ours last": (THEIRS, MORE, OURS),
}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
RESPONSES_TOOL = {"type": "function", "name": "sh", "parameters": PARAMETERS}
TOOLS: dict[str, list[Any]] = {
    "chat": [{"type": "function", "function": {"name": "sh", "parameters": PARAMETERS}}],
    "anthropic": [{"name": "sh", "input_schema": PARAMETERS}],
    "responses": [RESPONSES_TOOL],
}
RAN_NOTHING = b"Nothing of this conversation"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


def ask(wire: str, url: str, talk: list[Any], stream: bool, **more: Any) -> list[Any]:
    """Send a conversation and return the answer as messages that a client keeps."""
    options: dict[str, Any] = {"model": "m", "tools": TOOLS[wire], **more}
    if wire == "anthropic":
        client = anthropic_client(url)
        options |= {"max_tokens": 2_000, "messages": talk, "thinking": {"type": "enabled", "budget_tokens": 1_024}}
        if stream:
            with client.messages.stream(**options) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**options)
        return [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}]
    other = openai_client(url)
    if wire == "responses":
        made: Any
        if stream:
            with other.responses.stream(input=talk, **options) as items:
                made = items.get_final_response()
        else:
            made = other.responses.create(input=talk, **options)
        return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in made.output]
    if stream:
        with other.chat.completions.stream(messages=talk, **options) as chunks:
            said: Any = chunks.get_final_completion().choices[0].message
    else:
        said = other.chat.completions.create(messages=talk, **options).choices[0].message
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": one.function.arguments}}
        for one in said.tool_calls or ()
    ]
    return [{"role": "assistant", "content": said.content, **({"tool_calls": calls} if calls else {})}]


def results_of(wire: str, kept: list[Any]) -> list[Any]:
    """Return the results of the client's calls as it sends them."""
    if wire == "anthropic":
        calls = [block["id"] for block in kept[0]["content"] if block["type"] == "tool_use"]
        blocks = [{"type": "tool_result", "tool_use_id": one, "content": f"ran {one}"} for one in calls]
        return [{"role": "user", "content": blocks}]
    if wire == "chat":
        return [
            {"role": "tool", "tool_call_id": one["id"], "content": f"ran {one['id']}"}
            for one in kept[0].get("tool_calls", ())
        ]
    calls = [item["call_id"] for item in kept if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": one, "output": f"ran {one}"} for one in calls]


def model_of(wire: str, order: str) -> Any:
    def model(request: Request) -> Turn:
        if b"ran c2" in request.raw or b"Observation" in request.raw:
            return Turn("Done.")
        return Turn("Let me see.", ORDERS[order], thinking="Both at once." if wire == "anthropic" else "")

    return model


def talk_of(request: Request) -> bytes:
    found = jsonio.entries(request.raw)
    return bytes(found["input"] if "input" in found else found["messages"]).rstrip(b"]")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_clients_calls_pass_and_ours_are_answered_with_the_next_request(
    wire: str, stream: bool, order: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    talk: list[Any] = [user("List the files, and what was the deploy token?")]
    with RulesProvider(model_of(wire, order), window=20_000) as provider:
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, recall="on") as gateway:
            kept = ask(wire, gateway.url, talk, stream)
            assert (len(provider.requests), gateway.account().hidden.rounds) == (1, 0), "no turn is spent"
            shown = json.dumps(kept)
            assert "context_search" not in shown and "c1" in shown and "c2" in shown and "Let me see." in shown
            talk += [*kept, *results_of(wire, kept)]
            talk += [*ask(wire, gateway.url, talk, stream), user("Thanks.")]
        # Another process, and the same bytes.
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, recall="on") as gateway:
            ask(wire, gateway.url, talk, stream)
        assert provider.rejected == []
    _, second, third = provider.requests
    assert second.raw.count(b'"h1"') == 2 and RAN_NOTHING in second.raw and b"ran c1" in second.raw
    assert talk_of(third).startswith(talk_of(second))


def as_text(wire: str, kept: list[Any]) -> list[Any]:
    """Write a turn as smolagents does: calls and results as text."""
    calls = "Calling tools:\n[{'id': 'c1', 'function': {'name': 'sh', 'arguments': {'command': 'ls'}}}]"
    return [assistant(f"Let me see.\n{calls}"), user("Observation:\na.py\nb.py")]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_client_that_writes_its_calls_down_as_text_gets_ours_answered_too(
    wire: str, stream: bool, order: str
) -> None:
    talk: list[Any] = [user("List the files, and what was the deploy token?")]
    with (
        RulesProvider(model_of(wire, order), window=20_000) as provider,
        running(provider.url, recall="on") as gateway,
    ):
        kept = ask(wire, gateway.url, talk, stream)
        assert len(provider.requests) == 1 and "context_search" not in json.dumps(kept)
        talk += as_text(wire, kept)
        talk += [*ask(wire, gateway.url, talk, stream), user("Thanks.")]
        ask(wire, gateway.url, talk, stream)
        assert provider.rejected == []
    _, second, third = provider.requests
    assert second.raw.count(b'"h1"') == 2 and RAN_NOTHING in second.raw
    assert talk_of(third).startswith(talk_of(second))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_response_that_the_provider_keeps_is_continued_with_our_results_after_a_restart(
    stream: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    turns = [Turn("Let me see.", ORDERS["ours first"]), Turn("Fine.")]
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    script = [provider_replies.responses(turn, place, "m", usage, stream) for place, turn in enumerate(turns, 1)]
    with ScriptedProvider(script) as provider:
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, recall="on") as gateway:
            kept = ask("responses", gateway.url, [user("Hi.")], stream)
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, recall="on") as gateway:
            results = results_of("responses", kept)
            ask("responses", gateway.url, results, stream, previous_response_id="resp_1")
    sent: list[Mapping[str, Any]] = provider.requests[-1].body["input"]
    assert {item["call_id"] for item in sent} == {"h1", "c1", "c2"}


def test_a_custom_tool_of_the_client_is_the_clients_call() -> None:
    """Codex calls apply_patch as a custom tool, which is not a function call."""
    patch = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    first = jsonio.decode(provider_replies.responses(Turn("", (OURS,)), 1, "m", usage, False).body)
    first["output"].append(patch)
    done = provider_replies.responses(Turn("Done."), 2, "m", usage, False)
    with ScriptedProvider([answers.value(first), done]) as provider, running(provider.url, recall="on") as gateway:
        body: dict[str, Any] = {"model": "m", "input": [user("Patch it.")], "tools": [RESPONSES_TOOL]}
        output = json.loads(post(gateway, body))["output"]
        assert [item["type"] for item in output] == ["custom_tool_call"]
        body["input"] += [*output, {"type": "custom_tool_call_output", "call_id": "c1", "output": "ran c1"}]
        post(gateway, body)
    kinds = [item.get("type", "message") for item in provider.requests[-1].body["input"]]
    called, result = "function_call", "function_call_output"
    assert kinds == ["message", "custom_tool_call", called, result, "custom_tool_call_output"]


def post(gateway: Running, body: Any) -> bytes:
    status, _, answer = gateway.post("/v1/responses", body)
    assert status == 200, answer
    return answer
