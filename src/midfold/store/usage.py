"""Numbers about requests, and nothing anybody said: what providers reported turn by turn, how large the last request of
each conversation was that passes through a gateway, and how large windows turned out to be.

1. Rows belong to their session and go with it, whoever deletes it: the database sees to that, not its programs.
2. A conversation has a session's row from its first answered request on; its messages are stored when it is folded.
3. Its name follows from its first messages. While there are few of them the name changes, and the row goes along: the
   first one to go on takes it.
4. At most so many conversations without messages are kept, those used last.
5. What was learned about a window is bound to whose request it was, under a hash, and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from midfold.cache.health import Kind, RecordedTurn
from midfold.store import SqlStore
from midfold.store.database import Database, Tx
from midfold.store.protocol import SessionInfo
from midfold.store.writing import LockedSession, ensure_session, lock_session
from midfold.transcript.message import Usage

MOST_TURNS = 20_000
"""Turns of one session that are read at most: the newest."""
MOST_CONVERSATIONS = 10_000
"""Conversations without messages."""
MOST_WINDOWS = 10_000
WELL_BELOW = 0.6
"""Of a size that was refused: what is believed to fit where nothing larger was ever answered."""


class ReportedTurn(msgspec.Struct, frozen=True):
    """One answer of a provider: what the prompt was when `count` messages had been said, and what was cached of it.

    `at` is milliseconds since 1970, `compaction` the one that was in force.
    """

    id: int
    at: int
    count: int
    compaction: int
    model: str | None
    usage: Usage
    kind: Kind | None = None
    """What became of the cache, if whoever recorded the turn knew the prompt; else it is inferred."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> ReportedTurn:
        number, at, count, compaction, model, kind, prompt, completion, read, written = row
        usage = Usage(
            prompt_tokens=prompt, completion_tokens=completion, cache_read_tokens=read, cache_write_tokens=written
        )
        return cls(number, at, count, compaction, model, usage, kind)


class Turns:
    """The turns of the sessions of one store."""

    def __init__(self, store: SqlStore) -> None:
        self._database = store.database

    def record(
        self,
        session: SessionInfo,
        usage: Usage,
        *,
        at: int,
        model: str | None = None,
        compaction: int | None = None,
        kind: Kind | None = None,
    ) -> None:
        """One more turn of the session as it was when the prompt was sent; `compaction` if that is known better."""
        turn = ReportedTurn(
            id=0,
            at=at,
            count=session.count,
            compaction=session.compaction if compaction is None else compaction,
            model=model or session.model,
            usage=usage,
            kind=kind,
        )
        self._database.write(lambda tx: add_turn(tx, session.id, turn))

    def add_recorded(self, session: SessionInfo, turns: Sequence[RecordedTurn]) -> None:
        """Turns of a log, each with the number of messages before it; those that are there are not added again."""

        def write(tx: Tx) -> None:
            known = {row[2] for row in tx.all("turns", session=session.id, most=MOST_TURNS)}
            for turn in turns:
                kind = turn.health.last.kind if turn.health.last is not None else None
                at = int(turn.at * 1000)
                if turn.place not in known:
                    add_turn(tx, session.id, ReportedTurn(0, at, turn.place, 0, turn.model or None, turn.usage, kind))

        self._database.write(write)

    def of(self, session: SessionInfo) -> list[ReportedTurn]:
        """The turns of one session, the oldest first."""
        rows = self._database.rows("turns", session=session.id, most=MOST_TURNS)
        return [ReportedTurn.of(row) for row in reversed(rows)]

    def newest(self, limit: int) -> dict[int, int]:
        """The newest turn of each of the sessions used last, by the session's id: what changes when there is one."""
        return dict(self._database.rows("newest_turns", most=limit))


def add_turn(tx: Tx, session: int, turn: ReportedTurn) -> None:
    """The row of one turn; it gets a number of its own."""
    tx.run(
        "add_turn",
        session=session,
        at=turn.at,
        count=turn.count,
        compaction=turn.compaction,
        model=turn.model,
        kind=turn.kind,
        prompt=turn.usage.prompt_tokens,
        completion=turn.usage.completion_tokens,
        cache_read=turn.usage.cache_read_tokens,
        cache_write=turn.usage.cache_write_tokens,
    )


class LastRequest(msgspec.Struct, frozen=True):
    """The last request of a conversation: so many messages and tokens, in a window that is folded at a threshold.

    `at` is milliseconds since 1970; without `reported` the tokens are an estimate.
    """

    session: int
    at: int
    count: int
    compaction: int
    tokens: int
    reported: bool
    window: int
    threshold: int
    requests: int = 1
    client: str = ""
    """The program that sent it, as `name/version`."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> LastRequest:
        session, at, count, compaction, tokens, reported, *rest = row
        return cls(session, at, count, compaction, tokens, bool(reported), *rest)


class LastRequests:
    """The last requests of the conversations of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, session: int) -> LastRequest | None:
        row = self._database.row("last_request", session=session)
        return None if row is None else LastRequest.of(row)

    def newest(self, limit: int) -> dict[int, LastRequest]:
        """Those of the conversations used last, by their session's id."""
        return {row[0]: LastRequest.of(row) for row in self._database.rows("last_requests", most=limit)}

    def clients(self) -> dict[int, str]:
        """The programs of conversations, those used last, by their session's id, where they are known."""
        return dict(self._database.rows("clients", most=MOST_CONVERSATIONS))

    def forget(self, most: int = MOST_CONVERSATIONS) -> int:
        """Drops the oldest conversations without messages; says how many."""
        return self._database.write(lambda tx: tx.run("forget_conversations", most=most))


def place_conversation(tx: Tx, names: Sequence[str], dialect: str, model: str | None) -> LockedSession:
    """The row of a conversation: by its name, by one it had before, or a new one. Names are the newest first."""
    found = lock_session(tx, names[0])
    if found is not None and tx.one("last_request", session=found.id) is not None:
        return found
    before = next((row for name in names[1:] if (row := lock_session(tx, name)) is not None and not row.count), None)
    if found is None:
        if before is None:
            # A row that will get other names is not sealed with this one.
            return ensure_session(tx, names[0], dialect, model, memory=b"")
        tx.run("rename_session", id=before.id, name=names[0])
        return before
    if before is not None:
        # It was folded before its first requests were written down: the fold has made the row.
        tx.run("give_turns", source=before.id, target=found.id)
        tx.run("delete_session", session=before.id)
    return found


def put_last_request(tx: Tx, request: LastRequest, model: str | None) -> None:
    tx.run("put_last_request", **{**msgspec.structs.asdict(request), "reported": int(request.reported)})
    tx.run("touch_session", id=request.session, model=model)


class WindowBounds(msgspec.Struct, frozen=True):
    """How large a model's window turned out to be; 0 is what nobody knows. `ends` is milliseconds since 1970."""

    name: str
    """A hash that only the same key, upstream, model and beta header lead to."""
    owner: str
    """The gateway's own key by its name; empty where there are none."""
    upstream: str
    model: str
    beta: str
    named: int = 0
    """What a refusal named."""
    refused: int = 0
    """The smallest size that was refused without a word on what would fit."""
    fitted: int = 0
    """The largest size that was answered."""
    ends: int = 0

    @property
    def window(self) -> int:
        """What is believed; 0 without a refusal."""
        return self.named or (max(self.fitted, int(self.refused * WELL_BELOW)) if self.refused else 0)


class LearnedWindows:
    """The bounds that a store remembers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, now: int, most: int = MOST_WINDOWS) -> list[WindowBounds]:
        """Those that have not ended, the newest first."""
        return [WindowBounds(*row) for row in self._database.rows("windows", now=now, most=most)]

    def put(self, bounds: WindowBounds, now: int) -> None:
        def write(tx: Tx) -> None:
            tx.run("put_window", **msgspec.structs.asdict(bounds))
            tx.run("end_windows", now=now)

        self._database.write(write)

    def forget(self, name: str | None = None) -> int:
        """One of them, or all; says how many those were."""
        if name is None:
            return self._database.write(lambda tx: tx.run("forget_windows"))
        return self._database.write(lambda tx: tx.run("forget_window", name=name))
