"""Conversations that pass by: how large the last request of each was. Numbers, and nothing anybody said.

Rules of this file:
1. A conversation has a session's row from its first answered request on; its messages are stored when it is folded.
2. Its name follows from its first messages. While there are few of them the name changes, and the row goes along: the
   first one to go on takes it.
3. At most so many conversations without messages are kept, those used last.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from midfold.store.appending import Tip, made, tip
from midfold.store.beside import Beside
from midfold.store.database import Database, Tx
from midfold.store.queries import Flavour

MOST = 10_000
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


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
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


class Sketches:
    """The sketches of one store."""

    def __init__(self, database: Database) -> None:
        self.table = Beside(database, "sketches", CREATE, QUERIES)

    def of(self, session: int) -> Sketch | None:
        rows = self.table.read(lambda tx: tx.all("sketch", session=session)) or []
        return _sketch(rows[0]) if rows else None

    def newest(self, limit: int) -> dict[int, Sketch]:
        """Those of the conversations used last, by their session's id."""
        rows = self.table.read(lambda tx: tx.all("sketches", most=limit)) or []
        return {row[0]: _sketch(row) for row in rows}

    def forget(self, most: int = MOST) -> int:
        """Drops the oldest conversations without messages; says how many."""
        return self.table.write(lambda tx: tx.run("forget_sketched", most=most))


def place(tx: Tx, names: Sequence[str], dialect: str, model: str | None) -> Tip:
    """The row of a conversation: by its name, by one it had before, or a new one. Names are the newest first."""
    found = tip(tx, names[0])
    if found is not None and tx.one("sketch", session=found.id) is not None:
        return found
    before = next((row for name in names[1:] if (row := tip(tx, name)) is not None and not row.count), None)
    if found is None:
        if before is None:
            # A row that will get other names is not sealed with this one.
            return made(tx, names[0], dialect, model, memory=b"")
        tx.run("rename_session", id=before.id, name=names[0])
        return before
    if before is not None:
        # It was folded before its first requests were written down: the fold has made the row.
        tx.run("give_turns", source=before.id, target=found.id)
        tx.run("delete_session", session=before.id)
    return found


def put(tx: Tx, sketch: Sketch, model: str | None) -> None:
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


def _sketch(row: tuple[int, ...]) -> Sketch:
    session, at, count, compaction, tokens, reported, window, threshold, requests = row
    return Sketch(
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
