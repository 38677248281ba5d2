"""Recall: a model searches folded messages without the client seeing it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.gateway.stream_merge import SEPARATOR
from midfold.recall import FOUND, TOOLS
from midfold.testing.doubles import Request
from support.clients import anthropic_client, closing, openai_client
from support.fixtures import assistant, call, number_lines, system, user
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
ANSWER = "It is called FLAMINGO-77."
SECRET_LINE = "the deploy token is called FLAMINGO-77 in the vault"

RECALL = [tool.name for tool in TOOLS]


def history(wire: str) -> list[Any]:
    talk: list[Any] = [user("Remember this: " + SECRET_LINE + ". Now port the parser."), assistant("I will.")]
    for number in range(45):
        talk += call(
            number, "terminal", {"command": f"make {number}"}, number_lines(f"line {{n}} of {number} is fine", 40)
        )
    talk += [assistant("All ported."), user("What was the deploy token called?")]
    return talk if wire == "chat" else [_converted(message, wire) for message in talk]


def _converted(message: Any, wire: str) -> Any:
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        if wire == "anthropic":
            return {"role": "user", "content": [block]}
        return {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
    if not message.get("tool_calls"):
        return message
    (made,) = message["tool_calls"]
    function = made["function"]
    if wire == "anthropic":
        block = {
            "type": "tool_use",
            "id": made["id"],
            "name": function["name"],
            "input": json.loads(function["arguments"]),
        }
        return {"role": "assistant", "content": [block]}
    return {"type": "function_call", "call_id": made["id"], **function}


class Librarian:
    """Model that searches before it answers, then unfolds the hit."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Turn:
        end = request.raw[-9_000:].decode("utf-8", "replace")
        count = len(self.asked)
        if "FLAMINGO" in end and count == 2:
            return Turn(ANSWER)
        if FOUND in end and count == 1:
            handle = end.partition(FOUND)[2].split("mf-")[1].split(" ")[0]
            self.asked.append("unfold")
            return Turn("", (("h2", "context_unfold", {"handle": f"mf-{handle}"}),))
        if "deploy token called" in end and count == 0:
            self.asked.append("search")
            return Turn("Let me look that up.", (("h1", "context_search", {"query": "deploy token"}),))
        return Turn("Fine.")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


def ask(wire: str, url: str, talk: list[Any], stream: bool) -> tuple[str, Any]:
    """Return the text of the answer, and the client's copy of it."""
    options: dict[str, Any]
    if wire == "anthropic":
        client = anthropic_client(url)
        options = {"model": "claude-opus-4-6", "max_tokens": 500, "messages": talk}
        if stream:
            with client.messages.stream(**options) as running_stream:
                message = running_stream.get_final_message()
        else:
            message = client.messages.create(**options)
        assert {block.type for block in message.content} == {"text"}
        text = SEPARATOR.join(block.text for block in message.content)  # type: ignore[union-attr]
        return text, {"role": "assistant", "content": [block.model_dump() for block in message.content]}
    other = openai_client(url)
    if wire == "responses":
        if stream:
            with other.responses.stream(model="gpt-4o", input=talk) as running_items:
                found: Any = running_items.get_final_response()
        else:
            found = other.responses.create(model="gpt-4o", input=talk)
        texts = [part.text for item in found.output for part in item.content]
        return SEPARATOR.join(texts), {"role": "assistant", "content": found.output_text}
    options = {"model": "gpt-4o", "messages": [system(), *talk]}
    if stream:
        with other.chat.completions.stream(**options) as chunks:
            answer = chunks.get_final_completion().choices[0].message
    else:
        answer = other.chat.completions.create(**options).choices[0].message
    assert not answer.tool_calls
    return str(answer.content), {"role": "assistant", "content": answer.content}


def test_hidden_turns_of_a_stream_are_stored_before_its_last_turn_is_asked_for() -> None:
    """The end of a stream reaches the client immediately, and its next request may follow at once."""
    model = Librarian()
    stored: list[int] = []

    def seen(request: Request) -> Turn:
        rows = gateway.sessions.store.database.rows("page_of_hidden_turns", place="", chain="", most=50)
        stored.append(len(rows))
        return model(request)

    with RulesProvider(seen, window=WINDOW) as provider, running(provider.url, window=WINDOW, recall="on") as gateway:
        ask("chat", gateway.url, history("chat"), True)
    assert (model.asked, stored) == (["search", "unfold"], [0, 1, 1])


@pytest.mark.parametrize(
    ("wire", "stream"),
    [(wire, stream) for wire in ("chat", "anthropic", "responses") for stream in (False, True)],
)
def test_the_model_finds_what_was_folded_and_the_client_sees_only_the_answer(wire: str, stream: bool) -> None:
    model = Librarian()
    talk = history(wire)
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW, recall="on") as gateway:
        text, kept = ask(wire, gateway.url, talk, stream)
        said = SEPARATOR.join(["Let me look that up.", ANSWER] if stream else [ANSWER])
        assert (text, model.asked, provider.rejected) == (said, ["search", "unfold"], [])
        assert gateway.account().reason == "recall: 2 hidden rounds"
        last = provider.requests[-1].raw
        ask(wire, gateway.url, [*talk, kept, user("Thank you.")], stream)
        again = provider.requests[-1].raw
        assert provider.rejected == []
    for hidden in (b"context_search", b"h2"):
        assert again.count(hidden) == last.count(hidden)
    assert again.count(b"Let me look that up.") == 1
    before = last[: last.index(b'"h2"')]
    if wire != "anthropic":
        assert again.startswith(before)


def test_hidden_turns_are_put_back_by_another_gateway_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    talk = history("chat")
    with RulesProvider(Librarian(), window=WINDOW) as provider:
        options: dict[str, Any] = {"window": WINDOW, "recall": "on"}
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, **options) as gateway:
            _, kept = ask("chat", gateway.url, talk, False)
            ask("chat", gateway.url, [*talk, kept, user("Thank you.")], False)
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, **options) as gateway:
            ask("chat", gateway.url, [*talk, kept, user("Thank you.")], False)
            assert sessions.check(deep=True) == []
    assert provider.requests[-1].raw == provider.requests[-2].raw
    assert b'"h2"' in provider.requests[-1].raw


def test_tools_are_offered_from_the_first_turn_in_the_same_bytes() -> None:
    own = {"type": "function", "function": {"name": "mine", "parameters": {}}}
    with RulesProvider(Librarian(), window=WINDOW) as provider, running(provider.url, recall="on") as gateway:
        first = {"model": "gpt-4o", "tools": [own], "messages": [user("Hello.")]}
        gateway.post("/v1/chat/completions", first)
        gateway.post("/v1/chat/completions", {**first, "messages": [user("Hello."), assistant("Hi."), user("Bye.")]})
        gateway.post("/v1/messages", {"model": "claude-x", "max_tokens": 9, "messages": [user("Hello.")]})
        _, head, _ = gateway.post(
            "/v1/messages", {"model": "claude-x", "max_tokens": 9, "messages": [user("Hello.")]}, x_midfold_bypass="1"
        )
    one, two, three, four = (request.body.get("tools") for request in provider.requests)
    assert one == two and [tool["function"]["name"] for tool in one] == ["mine", *RECALL]
    assert [tool["name"] for tool in three] == RECALL
    assert (four, head["x-midfold-action"]) == (None, "bypassed")


def test_a_client_with_a_tool_of_that_name_keeps_it() -> None:
    own = {"type": "function", "function": {"name": "context_search", "parameters": {}}}
    with RulesProvider(Librarian(), window=WINDOW) as provider, running(provider.url, recall="on") as gateway:
        _, head, _ = gateway.post("/v1/chat/completions", {"model": "m", "tools": [own], "messages": [user("Hi.")]})
    assert provider.requests[0].body["tools"] == [own]
    assert head["x-midfold-reason"].startswith("recall is off")


def test_a_model_that_never_stops_searching_must_answer() -> None:
    def endless(request: Request) -> Turn:
        if request.body.get("tool_choice") == "none":
            return Turn("Enough.")
        return Turn("", ((f"h{len(request.raw)}", "context_search", {"query": "x"}),))

    with RulesProvider(endless, window=WINDOW) as provider, running(provider.url, recall="on") as gateway:
        _, _, answer = gateway.post("/v1/chat/completions", {"model": "m", "messages": [user("Hi.")]})
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Enough."
    assert (len(provider.requests), provider.rejected) == (9, [])
    assert b"Nothing of this conversation has been folded" in provider.requests[1].raw
