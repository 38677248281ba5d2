"""The recorder turns reported usage of stored sessions into turns, outside the request path."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import midfold
from midfold.pages.recorder import MAX_BATCH, MAX_WAITING, Recorder
from midfold.store.usage import Turns
from midfold.transcript.message import Usage
from support.fixtures import user

EXTRA = MAX_BATCH + 50


class Account(NamedTuple):
    usage: Usage | None = Usage(prompt_tokens=10, cache_read_tokens=4)
    session: str | None = "s"
    receipt: str | None = "s#3"
    model: str | None = "gpt-5"


def test_what_a_provider_reported_for_a_stored_session_becomes_a_turn(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        session = sessions.session("s")
        session.append([user("hello")])
        recorder = Recorder(sessions)
        for account in (
            Account(),
            Account(receipt=None),
            Account(session="unknown"),
            Account(session=None),
            Account(usage=None),
        ):
            recorder(account)
        recorder.close()
        assert session.info is not None
        turns = Turns(sessions.store).of(session.info)
        assert [(turn.compaction, turn.model, turn.usage.cache_read_tokens) for turn in turns] == [
            (3, "gpt-5", 4),
            (0, "gpt-5", 4),
        ]
        assert recorder.dropped == 0
        recorder.close()


def test_a_store_that_stands_still_holds_nobody_up() -> None:
    with midfold.open("memory:") as sessions:
        sessions.session("s").append([user("hello")])
        recorder = Recorder(sessions)
        held = threading.Event()

        def stand_still(tx: object) -> None:
            held.wait(20)

        holder = threading.Thread(target=sessions.store.database.write, args=(stand_still,))
        holder.start()
        for _ in range(MAX_WAITING + EXTRA):
            recorder(Account())
        assert 0 < recorder.dropped <= EXTRA
        held.set()
        holder.join()
        recorder.close()
        assert len(Turns(sessions.store).of(sessions.store.must("s"))) == MAX_WAITING + EXTRA - recorder.dropped
