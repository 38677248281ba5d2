"""Compaction endpoints used by Codex and OpenAI's clients; and their WebSockets, which are refused."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from midfold.compaction.handoff import MARKER
from midfold.gateway.compact_endpoint import _pack, expand_compactions
from midfold.testing.doubles import Request, refusing_url, served
from support.attacks import behind_the_door
from support.clients import closing, openai_client
from support.fixtures import number_lines
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
TRIGGER = {"type": "compaction_trigger"}
MOST = 1_000_000


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    with closing():
        yield


def items(count: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "user", "content": "Port the parser to Rust."}]
    for number in range(count):
        made = {"type": "function_call", "call_id": f"c{number}", "name": "sh", "arguments": "{}"}
        text = number_lines(f"line {{n}} of step {number}", 30)
        out += [made, {"type": "function_call_output", "call_id": f"c{number}", "output": "done"}]
        out += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And step {number + 1}?"}]
    return [*out, {"role": "user", "content": "And now?"}]


def fine(request: Request) -> Turn:
    return Turn("fine")


def test_a_trigger_is_answered_with_one_item_that_any_provider_goes_on_with() -> None:
    with RulesProvider(fine, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        client = openai_client(gateway.url)
        events = list(client.responses.create(model="gpt-x", input=[*items(20), TRIGGER], stream=True))  # type: ignore[list-item]
        assert provider.requests == []
        done = [event.item for event in events if event.type == "response.output_item.done"]
        (item,) = [one.model_dump(exclude_none=True) for one in done]
        assert (item["type"], events[-1].type) == ("compaction", "response.completed")
        assert events[-1].response.output[0].id == item["id"]
        going_on = [item, {"role": "user", "content": "On."}]
        answer = client.responses.create(model="gpt-x", input=going_on)  # type: ignore[arg-type]
        client.responses.create(model="gpt-x", input=[*going_on, {"role": "user", "content": "More."}])  # type: ignore[arg-type]
        assert answer.output_text == "fine" and provider.rejected == []
        first, second = (request.body["input"] for request in provider.requests)
        assert not any(one.get("type") == "compaction" for one in first)
        assert first[-1] == going_on[-1] and any(MARKER in json.dumps(one) for one in first)
        assert len(json.dumps(first)) < len(json.dumps(items(20))) and second[: len(first)] == first


def test_a_trigger_without_a_stream_and_where_the_provider_keeps_the_conversation() -> None:
    with running(refusing_url(), window=WINDOW) as gateway:
        status, _, answer = gateway.post("/v1/responses", {"model": "gpt-x", "input": [*items(20), TRIGGER]})
        assert (status, [one["type"] for one in json.loads(answer)["output"]]) == (200, ["compaction"])
        kept = {"model": "gpt-x", "previous_response_id": "resp_1", "input": [*items(1), TRIGGER]}
        assert gateway.post("/v1/responses", kept)[0] == 502, "the provider's to answer"


@pytest.mark.parametrize(
    "content", ["midfold1.", "midfold1.!!!", "midfold1.AAAA", "midfold2.x", 7, _pack([{"role": "user"}] * 100_000)]
)
def test_an_item_that_cannot_be_read_or_is_too_large_is_left_as_it_is(content: Any) -> None:
    body = json.dumps({"input": [{"type": "compaction", "encrypted_content": content}], "model": "midfold1."}).encode()
    assert json.loads(expand_compactions(body, MOST)) == json.loads(body)


def test_many_small_items_do_not_become_a_huge_request() -> None:
    packed = {"type": "compaction", "encrypted_content": _pack([{"role": "user", "content": "x" * 200_000}])}
    body = json.dumps({"input": [packed] * 50}).encode()
    assert len(expand_compactions(body, MOST)) < 2 * MOST


def handshake(url: str) -> bytes:
    place = urlsplit(url)
    lines = ["GET /v1/responses HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        connection.settimeout(10)
        return connection.recv(65_536)


def test_a_websocket_is_refused_at_once_and_nothing_is_sent_upstream() -> None:
    started = time.monotonic()
    with RulesProvider(fine, window=WINDOW) as provider:
        with behind_the_door(settings(provider.url)) as url:
            answer = handshake(url)
        assert answer.startswith(b"HTTP/1.1 426 ") and b"upgrade: HTTP/1.1" in answer and b"over HTTP" in answer
        with running(provider.url) as gateway, served(gateway.app, ws="none") as url:
            assert handshake(url).startswith(b"HTTP/1.1 426 ")
        assert provider.requests == [] and time.monotonic() - started < 10
