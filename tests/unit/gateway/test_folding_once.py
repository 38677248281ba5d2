"""A fold that another request made in the meantime is found and not repeated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

import midfold
from midfold.compaction.handoff import SYSTEM_NOTE
from midfold.compaction.request import SummaryRequest
from midfold.gateway.exchange import Exchange
from midfold.gateway.fold_request import NOTHING, FoldOrder
from midfold.gateway.peek import peek
from midfold.gateway.prepare import RequestPreparer
from midfold.gateway.request_size import ClientHistory, MeasuredRequest
from midfold.gateway.routes import route_of
from midfold.testing.answers import anthropic_json
from midfold.testing.doubles import ScriptedProvider
from midfold.transcript import jsonio
from midfold.transcript.document import read
from midfold.transcript.tokens import Count
from support.fixtures import assistant, user
from support.gateways import running, settings

WINDOW = 8_000


def request() -> bytes:
    talk: list[Any] = [user("Port the parser.")]
    for number in range(60):
        talk += [assistant(f"Step {number}: " + "it is done. " * 30), user(f"And step {number + 1}? " + "Why? " * 20)]
    return json.dumps({"model": "m", "messages": talk}).encode()


async def nothing(*_: Any) -> Any:
    return {"type": "http.disconnect"}


def measured(preparer: RequestPreparer) -> MeasuredRequest:
    conversation = ClientHistory(read(request(), dialect="openai-chat"))
    return preparer.measurer.look_up(conversation, conversation.name, preparer.policy.limits("m", 0))


def test_who_knew_only_the_whole_history_gets_the_fold_that_was_made_of_it() -> None:
    asked: list[SummaryRequest] = []

    def summarize(ask: SummaryRequest) -> str:
        asked.append(ask)
        return "## Goal\nPort the parser."

    with midfold.open("memory:", summarizer=summarize) as sessions:
        one, two = (RequestPreparer(settings("http://127.0.0.1:1", window=WINDOW), sessions) for _ in range(2))
        first, second = measured(one), measured(two)
        assert one.must_fold(first) and first.checkpoint is second.checkpoint is None
        made = one._fold(first, FoldOrder())
        assert made.is_made and made.checkpoint is not None
        for at_least in (NOTHING, Count(WINDOW + 1, "reported")):
            found = two._fold(second, FoldOrder(at_least))
            assert (found.is_made, found.checkpoint, len(asked)) == (False, made.checkpoint, 1)


def test_a_size_that_was_measured_before_a_compaction_says_nothing_after_it() -> None:
    with midfold.open("memory:", summarizer=lambda ask: "## Goal\nPort the parser.") as sessions:
        preparer = RequestPreparer(settings("http://127.0.0.1:1", window=WINDOW), sessions)
        one = measured(preparer)
        assert preparer.folder is not None
        session = preparer.folder.sync(one.conversation, one.name, one.limits)
        assert session.compact(prompt_tokens=one.size.tokens, measured_at=0).changed
        assert not session.compact(prompt_tokens=one.size.tokens, measured_at=0).changed
        assert not preparer.folder.fold(one, FoldOrder()).is_made


def test_a_fold_asks_for_the_checkpoint_twice_and_reads_no_message_that_is_in_hand() -> None:
    with midfold.open("memory:", summarizer=lambda ask: "## Goal\nPort the parser.") as sessions:
        preparer = RequestPreparer(settings("http://127.0.0.1:1", window=WINDOW), sessions)
        database, asked = sessions.store.database, []
        rows = database.rows

        def count(query: str, **values: Any) -> list[tuple[Any, ...]]:
            asked.append(query)
            return rows(query, **values)

        database.rows = count  # type: ignore[method-assign]
        scope = {"method": "POST", "path": "/v1/chat/completions", "headers": []}
        exchange = Exchange(scope, nothing, nothing, route_of("POST", "/v1/chat/completions"))
        exchange.body = body = request()
        exchange.peek = peek(body)
        sent = asyncio.run(preparer.prepare(exchange)).body
        assert exchange.account.action == "compacted" and len(sent) < len(body)
        assert asked.count("checkpoints") == 2
        assert not {"messages", "view_messages"} & set(asked)


def test_system_prompt_and_tools_are_not_decoded_and_encoded_again_for_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known tools in another conversation are not decoded, and none are ever encoded again."""
    handled: list[tuple[str, bytes]] = []
    decode, encode = jsonio.decode, jsonio.encode

    def counting_decode(data: Any) -> Any:
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if b'"max_tokens"' not in raw:  # the provider parses whole requests
            handled.append(("decoded", raw))
        return decode(data)

    def counting_encode(value: Any) -> bytes:
        made = encode(value)
        if not isinstance(value, list) or not all(isinstance(one, Raw) for one in value):
            handled.append(("encoded", made))
        return made

    schema = {"type": "object", "properties": {}}
    tools = [{"name": f"t{n}", "description": f"TOOL-MARK {n}", "input_schema": schema} for n in range(5)]
    said = "a sentence of a story that has no end " * 40
    monkeypatch.setattr(jsonio, "decode", counting_decode)
    monkeypatch.setattr(jsonio, "encode", counting_encode)
    with ScriptedProvider(then=anthropic_json("fine")) as provider, running(provider.url, window=16_000) as gateway:
        for ask in ("Tell me a story.", "Tell me another."):
            handled.clear()
            turns = [{"role": "assistant" if n % 2 else "user", "content": f"{n} {said}"} for n in range(61)]
            body = {"model": "claude-x", "max_tokens": 9, "system": "SYSTEM-MARK", "tools": tools}
            body["messages"] = [{"role": "user", "content": ask}, {"role": "assistant", "content": "Yes."}, *turns]
            assert gateway.post("/v1/messages", body)[1]["x-midfold-action"] == "compacted"
    assert [how for how, data in handled if b"TOOL-MARK" in data] == []
    written = [data for how, data in handled if b"SYSTEM-MARK" in data and how == "encoded"]
    assert all(SYSTEM_NOTE.encode() in data for data in written), "only with its note"
    sent = json.loads(provider.requests[-1].raw)
    assert sent["tools"][-1]["name"] == "t4" and "SYSTEM-MARK" in json.dumps(sent["system"])
