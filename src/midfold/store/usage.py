"""What providers reported, turn by turn: a row of numbers per answer, and nothing anybody said.

Rules of this file:
1. The table is made when the first turn is recorded. A store in which nobody has recorded any is only read.
2. Turns belong to their session and go with it, whoever deletes it: the database sees to that, not its programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from midfold.cache.health import Kind
from midfold.store import SqlStore
from midfold.store.database import Database, Flavour, Tx, adapt
from midfold.store.protocol import SessionInfo
from midfold.store.writing import LockedSession, ensure_session, lock_session
from midfold.transcript.message import Usage

# Tables beside the schema: made when their first row is written, so that a store without any is only read.
#
# They hold what is nice to know and nobody's history, so they need no migration: who does not know them goes on.


T = TypeVar("T")
PRESENT = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{table}'",
    "postgres": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('{table}')",
}
ONE_AT_A_TIME = {"sqlite": "SELECT 1", "postgres": "SELECT pg_advisory_xact_lock(7310593858020254830)"}


class Beside:
    """One such table, and the queries for it."""

    def __init__(
        self, database: Database, table: str, create: Mapping[Flavour, Sequence[str]], queries: Mapping[str, str]
    ) -> None:
        self.database, self.table = database, table
        self._create = create[database.flavour]
        self._queries = {name: adapt(text, database.flavour) for name, text in queries.items()}
        self._present = False

    def make(self) -> None:
        """The table, unless it is there."""
        if not self._is_present():
            self.database.write(self._made)
            self._present = True

    def on(self, tx: Tx) -> Tx:
        """The transaction, with the queries for this table."""
        tx.queries = {**tx.queries, **self._queries}
        return tx

    def read(self, work: Callable[[Tx], T]) -> T | None:
        """None where there is no table yet."""
        return self.database.read(lambda tx: work(self.on(tx))) if self._is_present() else None

    def write(self, work: Callable[[Tx], T]) -> T:
        self.make()
        return self.database.write(lambda tx: work(self.on(tx)))

    def _is_present(self) -> bool:
        if not self._present:
            query = PRESENT[self.database.flavour].format(table=self.table)
            self._present = bool(self.database.read(lambda tx: tx.connection.execute(query).fetchone()[0]))
        return self._present

    def _made(self, tx: Tx) -> None:
        for statement in (ONE_AT_A_TIME[self.database.flavour], *self._create):
            tx.connection.execute(statement)


MOST_TURNS = 20_000
"""Turns of one session that are read at most: the newest."""

CREATE_TURNS: dict[Flavour, tuple[str, ...]] = {
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
TURN_QUERIES = {
    "add_turn": """INSERT INTO turns
        (session, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write)
        VALUES (:session, :at, :count, :compaction, :model, :kind, :prompt, :completion, :cache_read, :cache_write)""",
    "turns": """SELECT id, at, count, compaction, model, kind, prompt, completion, cache_read, cache_write
        FROM turns WHERE session = :session ORDER BY id DESC LIMIT :most""",
    "newest_turns": """SELECT s.id, coalesce((SELECT max(t.id) FROM turns t WHERE t.session = s.id), 0)
        FROM sessions s ORDER BY s.updated DESC, s.id DESC LIMIT :most""",
}


class ReportedTurn(msgspec.Struct, frozen=True, kw_only=True):
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
        self.table = Beside(store.database, "turns", CREATE_TURNS, TURN_QUERIES)

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
        self.table.write(lambda tx: add_turn(tx, session.id, turn))

    def of(self, session: SessionInfo) -> list[ReportedTurn]:
        """The turns of one session, the oldest first."""
        rows = self.table.read(lambda tx: tx.all("turns", session=session.id, most=MOST_TURNS)) or []
        return [
            ReportedTurn(
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


# Conversations that pass by: how large the last request of each was. Numbers, and nothing anybody said.
#
# Rules of this file:
# 1. A conversation has a session's row from its first answered request on; its messages are stored when it is folded.
# 2. Its name follows from its first messages. While there are few of them the name changes, and the row goes along: the
#    first one to go on takes it.
# 3. At most so many conversations without messages are kept, those used last.


MOST_CONVERSATIONS = 10_000
"""Conversations without messages."""
_COLUMNS = "session, at, count, compaction, tokens, reported, context, threshold, requests"

CREATE: dict[Flavour, tuple[str, ...]] = {
    "sqlite": (
        """CREATE TABLE IF NOT EXISTS sketches (
            session INTEGER PRIMARY KEY, at INTEGER NOT NULL, count INTEGER NOT NULL, compaction INTEGER NOT NULL,
            tokens INTEGER NOT NULL, reported INTEGER NOT NULL, context INTEGER NOT NULL, threshold INTEGER NOT NULL,
            requests INTEGER NOT NULL)""",
        """CREATE TRIGGER IF NOT EXISTS sketches_go_with_their_session AFTER DELETE ON sessions
           BEGIN DELETE FROM sketches WHERE session = old.id; END""",
    ),
    "postgres": (
        """CREATE TABLE IF NOT EXISTS sketches (
            session bigint PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE, at bigint NOT NULL,
            count bigint NOT NULL, compaction bigint NOT NULL, tokens bigint NOT NULL, reported integer NOT NULL,
            context bigint NOT NULL, threshold bigint NOT NULL, requests bigint NOT NULL)""",
    ),
}
QUERIES = {
    "put_sketch": f"""INSERT INTO sketches ({_COLUMNS})
        VALUES (:session, :at, :count, :compaction, :tokens, :reported, :context, :threshold, 1)
        ON CONFLICT (session) DO UPDATE SET at = excluded.at, count = excluded.count,
            compaction = excluded.compaction, tokens = excluded.tokens, reported = excluded.reported,
            context = excluded.context, threshold = excluded.threshold, requests = sketches.requests + 1""",
    "sketch": f"SELECT {_COLUMNS} FROM sketches WHERE session = :session",
    "sketches": f"SELECT {_COLUMNS} FROM sketches ORDER BY at DESC LIMIT :most",
    "rename_session": "UPDATE sessions SET name = :name WHERE id = :id",
    "give_turns": "UPDATE turns SET session = :target WHERE session = :source",
    "touch_session": """UPDATE sessions SET updated = {now},
        model = CASE WHEN count = 0 THEN coalesce(:model, model) ELSE model END WHERE id = :id""",
    "forget_sketched": """DELETE FROM sessions WHERE count = 0 AND compactions = 0 AND id IN (
        SELECT s.id FROM sessions s JOIN sketches k ON k.session = s.id WHERE s.count = 0
        ORDER BY s.updated DESC, s.id DESC LIMIT 1000000000 OFFSET :most)""",
}


class LastRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class LastRequests:
    """The sketches of one store."""

    def __init__(self, database: Database) -> None:
        self.table = Beside(database, "sketches", CREATE, QUERIES)

    def of(self, session: int) -> LastRequest | None:
        rows = self.table.read(lambda tx: tx.all("sketch", session=session)) or []
        return _read_last_request(rows[0]) if rows else None

    def newest(self, limit: int) -> dict[int, LastRequest]:
        """Those of the conversations used last, by their session's id."""
        rows = self.table.read(lambda tx: tx.all("sketches", most=limit)) or []
        return {row[0]: _read_last_request(row) for row in rows}

    def forget(self, most: int = MOST_CONVERSATIONS) -> int:
        """Drops the oldest conversations without messages; says how many."""
        return self.table.write(lambda tx: tx.run("forget_sketched", most=most))


def place_conversation(tx: Tx, names: Sequence[str], dialect: str, model: str | None) -> LockedSession:
    """The row of a conversation: by its name, by one it had before, or a new one. Names are the newest first."""
    found = lock_session(tx, names[0])
    if found is not None and tx.one("sketch", session=found.id) is not None:
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


def put_last_request(tx: Tx, sketch: LastRequest, model: str | None) -> None:
    tx.run(
        "put_sketch",
        session=sketch.session,
        at=sketch.at,
        count=sketch.count,
        compaction=sketch.compaction,
        tokens=sketch.tokens,
        reported=int(sketch.reported),
        context=sketch.window,
        threshold=sketch.threshold,
    )
    tx.run("touch_session", id=sketch.session, model=model)


def _read_last_request(row: tuple[int, ...]) -> LastRequest:
    session, at, count, compaction, tokens, reported, window, threshold, requests = row
    return LastRequest(
        session=session,
        at=at,
        count=count,
        compaction=compaction,
        tokens=tokens,
        reported=bool(reported),
        window=window,
        threshold=threshold,
        requests=requests,
    )
