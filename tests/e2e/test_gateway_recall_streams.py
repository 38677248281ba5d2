"""Recall does not cost streaming: words reach the client as they come, through official clients, in all dialects."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import anthropic
import openai
import pytest

import midfold
from midfold.gateway import create_app
from midfold.testing import answers
from midfold.testing.doubles import ScriptedProvider, served
from midfold.transcript import jsonio
from midfold.transcript.sse import EventReader
from support import provider_replies
from support.fixtures import user
from support.gateways import running, settings
from support.provider_replies import Turn

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
    """The words of an answer as an official client gives them, one by one."""
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
    """A provider that goes on with its stream only when the client has got the first words."""

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


def test_usage_is_that_of_all_turns_whether_streamed_or_not() -> None:
    for stream in (True, False):
        script = [
            provider_replies.chat(turn, number, "m", CHAT_USAGE, stream)
            for number, turn in enumerate([Turn("", HIDDEN), Turn("Found it.")], 1)
        ]
        with ScriptedProvider(script) as provider, running(provider.url, recall="on") as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
            made: Any = client.chat.completions.create(
                model="m", messages=[user("Hi.")], **({"stream": True} if stream else {})
            )
            usage = next(chunk.usage for chunk in made if chunk.usage) if stream else made.usage
            assert (usage.prompt_tokens, usage.total_tokens) == (200, 210)
            account = gateway.account()
            assert account.usage is not None and account.usage.prompt_tokens == 200


@pytest.mark.parametrize("wire", WIRES)
def test_an_event_is_decoded_once_though_several_look_at_it(wire: str) -> None:
    """Whoever relays, keeps ids, puts the turn together and counts what it cost, of hidden turns and of others."""
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
