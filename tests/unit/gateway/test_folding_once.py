"""A fold that somebody else has made in the meantime is found, not made again on top."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import midfold
from midfold.fold.request import SummaryAsk
from midfold.gateway.exchange import Exchange
from midfold.gateway.measuring import ClientHistory, MeasuredRequest
from midfold.gateway.peek import peek
from midfold.gateway.prepare import NOTHING, RequestPreparer
from midfold.gateway.routes import route_of
from midfold.transcript.document import read
from midfold.transcript.tokens import Count
from support.fixtures import assistant, free, user
from support.gateways import settings

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
    asked: list[SummaryAsk] = []

    @free
    def summarize(ask: SummaryAsk) -> str:
        asked.append(ask)
        return "## Goal\nPort the parser."

    with midfold.open("memory:", summarizer=summarize) as sessions:
        one, two = (RequestPreparer(settings("http://127.0.0.1:1", window=WINDOW), sessions) for _ in range(2))
        first, second = measured(one), measured(two)
        assert one.must_fold(first) and first.checkpoint is second.checkpoint is None
        made = one._fold(first, NOTHING, False)
        assert made.is_made and made.checkpoint is not None
        for at_least in (NOTHING, Count(WINDOW + 1, "reported")):
            found = two._fold(second, at_least, False)
            assert (found.is_made, found.checkpoint, len(asked)) == (False, made.checkpoint, 1)


def test_a_size_that_was_measured_before_a_compaction_says_nothing_after_it() -> None:
    with midfold.open("memory:", summarizer=free(lambda ask: "## Goal\nPort the parser.")) as sessions:
        preparer = RequestPreparer(settings("http://127.0.0.1:1", window=WINDOW), sessions)
        one = measured(preparer)
        assert preparer.folder is not None
        session = preparer.folder.sync(one.conversation, one.name, one.limits)
        assert session.compact(prompt_tokens=one.size.tokens, measured_at=0).changed
        assert not session.compact(prompt_tokens=one.size.tokens, measured_at=0).changed
        assert not preparer.folder.fold(one).is_made


def test_a_fold_asks_for_the_checkpoint_twice_and_reads_no_message_that_is_in_hand() -> None:
    with midfold.open("memory:", summarizer=free(lambda ask: "## Goal\nPort the parser.")) as sessions:
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
