"""What providers reported, turn by turn: a row of numbers per answer, and nothing anybody said.

Rules of this file:
1. The table is made when the first turn is recorded. A store in which nobody has recorded any is only read.
2. Turns belong to their session and go with it, whoever deletes it: the database sees to that, not its programs.
"""

from __future__ import annotations

import msgspec

from midfold.cache.health import Kind
from midfold.store import SqlStore
from midfold.store.beside import Beside
from midfold.store.database import Tx
from midfold.store.protocol import SessionInfo
from midfold.store.queries import Flavour
from midfold.transcript.message import Usage

MOST = 20_000
"""Turns of one session that are read at most: the newest."""

CREATE: dict[Flavour, tuple[str, ...]] = {
    "sqlite": (
        """CREATE TABLE IF NOT EXISTS turns (
            id INTEGER PRIMARY KEY, session INTEGER NOT NULL, at INTEGER NOT NULL, count INTEGER NOT NULL,
            compaction INTEGER NOT NULL, model TEXT, kind TEXT, prompt INTEGER NOT NULL, completion INTEGER NOT NULL,
            cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id)",
        """CREATE TRIGGER IF NOT EXISTS turns_go_with_their_session AFTER DELETE ON sessions
           BEGIN DELETE FROM turns WHERE session = old.id; END""",
    ),
    "postgres": (
        """CREATE TABLE IF NOT EXISTS turns (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            session bigint NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, at bigint NOT NULL,
            count bigint NOT NULL, compaction bigint NOT NULL, model text, kind text, prompt bigint NOT NULL,
            completion bigint NOT NULL, cache_read bigint NOT NULL, cache_write bigint NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id)",
    ),
}
QUERIES = {
    "add_turn": """INSERT INTO turns
        (session, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write)
        VALUES (:session, :at, :count, :compaction, :model, :kind, :prompt, :completion, :cache_read, :cache_write)""",
    "turns": """SELECT id, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write
        FROM turns WHERE session = :session ORDER BY id DESC LIMIT :most""",
    "newest_turns": """SELECT s.id, coalesce((SELECT max(t.id) FROM turns t WHERE t.session = s.id), 0)
        FROM sessions s ORDER BY s.updated DESC, s.id DESC LIMIT :most""",
}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
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


class Turns:
    """The turns of the sessions of one store."""

    def __init__(self, store: SqlStore) -> None:
        self.table = Beside(store.database, "turns", CREATE, QUERIES)

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
        turn = Turn(
            id=0,
            at=at,
            count=session.count,
            compaction=session.compaction if compaction is None else compaction,
            model=model or session.model,
            usage=usage,
            kind=kind,
        )
        self.table.write(lambda tx: add(tx, session.id, turn))

    def of(self, session: SessionInfo) -> list[Turn]:
        """The turns of one session, the oldest first."""
        rows = self.table.read(lambda tx: tx.all("turns", session=session.id, most=MOST)) or []
        return [
            Turn(
                id=number,
                at=at,
                count=count,
                compaction=compaction,
                model=model,
                kind=kind,
                usage=Usage(
                    prompt_tokens=prompt,
                    completion_tokens=completion,
                    cache_read_tokens=read,
                    cache_write_tokens=written,
                ),
            )
            for number, at, count, compaction, model, kind, prompt, completion, read, written in reversed(rows)
        ]

    def newest(self, limit: int) -> dict[int, int]:
        """The newest turn of each of the sessions used last, by the session's id: what changes when there is one."""
        return dict(self.table.read(lambda tx: tx.all("newest_turns", most=limit)) or [])


def add(tx: Tx, session: int, turn: Turn) -> None:
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
