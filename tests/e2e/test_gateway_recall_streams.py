"""Recall preserves streaming: text reaches the client as it is generated, with official clients, in all dialects."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import anthropic
import openai
import pytest

import midfold
from midfold.compaction.receipt import RecallCost
from midfold.gateway import create_app
from midfold.gateway.recall_loop import UNREADABLE
from midfold.gateway.stream_merge import MergedChatStream
from midfold.testing import answers
from midfold.testing.doubles import Request, ScriptedProvider, served
from midfold.transcript import jsonio
from midfold.transcript.sse import EventReader, StreamEvent, event_bytes
from support import provider_replies
from support.fixtures import assistant, user
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

LONGEST = 20.0
HIDDEN = (("h1", "context_search", {"query": "token"}),)
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
USAGE = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
WIRES = ["chat", "anthropic", "responses"]


def reply(wire: str, turn: Turn, number: int = 1) -> answers.Answer:
    make = {
        "chat": provider_replies.chat,
        "anthropic": provider_replies.anthropic,
        "responses": provider_replies.responses,
    }[wire]
    return make(turn, number, "m", CHAT_USAGE if wire == "chat" else USAGE, True)


def words(wire: str, url: str, **more: Any) -> Any:
    """Yield the text deltas of an answer as an official client returns them."""
    if wire == "anthropic":
        client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
        with client.messages.stream(model="m", max_tokens=9, messages=[user("Hi.")], **more) as stream:
            yield from stream.text_stream
        return
    other = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    if wire == "chat":
        for chunk in other.chat.completions.create(model="m", messages=[user("Hi.")], stream=True, **more):
            yield from (choice.delta.content for choice in chunk.choices if choice.delta.content)
        return
    for event in other.responses.create(model="m", input=[user("Hi.")], stream=True, **more):
        if event.type == "response.output_text.delta":
            yield event.delta


class Halting:
    """Provider that continues its stream only after the client has received the first text."""

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self.pieces = pieces
        self.go_on = threading.Event()
        self.waited = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if b"first" in piece and not self.go_on.is_set():
                self.waited += 1
                assert await asyncio.to_thread(self.go_on.wait, LONGEST)
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("wire", WIRES)
def test_words_arrive_while_the_model_is_still_speaking(wire: str) -> None:
    provider = Halting(reply(wire, Turn("These are the first words, " + "and many more come after them. " * 9)).pieces)
    with served(provider) as upstream, running(upstream, recall="on") as gateway:
        got = words(wire, gateway.url)
        begun = next(got)
        assert (provider.waited, provider.go_on.is_set()) == (1, False)
        provider.go_on.set()
        text = begun + "".join(got)
    assert text.startswith("These are the first words") and text.endswith("come after them. ")


@pytest.mark.parametrize("wire", WIRES)
def test_a_turn_that_fails_after_a_hidden_one_reaches_the_client_as_an_error(wire: str) -> None:
    refusal = answers.error(529, "The provider is busy.", "overloaded_error")
    with (
        ScriptedProvider([reply(wire, Turn("One moment.", HIDDEN)), refusal]) as provider,
        running(provider.url, recall="on") as gateway,
        pytest.raises((openai.APIError, anthropic.APIError), match="The provider is busy"),
    ):
        list(words(wire, gateway.url))


@pytest.mark.parametrize("wire", WIRES)
def test_a_refusal_after_a_hidden_turn_that_said_nothing_is_relayed_as_it_came(wire: str) -> None:
    refusal = answers.error(400, "No.", "invalid_request_error")
    with (
        ScriptedProvider([reply(wire, Turn("", HIDDEN)), refusal]) as provider,
        running(provider.url, recall="on") as gateway,
        pytest.raises((openai.BadRequestError, anthropic.BadRequestError)),
    ):
        list(words(wire, gateway.url))


def test_a_conversation_goes_on_from_the_last_of_several_responses() -> None:
    turns = [Turn("One moment.", HIDDEN), Turn("Found it."), Turn("Fine.")]
    script = [reply("responses", turn, number) for number, turn in enumerate(turns, 1)]
    with ScriptedProvider(script) as provider, running(provider.url, recall="on") as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
        with client.responses.stream(model="m", input=[user("Hi.")]) as stream:
            told = stream.get_final_response().id
        assert "".join(words("responses", gateway.url, previous_response_id=told)) == "Fine."
    assert (told, provider.requests[-1].body["previous_response_id"]) == ("resp_1", "resp_2")


def test_usage_is_that_of_the_last_turn_whether_streamed_or_not() -> None:
    """Clients compact by it; the cost of hidden rounds is reported in headers and in the account."""
    for stream in (True, False):
        usages = [{**CHAT_USAGE, "prompt_tokens": 70, "total_tokens": 75}, CHAT_USAGE]
        script = [
            provider_replies.chat(turn, number, "m", usage, stream)
            for number, (turn, usage) in enumerate(zip([Turn("", HIDDEN), Turn("Found it.")], usages, strict=True), 1)
        ]
        with ScriptedProvider(script) as provider, running(provider.url, recall="on") as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
            made: Any = client.chat.completions.create(
                model="m", messages=[user("Hi.")], **({"stream": True} if stream else {})
            )
            usage = next(chunk.usage for chunk in made if chunk.usage) if stream else made.usage
            assert (usage.prompt_tokens, usage.total_tokens) == (100, 105)
            account = gateway.account()
            assert account.usage is not None and account.usage.prompt_tokens == 100
            assert account.hidden == RecallCost(rounds=1, prompt_tokens=70, output_tokens=5)


@pytest.mark.parametrize("wire", WIRES)
def test_an_event_is_decoded_once_though_several_look_at_it(wire: str) -> None:
    """Relaying, id tracking, turn assembly and usage counting share it, for hidden and visible turns."""
    decoded: Counter[str] = Counter()

    def decode(data: str) -> Any:
        decoded[data] += 1
        return jsonio.decode(data)

    replies = [reply(wire, Turn("One moment.", HIDDEN), 1), reply(wire, Turn("Here.", (("c1", "sh", {"a": 1}),)), 2)]
    with ScriptedProvider([*replies, reply(wire, Turn("Bye."), 3)]) as provider, midfold.open("memory:") as sessions:
        config = settings(provider.url, recall="on", api_key_env="KEY")
        app = create_app(config, sessions=sessions, environment={"KEY": "ours"})
        assert app.gateway.recall is not None
        app.gateway.recall.decode = decode
        with served(app) as url:
            assert "Here." in "".join(words(wire, url))
            sent = [event.data for one in replies for event in EventReader().feed(one.body) if event.value]
            assert decoded == Counter(sent)
            if wire == "responses":
                assert "".join(words(wire, url, previous_response_id="resp_1")) == "Bye."
                assert provider.requests[-1].body["previous_response_id"] == "resp_2"


def first_tool_event(wire: str, url: str) -> float:
    """Return the seconds until an official client has the first arguments of its own tool call."""
    started = time.monotonic()
    if wire == "anthropic":
        client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
        with client.messages.stream(model="m", max_tokens=9, messages=[user("Hi.")]) as stream:
            next(event for event in stream if event.type == "input_json")
            return time.monotonic() - started
    other = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    if wire == "chat":
        with other.chat.completions.create(model="m", messages=[user("Hi.")], stream=True) as chunks:
            next(chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls)
            return time.monotonic() - started
    with other.responses.create(model="m", input=[user("Hi.")], stream=True) as events:
        next(event for event in events if event.type == "response.function_call_arguments.delta")
        return time.monotonic() - started


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("recall", ["on", "off"])
def test_a_call_of_the_clients_reaches_it_while_its_turn_goes_on(wire: str, recall: str) -> None:
    """The time to the first byte of a tool call is unchanged by recall: here the provider waits for the client."""
    arguments = {"text": "the first line of the file, " + "and many more of them. " * 40}
    provider = Halting(reply(wire, Turn("", (("c1", "write_file", arguments),))).pieces)
    with served(provider) as upstream, running(upstream, recall=recall) as gateway:
        took = first_tool_event(wire, gateway.url)
        assert (provider.waited, provider.go_on.is_set()) == (1, False)
        provider.go_on.set()
    assert took < LONGEST / 2


def both(wire: str) -> Turn:
    """Return a turn with a client tool call, a recall call, and another client tool call."""
    calls = (("c1", "sh", {"a": 1}), *HIDDEN, ("c2", "sh", {"a": 2}))
    return Turn("Let me see.", calls, thinking="Both at once." if wire == "anthropic" else "")


def read_file_results(wire: str, made: Any) -> list[Any]:
    """Return the client's next messages: its copy of the answer, and the results of its calls."""
    if wire == "anthropic":
        blocks = [block.model_dump(exclude_none=True) for block in made.content]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call, "content": f"ran {call}"} for call in calls]
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    if wire == "chat":
        message = made.choices[0].message
        calls = [
            one.model_dump(include={"id", "type", "function"}, exclude={"function": {"parsed_arguments"}})
            for one in message.tool_calls
        ]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"ran {call['id']}"} for call in calls]
        return [{"role": "assistant", "content": message.content, "tool_calls": calls}, *results]
    items = [item.model_dump(exclude_none=True) for item in made.output]
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [*items, *({"type": "function_call_output", "call_id": call, "output": f"ran {call}"} for call in calls)]


def streamed(wire: str, url: str, talk: list[Any], **more: Any) -> Any:
    if wire == "anthropic":
        client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
        with client.messages.stream(model="m", max_tokens=99, messages=talk, **more) as stream:
            return stream.get_final_message()
    other = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    if wire == "chat":
        with other.chat.completions.stream(model="m", messages=talk, **more) as chunks:
            return chunks.get_final_completion()
    with other.responses.stream(model="m", input=talk, **more) as events:
        return events.get_final_response()


@pytest.mark.parametrize("wire", WIRES)
def test_hidden_calls_beside_the_clients_are_taken_out_of_its_turn_and_put_back_with_their_results(wire: str) -> None:
    def model(request: Request) -> Turn:
        return Turn("Done.") if b"ran c2" in request.raw else both(wire)

    with RulesProvider(model, window=9_000) as provider, running(provider.url, recall="on") as gateway:
        talk: list[Any] = [user("Hi.")]
        made = streamed(wire, gateway.url, talk)
        said = read_file_results(wire, made)
        assert "context_search" not in str(said) and "ran c1" in str(said) and "ran c2" in str(said)
        assert gateway.account().hidden.rounds == 0
        talk += said
        streamed(wire, gateway.url, talk)
        talk += [{"role": "assistant", "content": "Done."}, user("Thanks.")]
        streamed(wire, gateway.url, talk)
        assert provider.rejected == []
    _, second, third = provider.requests
    assert b'"h1"' in second.raw and b"Nothing of this conversation" in second.raw
    key = "input" if wire == "responses" else "messages"
    before, after = (bytes(jsonio.entries(request.raw)[key]).rstrip(b"]") for request in (second, third))
    assert after.startswith(before)


def is_calling(made: Any) -> bool:
    return any(word in str(made) for word in ("ToolUseBlock", "ParsedFunctionToolCall", "ResponseFunctionToolCall"))


SEVERAL = {
    "ours": (*HIDDEN, ("h2", "context_timeline", {"handle": "mf-123456"})),
    "ours first": (*HIDDEN, ("c1", "sh", {"a": 1}), ("h2", "context_unfold", {}), ("c2", "sh", {"a": 2})),
    "theirs first": (("c1", "sh", {"a": 1}), *HIDDEN),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("shape", SEVERAL)
def test_hidden_rounds_are_legal_with_thoughts_words_and_several_calls(wire: str, shape: str) -> None:
    thinking = "Hm." if wire == "anthropic" else ""

    def model(request: Request) -> Turn:
        asked = len(provider.requests)
        if asked == 1:
            return Turn("Let me see.", SEVERAL[shape], thinking=thinking)
        again = (("c9", "sh", {"a": 3}),) if asked == 2 and shape == "ours first" else ()
        return Turn("Done.", again, thinking=thinking)

    with RulesProvider(model, window=9_000) as provider, running(provider.url, recall="on") as gateway:
        talk: list[Any] = [user("Hi.")]
        for number in range(3):
            made = streamed(wire, gateway.url, talk)
            talk += read_file_results(wire, made) if is_calling(made) else [assistant("Done."), user(f"And {number}?")]
        assert provider.rejected == []
    assert "context_" not in str(talk) and "Done." in str(talk)


def test_a_call_with_arguments_that_were_cut_off_is_told_so() -> None:
    first, last = (
        provider_replies.chat(turn, 1, "m", USAGE, False)
        for turn in (Turn("", (("h1", "context_search", {"query": "x"}),)), Turn("Well."))
    )
    cut = jsonio.decode(first.body)
    cut["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"query": "x'
    with ScriptedProvider([answers.value(cut), last]) as provider, running(provider.url, recall="on") as gateway:
        status, _, answer = gateway.post("/v1/chat/completions", {"model": "m", "messages": [user("Hi.")]})
    assert (status, UNREADABLE.encode() in provider.requests[-1].raw) == (200, True)
    assert b"Well." in answer


def test_a_response_that_the_provider_keeps_gets_the_results_of_what_was_taken_out_of_it() -> None:
    script = [reply("responses", both("responses"), 1), reply("responses", Turn("Fine."), 2)]
    with ScriptedProvider(script) as provider, running(provider.url, recall="on") as gateway:
        made = streamed("responses", gateway.url, [user("Hi.")])
        results = [item for item in read_file_results("responses", made) if item["type"] == "function_call_output"]
        streamed("responses", gateway.url, results, previous_response_id=made.id)
    sent = provider.requests[-1].body["input"]
    assert {item["call_id"] for item in sent} == {"h1", "c1", "c2"}


def test_the_usage_of_a_stream_that_went_on_after_words_is_the_last_turns() -> None:
    script = [
        provider_replies.anthropic(turn, number, "m", {**USAGE, "input_tokens": size}, True)
        for number, (turn, size) in enumerate([(Turn("One moment.", HIDDEN), 70), (Turn("Here."), 300)], 1)
    ]
    with ScriptedProvider(script) as provider, running(provider.url, recall="on") as gateway:
        made = streamed("anthropic", gateway.url, [user("Hi.")])
    assert (made.usage.input_tokens, made.usage.output_tokens) == (300, 5)


def test_a_name_that_comes_in_pieces_is_waited_for() -> None:
    def delta(**function: str) -> StreamEvent:
        value = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": function}]}}]}
        return next(EventReader().feed(event_bytes("", value)))

    ours, theirs, plain = (MergedChatStream(frozenset({"context_search"})) for _ in range(3))
    assert (
        ours.feed(delta(name="context_")) == ours.feed(delta(name="search")) == ours.feed(delta(arguments="{")) == b""
    )
    assert not ours.is_for_client
    assert theirs.feed(delta(name="context_")) == b"" and theirs.feed(delta(name="lines")) != b""
    assert theirs.is_for_client
    assert plain.feed(delta(name="context")) == b"" and plain.feed(delta(arguments="{}")) != b""
