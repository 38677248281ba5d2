"""Recall by default: the tools are added with a conversation's first fold, do not change, and find folded messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.gateway.recall_loop import MAX_ROUNDS, RESULT_CUT
from midfold.recall import FOUND, NAMES, TOOLS, Recall
from midfold.testing.doubles import Request
from midfold.transcript import jsonio
from midfold.transcript.tools import ToolSpec
from support.clients import anthropic_client, closing, openai_client
from support.fixtures import assistant, user
from support.gateways import Running, running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
ASKED = "What is knob 11 of part_2.py set to?"
READ = ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
WIRES = ["chat", "anthropic", "responses"]
DIALECTS = {"chat": "openai-chat", "anthropic": "anthropic", "responses": "openai-responses"}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


def file_text(path: str) -> str:
    """Return many similar lines, so that a summary has no reason to keep one of them."""
    part, lines = int(path.rpartition("_")[2].removesuffix(".py")), 60 if path.startswith("large/") else 20
    return "\n".join(
        f"part_{part} knob {line} is set to {(part * 7919 + line * 104_729) % 9_973}" for line in range(lines)
    )


FACT = file_text("src/part_2.py").splitlines()[11]
ANSWER = f"It is {FACT.split()[-1]}."


class Worker:
    """Model that reads a file on request, and looks up what it no longer sees, if it can."""

    def __init__(self, folder: str = "src") -> None:
        self.folder = folder
        self.reads = 0
        self.searched = 0

    def __call__(self, request: Request) -> Turn:
        told = request.raw.decode("utf-8", "replace")
        *_, last = request.body.get("messages") or request.body["input"]
        if '"go on"' in json.dumps(last):
            self.reads += 1
            return Turn("", ((f"c{self.reads}", "read_file", {"path": f"{self.folder}/part_{self.reads}.py"}),))
        if ASKED not in told:
            return Turn("Read.")
        if FACT in told:
            return Turn(ANSWER)
        if FOUND in json.dumps(last) or not is_offered(request):
            return Turn("I do not know.")
        self.searched += 1
        return Turn("", (("h1", "context_search", {"query": "part_2 knob 11"}),))


class Client:
    """Client of one wire format that keeps its conversation as its SDK returns it."""

    def __init__(self, wire: str, url: str, *, stream: bool = False, tools: bool = True) -> None:
        self.wire, self.stream = wire, stream
        self._sdk: Any = anthropic_client(url) if wire == "anthropic" else openai_client(url)
        self.talk: list[Any] = []
        self.tools = [READ.definition(DIALECTS[wire])] if tools else []
        self.prompts: list[int] = []

    def say(self, text: str) -> str:
        """Run one user turn with all its tool calls."""
        self.talk.append(user(text))
        while True:
            said, calls = getattr(self, f"_{self.wire}")()
            if not calls:
                return str(said)
            self._answer(calls)

    def _answer(self, calls: list[tuple[str, str]]) -> None:
        for call, path in calls:
            text = file_text(path)
            if self.wire == "anthropic":
                block = {"type": "tool_result", "tool_use_id": call, "content": text}
                self.talk.append({"role": "user", "content": [block]})
            elif self.wire == "chat":
                self.talk.append({"role": "tool", "tool_call_id": call, "content": text})
            else:
                self.talk.append({"type": "function_call_output", "call_id": call, "output": text})

    def _anthropic(self) -> tuple[str, list[tuple[str, str]]]:
        options: Any = {"model": "claude-opus-4-6", "max_tokens": 400, "messages": self.talk, "tools": self.tools}
        if self.stream:
            with self._sdk.messages.stream(**options) as events:
                made = events.get_final_message()
        else:
            made = self._sdk.messages.create(**options)
        self.prompts.append(made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0))
        self.talk.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in made.content]}
        )
        calls = [(block.id, str(block.input["path"])) for block in made.content if block.type == "tool_use"]
        return "".join(block.text for block in made.content if block.type == "text"), calls

    def _chat(self) -> tuple[str, list[tuple[str, str]]]:
        options: Any = {"model": "gpt-4o", "messages": self.talk, "tools": self.tools}
        if self.stream:
            options["stream_options"] = {"include_usage": True}
            with self._sdk.chat.completions.stream(**options) as events:
                whole: Any = events.get_final_completion()
        else:
            whole = self._sdk.chat.completions.create(**options)
        made = whole.choices[0].message
        self.prompts.append(whole.usage.prompt_tokens)
        calls = made.tool_calls or []
        kept: dict[str, Any] = {"role": "assistant", "content": made.content}
        if calls:
            kept["tool_calls"] = [
                {
                    "id": one.id,
                    "type": "function",
                    "function": {"name": one.function.name, "arguments": one.function.arguments},
                }
                for one in calls
            ]
        self.talk.append(kept)
        return str(made.content), [(one.id, json.loads(one.function.arguments)["path"]) for one in calls]

    def _responses(self) -> tuple[str, list[tuple[str, str]]]:
        options: Any = {"model": "gpt-4o", "input": self.talk, "tools": self.tools, "store": False}
        if self.stream:
            with self._sdk.responses.stream(**options) as events:
                made: Any = events.get_final_response()
        else:
            made = self._sdk.responses.create(**options)
        self.prompts.append(made.usage.input_tokens)
        self.talk += [item.model_dump(exclude_none=True) for item in made.output]
        calls = [
            (item.call_id, json.loads(item.arguments)["path"]) for item in made.output if item.type == "function_call"
        ]
        return made.output_text, calls


def work(client: Client, turns: int) -> None:
    for _ in range(turns):
        client.say("go on")


def is_offered(request: Request) -> bool:
    tools = request.body.get("tools") or []
    return {tool.get("name") or tool["function"]["name"] for tool in tools} >= NAMES


@pytest.mark.parametrize("wire", WIRES)
def test_a_fact_read_at_turn_2_is_found_at_turn_40_by_default(wire: str) -> None:
    model = Worker("large")
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        client = Client(wire, gateway.url, stream=wire == "anthropic")
        work(client, 39)
        assert client.say(ASKED) == ANSWER
        actions = [account.action for account in gateway.accounts]
        offered = [is_offered(request) for request in provider.requests]
    assert (provider.rejected, model.searched) == ([], 1)
    first = offered.index(True)
    assert first == next(place for place, action in enumerate(actions) if action != "relayed") and all(offered[first:])
    assert "compacted" in actions
    assert len({json.dumps(request.body["tools"]) for request in provider.requests[first:]}) == 1


def test_without_recall_the_same_fact_is_lost() -> None:
    with (
        RulesProvider(Worker("large"), window=WINDOW) as provider,
        running(provider.url, window=WINDOW, recall="off") as gateway,
    ):
        client = Client("chat", gateway.url)
        work(client, 39)
        assert client.say(ASKED) == "I do not know."
    assert not any(map(is_offered, provider.requests))


def past(wire: str = "chat", count: int = 60) -> list[Any]:
    """Return the client's earlier messages, which exceed the window."""
    client = Client(wire, "http://localhost")
    talk: list[Any] = [user("Read the parts.")]
    for number in range(1, count + 1):
        made = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{number}.py"})}
        call = {"id": f"c{number}", "type": "function", "function": made}
        if wire == "chat":
            talk.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif wire == "anthropic":
            use = {"type": "tool_use", "id": f"c{number}", "name": "read_file", "input": json.loads(made["arguments"])}
            talk.append({"role": "assistant", "content": [use]})
        else:
            talk.append({"type": "function_call", "call_id": f"c{number}", **made})
        client.talk = talk
        client._answer([(f"c{number}", f"src/part_{number}.py")])
    return [*talk, assistant("Read."), user(ASKED)]


def body(talk: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "tools": [READ.definition("openai-chat")], "messages": talk, **more}


def sent_tools(request: Request) -> bytes:
    """Return the tool list that a provider received, as bytes."""
    raw: Any = jsonio.entries(request.raw).get("tools", b"")
    return bytes(raw)


def post(gateway: Running, talk: list[Any], **more: Any) -> str:
    status, _, answer = gateway.post("/v1/chat/completions", body(talk, **more))
    assert status == 200
    return str(json.loads(answer)["choices"][0]["message"]["content"])


def test_once_offered_they_stay_byte_for_byte_after_an_undo_a_restart_and_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    talk = past()
    longer = [*talk, assistant(ANSWER), user("Thank you.")]
    with RulesProvider(Worker(), window=40_000) as provider:
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, window=WINDOW) as gateway:
            assert post(gateway, talk) == ANSWER
            post(gateway, longer, tool_choice="none")
            offered = sent_tools(provider.requests[-1])
            (info,) = sessions.all()
            sessions.session(info.name).undo()
        monkeypatch.setattr(Recall, "tools", TOOLS[:1])
        options: dict[str, Any] = {"window": 40_000, "compression": {"threshold": 0.9}}
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, **options) as gateway:
            assert gateway.app.gateway.preparer.measurer.reads_everything is False
            gateway.app.gateway.preparer.measurer.reads_everything = True
            post(gateway, longer)
            assert gateway.account().action == "relayed"
            post(gateway, [user("Another conversation."), assistant("Yes?"), user("Bye.")])
        *_, undone, other = provider.requests
    assert sent_tools(undone) == offered and is_offered(undone)
    assert len(undone.body["messages"]) > len(longer)
    assert not is_offered(other)
    assert provider.rejected == []


@pytest.mark.parametrize(
    ("more", "recall"),
    [
        ({"tools": []}, "auto"),
        ({"tools": None}, "auto"),
        ({"tools": [{"type": "function", "function": {"name": "context_search", "parameters": {}}}]}, "auto"),
        ({}, "off"),
    ],
)
def test_they_are_not_offered_where_they_do_not_belong(more: dict[str, Any], recall: str) -> None:
    with (
        RulesProvider(Worker(), window=WINDOW) as provider,
        running(provider.url, window=WINDOW, recall=recall) as gateway,
    ):
        status, head, _ = gateway.post("/v1/chat/completions", body(past(), **more))
        (info,) = gateway.sessions.all()
        record = gateway.sessions.session(info.name).receipts()[-1]
    (request,) = provider.requests
    assert (status, head["x-midfold-action"]) == (200, "compacted")
    assert request.body.get("tools") == more.get("tools", body([])["tools"])
    assert b"Originals unfold by handle" not in request.raw
    assert record.receipt.recall is None


def test_the_receipt_says_what_the_tools_and_the_hidden_rounds_cost() -> None:
    talk = past()
    with RulesProvider(Worker(), window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        status, head, answer = gateway.post(
            "/v1/chat/completions", body([{"role": "system", "content": "Be kind. " * 99}, *talk])
        )
        assert (status, head["x-midfold-hidden-rounds"]) == (200, "1")
        shown = json.loads(answer)["usage"]
        hidden, last = provider.served
        assert shown["prompt_tokens"] == last.prompt > hidden.prompt
        assert int(head["x-midfold-hidden-tokens"]) >= hidden.prompt
        assert b"Originals unfold by handle" in provider.requests[0].raw
        more = [*past(count=110)[len(talk) - 1 :]]
        longer = [{"role": "system", "content": "Be kind. " * 99}, *talk, assistant(ANSWER), user("More."), *more]
        gateway.post("/v1/chat/completions", body(longer))
        (info,) = gateway.sessions.all()
        first, second = [record.receipt.recall for record in gateway.sessions.session(info.name).receipts()]
    fixed = len(json.dumps(provider.requests[0].body["tools"])) / 4 + 99 * 3
    assert 0.5 * fixed < first.introduced_tokens < 2 * fixed
    assert (first.rounds, second.introduced_tokens, second.rounds) == (0, 0, 1)
    assert second.prompt_tokens == hidden.prompt


def test_a_window_that_they_would_crowd_has_none() -> None:
    with RulesProvider(Worker(), window=9_000) as provider, running(provider.url, window=9_000) as gateway:
        status, head, _ = gateway.post("/v1/chat/completions", body(past()))
    assert (status, head["x-midfold-action"]) == (200, "compacted")
    assert head["x-midfold-reason"] == "recall is off: its tools are too large for this context window"
    assert not is_offered(provider.requests[-1])


def test_an_overflow_that_is_folded_away_brings_the_tools_and_runs_them() -> None:
    with RulesProvider(Worker(), window=WINDOW) as provider, running(provider.url, window=40_000) as gateway:
        assert post(gateway, past()) == ANSWER
        assert gateway.account().action == "recovered"
        assert gateway.account().hidden.rounds == 1
    assert [is_offered(request) for request in provider.requests] == [False, True, True]


def test_prefixes_are_byte_identical_between_folds() -> None:
    model = Worker()
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        talk = past()
        post(gateway, talk)
        for number in range(4):
            talk += [assistant(ANSWER), user(f"Thank you {number}.")]
            post(gateway, talk)
        actions = [account.action for account in gateway.accounts]
    assert actions == ["compacted", *["checkpoint"] * 4]
    messages = [bytes(jsonio.entries(request.raw)["messages"]).rstrip(b"]") for request in provider.requests]
    for before, after in pairwise(messages):
        assert after.startswith(before)
    assert len({sent_tools(request) for request in provider.requests}) == 1
    assert all(served.bill.read > 0.8 * served.prompt for served in provider.served[2:])


@pytest.mark.parametrize("asked", [{"query": "password heron"}, {"pattern": "heron-n"}])
def test_the_tools_find_nothing_of_another_conversation(asked: dict[str, str]) -> None:
    """Not even one that began with the same messages and is stored in the same session."""
    talk = past()
    other = [
        *talk[:-2],
        assistant("Read."),
        user("The password is heron-nest-5150. Say yes."),
        assistant("Yes."),
        *past(count=110)[-200:],
    ]

    def curious(request: Request) -> Turn:
        *_, last = request.body["messages"]
        if last["role"] == "tool":
            return Turn(last["content"][:400])
        return Turn("", (("h1", "context_search", asked),)) if is_offered(request) else Turn("No.")

    with RulesProvider(curious, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        assert "heron-nest-5150" in post(gateway, other)
        assert "heron-nest" not in post(gateway, talk)
        assert provider.rejected == []


def test_what_the_model_still_sees_is_no_hit_where_there_are_others() -> None:
    def curious(request: Request) -> Turn:
        *_, last = request.body["messages"]
        if last["role"] == "tool":
            return Turn(last["content"])
        return Turn("", (("h1", "context_search", {"query": "read the parts knob"}),))

    with RulesProvider(curious, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        answer = post(gateway, past())
    assert b"Read the parts." in provider.requests[0].raw
    assert " knob " in answer and "Read the parts." not in answer


def test_after_the_time_for_hidden_rounds_the_model_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midfold.gateway.recall_loop.MAX_ROUND_SECONDS", 0.0)
    with RulesProvider(Worker(), window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        post(gateway, past())
    (request,) = provider.requests
    assert is_offered(request) and request.body["tool_choice"] == "none"


def test_what_hidden_rounds_bring_is_bounded() -> None:
    def greedy(request: Request) -> Turn:
        if request.body.get("tool_choice") == "none":
            return Turn("Enough.")
        calls = tuple((f"h{len(request.raw)}{number}", "context_search", {"query": "knob"}) for number in range(12))
        return Turn("", calls) if is_offered(request) else Turn("No.")

    with RulesProvider(greedy, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        assert post(gateway, past(), max_tokens=500) == "Enough."
    assert provider.rejected == []
    assert len(provider.requests) < MAX_ROUNDS
    assert RESULT_CUT.encode() in provider.requests[-1].raw
