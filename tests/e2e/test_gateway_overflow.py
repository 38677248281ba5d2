"""Requests that exceed the provider's window, through a real gateway with official clients."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner

import midfold
from midfold.cli.main import main
from midfold.gateway import overflows
from midfold.testing.answers import anthropic_stream, events
from midfold.testing.doubles import Request, ScriptedProvider
from support.clients import anthropic_client, closing, openai_client
from support.fixtures import number_lines
from support.gateways import Running, running, settings
from support.provider_replies import Turn, refused_stream
from support.rules_provider import RulesProvider

REAL = 12_000
BELIEVED = 200_000
WIRES = ("chat", "responses", "anthropic")


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    with closing():
        yield


def fine(request: Request) -> Turn:
    return Turn("fine")


def turns(count: int, asked: str = "Port the parser to Rust.") -> list[dict[str, Any]]:
    """Return long user messages and answers."""
    out: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    for number in range(count):
        said = number_lines(f"line {{n}} of answer {number}: nothing special happens in here", 12)
        out += [{"role": "assistant", "content": said}, {"role": "user", "content": f"And what is step {number + 1}?"}]
    return out


def ask(gateway: Running, wire: str, messages: list[dict[str, Any]]) -> str:
    """Return the text of a streamed answer as the official client reads it."""
    if wire == "anthropic":
        client = anthropic_client(gateway.url)
        with client.messages.stream(model="claude-x", max_tokens=100, messages=messages) as stream:  # type: ignore[arg-type]
            return stream.get_final_text()
    openai = openai_client(gateway.url)
    if wire == "chat":
        chunks = openai.chat.completions.create(model="gpt-4o", messages=messages, stream=True)  # type: ignore[arg-type]
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    events = openai.responses.create(model="gpt-4o", input=messages, stream=True)  # type: ignore[arg-type]
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.parametrize("recall", ["off", "on"])
@pytest.mark.parametrize("wire", WIRES)
def test_an_overflow_inside_a_stream_is_recovered_and_its_limit_believed(wire: str, recall: str) -> None:
    with (
        RulesProvider(fine, window=REAL, in_stream=True) as provider,
        running(provider.url, window=BELIEVED, recall=recall) as gateway,
    ):
        long = turns(60)
        assert ask(gateway, wire, long) == "fine"
        assert (gateway.account().action, len(provider.requests)) == ("recovered", 2)
        assert len(provider.requests[1].raw) < len(provider.requests[0].raw)
        longer = [*long, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "On."}]
        assert ask(gateway, wire, longer) == "fine"
        assert (gateway.account(1).action, len(provider.rejected)) == ("checkpoint", 1)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_another_failure_inside_a_stream_is_relayed_byte_for_byte(encoding: str) -> None:
    told = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answer = events([{"type": "ping"}, told], named=True)
    if encoding:
        answer = msgspec.structs.replace(answer, pieces=(gzip.compress(answer.body),))
        answer = answer.with_headers(content_encoding=encoding)
    with ScriptedProvider(then=answer) as provider, running(provider.url, window=BELIEVED) as gateway:
        body = {"model": "claude-x", "max_tokens": 9, "stream": True, "messages": turns(30)}
        status, head, relayed = gateway.post("/v1/messages", body)
    assert (status, relayed, len(provider.requests)) == (200, answer.body, 1)
    assert head["x-midfold-action"] == "relayed"


def test_an_overflow_inside_a_compressed_stream_is_recovered() -> None:
    def refuse(request: Request) -> Any:
        if len(request.raw) < 30_000:
            return anthropic_stream("fine")
        told = refused_stream("anthropic", "claude-x", "prompt is too long: 20000 tokens > 12000 maximum")
        return msgspec.structs.replace(told, pieces=(gzip.compress(told.body),)).with_headers(content_encoding="gzip")

    with ScriptedProvider(then=refuse) as provider, running(provider.url, window=BELIEVED) as gateway:
        body = {"model": "claude-x", "max_tokens": 9, "stream": True, "messages": turns(60)}
        status, head, _ = gateway.post("/v1/messages", body, accept_encoding="gzip")
    assert (status, head["x-midfold-action"], len(provider.requests)) == (200, "recovered", 2)


def test_a_stream_that_says_nothing_for_long_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflows, "HELD_SECONDS", 0.2)
    begun = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": []}}
    slow = events([begun, {"type": "ping"}, {"type": "message_stop"}], named=True).slow(1.0)
    body = json.dumps({"model": "claude-x", "max_tokens": 9, "stream": True, "messages": turns(30)})
    with ScriptedProvider(then=slow) as provider, running(provider.url, window=BELIEVED) as gateway:
        place = urlsplit(gateway.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        connection.request("POST", "/v1/messages", body)
        answer = connection.getresponse()
        before = time.monotonic()
        first = answer.read1()
        rest = answer.read()
        took = time.monotonic() - before
        connection.close()
    assert first + rest == slow.body and b"message_stop" not in first
    assert took > 0.5, "what came after the first event was relayed as it came"


def grow(gateway: Running, wire: str, count: int, **headers: str) -> list[str]:
    """Run a session of so many growing requests; return the gateway's action on each."""
    made = []
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}[wire]
    for number in range(count):
        key = "input" if wire == "responses" else "messages"
        body = {"model": "claude-x" if wire == "anthropic" else "gpt-4o", key: turns(number)}
        status, head, _ = gateway.post(path, body | ({"max_tokens": 50} if wire == "anthropic" else {}), **headers)
        assert status == 200
        made.append(head["x-midfold-action"])
    return made


@pytest.mark.parametrize("wire", WIRES)
def test_a_session_in_a_window_that_nobody_names_is_refused_at_most_once(wire: str) -> None:
    with (
        RulesProvider(fine, window=REAL, names_limit=False) as provider,
        running(provider.url, window=BELIEVED) as gateway,
    ):
        made = grow(gateway, wire, 140)
    assert (made.count("recovered"), len(provider.rejected)) == (1, 1)
    folds = sum(action in ("compacted", "pruned", "recovered") for action in made)
    assert 2 <= folds <= 14, "no more than one fold in ten requests"


def test_a_window_that_nobody_names_is_learned_for_one_key_model_and_beta_header() -> None:
    with (
        RulesProvider(fine, window=REAL, names_limit=False) as provider,
        running(provider.url, window=BELIEVED) as gateway,
    ):
        ours = {"authorization": "Bearer eve", "anthropic_beta": "b, a"}
        long = {"model": "claude-x", "max_tokens": 50, "messages": turns(60)}
        assert gateway.post("/v1/messages", long, **ours)[1]["x-midfold-action"] == "recovered"
        provider.window = BELIEVED
        other = {**long, "messages": turns(60, "Port the lexer to Go.")}
        assert gateway.post("/v1/messages", other, authorization="Bearer bob")[1]["x-midfold-action"] == "relayed"
        assert gateway.post("/v1/messages", other, authorization="Bearer eve")[1]["x-midfold-action"] == "relayed"
        named = {**other, "model": "claude-y"}
        assert gateway.post("/v1/messages", named, **ours)[1]["x-midfold-action"] == "relayed"
        again = {"authorization": "Bearer eve", "anthropic_beta": "a,b"}
        assert gateway.post("/v1/messages", other, **again)[1]["x-midfold-action"] == "compacted"


def test_what_was_learned_survives_a_restart_is_shown_by_doctor_and_can_be_forgotten(tmp_path: Path) -> None:
    url, settings = f"sqlite:///{tmp_path}/g.db", tmp_path / "config.yaml"
    settings.write_text(f"store:\n  url: {url}\n")

    def doctor(*options: str) -> str:
        return CliRunner().invoke(main, ["doctor", "--config", str(settings), *options]).output

    with RulesProvider(fine, window=REAL, names_limit=False) as provider:
        with midfold.open(url) as sessions, running(provider.url, window=BELIEVED, sessions=sessions) as gateway:
            assert ask(gateway, "anthropic", turns(60)) == "fine"
            gateway.account()
        shown = doctor()
        assert "claude-x at 127.0.0.1" in shown and "was rejected" in shown and "Bearer" not in shown
        with midfold.open(url) as sessions, running(provider.url, window=BELIEVED, sessions=sessions) as gateway:
            assert ask(gateway, "anthropic", turns(60, "Port the lexer to Go.")) == "fine"
            assert (gateway.account().action, len(provider.rejected)) == ("compacted", 1)
        assert "1 deleted" in doctor("--forget-windows")
        assert "was rejected" not in doctor()
        with midfold.open(url) as sessions, running(provider.url, window=BELIEVED, sessions=sessions) as gateway:
            assert ask(gateway, "anthropic", turns(60, "Write a formatter.")) == "fine"
            assert (gateway.account().action, len(provider.rejected)) == ("recovered", 2)


def test_the_beta_header_for_long_contexts_raises_the_window() -> None:
    long = {"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": [*turns(900)]}
    config = settings(None)
    config = msgspec.structs.replace(config, models={})
    with RulesProvider(fine, window=10**7) as provider:
        gateway_settings = msgspec.structs.replace(config.gateway, upstream=provider.url)
        with running(provider.url, config=msgspec.structs.replace(config, gateway=gateway_settings)) as gateway:
            long_context = "fine-grained-tool-streaming-2025-05-14, context-1m-2025-08-07"
            _, head, _ = gateway.post("/v1/messages", long, anthropic_beta=long_context)
            assert head["x-midfold-action"] == "relayed"
            assert gateway.post("/v1/messages", long)[1]["x-midfold-action"] == "compacted"
