"""Stores of older midfold versions, and older versions on a current store; on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midfold.errors import SchemaError, StoreError
from midfold.recall.words import VERSION, parse_query
from midfold.store import SqlStore, open_database, upkeep
from midfold.store.database import Database, Flavour
from midfold.store.protocol import Prompt
from midfold.store.usage import LastRequest, LastRequests, Turns, put_last_request
from midfold.transcript.message import Usage
from tests.support.store_contract import CHAT, entries

ADDS = ("CREATE TABLE", "CREATE INDEX", "DROP INDEX", "CREATE VIRTUAL TABLE", "CREATE TRIGGER IF NOT EXISTS")
FIRST_RELEASE, INDEX = 2, 5
"""Schema of 0.1, and the migrations before the search index."""
USAGE = Usage(prompt_tokens=9, completion_tokens=2, cache_read_tokens=3, cache_write_tokens=4)
MADE_AT_RUN_TIME = {
    "sqlite": (
        """CREATE TABLE IF NOT EXISTS turns (
            id INTEGER PRIMARY KEY, session INTEGER NOT NULL, at INTEGER NOT NULL, count INTEGER NOT NULL,
            compaction INTEGER NOT NULL, model TEXT, kind TEXT, prompt INTEGER NOT NULL, completion INTEGER NOT NULL,
            cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id)",
        """CREATE TRIGGER IF NOT EXISTS turns_go_with_their_session AFTER DELETE ON sessions
           BEGIN DELETE FROM turns WHERE session = old.id; END""",
        """CREATE TABLE IF NOT EXISTS sketches (
            session INTEGER PRIMARY KEY, at INTEGER NOT NULL, count INTEGER NOT NULL, compaction INTEGER NOT NULL,
            tokens INTEGER NOT NULL, reported INTEGER NOT NULL, context INTEGER NOT NULL, threshold INTEGER NOT NULL,
            requests INTEGER NOT NULL)""",
        """CREATE TRIGGER IF NOT EXISTS sketches_go_with_their_session AFTER DELETE ON sessions
           BEGIN DELETE FROM sketches WHERE session = old.id; END""",
        "CREATE TABLE IF NOT EXISTS belongings (name TEXT PRIMARY KEY, ends INTEGER) WITHOUT ROWID",
        "CREATE INDEX IF NOT EXISTS belongings_end ON belongings (ends) WHERE ends IS NOT NULL",
    ),
    "postgres": (
        """CREATE TABLE IF NOT EXISTS turns (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            session bigint NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, at bigint NOT NULL,
            count bigint NOT NULL, compaction bigint NOT NULL, model text, kind text, prompt bigint NOT NULL,
            completion bigint NOT NULL, cache_read bigint NOT NULL, cache_write bigint NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id)",
        """CREATE TABLE IF NOT EXISTS sketches (
            session bigint PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE, at bigint NOT NULL,
            count bigint NOT NULL, compaction bigint NOT NULL, tokens bigint NOT NULL, reported integer NOT NULL,
            context bigint NOT NULL, threshold bigint NOT NULL, requests bigint NOT NULL)""",
        "CREATE TABLE IF NOT EXISTS belongings (name text PRIMARY KEY, ends bigint)",
        "CREATE INDEX IF NOT EXISTS belongings_end ON belongings (ends) WHERE ends IS NOT NULL",
    ),
}
"""Statements that versions before migration 4 ran when they wrote the first row of these tables."""


NAMES: dict[Flavour, list[int]] = {"sqlite": [], "postgres": [8]}
"""Migrations for the name prefix index; SQLite needs none."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/s.db"
    opened = open_database(url)
    yield opened
    opened.close()


@contextmanager
def program_of(number: int, patch: pytest.MonkeyPatch, *, words: int = VERSION, more: int = INDEX) -> Iterator[None]:
    """Simulate a midfold with the migrations up to this one, with the current index and these index rules."""
    known = upkeep.migrations
    with patch.context() as older:
        older.setattr(upkeep, "VERSION", words)
        older.setattr(
            upkeep, "migrations", lambda flavour: (*known(flavour)[:number], *known(flavour)[more : more + 1])
        )
        yield


def old_store(database: Database) -> None:
    """Write three messages in the schema of the first release, with its own statements."""
    digest = "x'{}'" if database.flavour == "sqlite" else "decode('{}', 'hex')"
    store = SqlStore(open_database("memory:"))
    store.append("s", entries("alpha one", "beta two", "alpha one"), dialect=CHAT)
    rows = store.database.rows("chained", session=1, start=0, most=9)
    datas = {
        bytes(row[2]): entry.data
        for row, entry in zip(rows, entries("alpha one", "beta two", "alpha one"), strict=True)
    }
    ids = {digest: place + 1 for place, digest in enumerate(datas)}

    def blob(data: bytes) -> str:
        return digest.format(data.hex())

    always = "OVERRIDING SYSTEM VALUE " if database.flavour == "postgres" else ""
    lines = [
        f"INSERT INTO bodies (id, digest, indexed, codec, data) {always}"
        f"VALUES ({ids[key]}, {blob(key)}, 1, 0, {blob(data)})"
        for key, data in datas.items()
    ]
    lines.append(
        f"INSERT INTO sessions (id, name, kind, dialect, created, updated, count, chain) {always}"
        f"VALUES (1, 's', 'root', '{CHAT}', 1, 1, 3, {blob(bytes(rows[-1][1]))})"
    )
    lines += [
        "INSERT INTO messages (session, position, body, chain, role, at) "
        f"VALUES (1, {position}, {ids[bytes(key)]}, {blob(bytes(chain))}, 1, 1)"
        for position, chain, key in rows
    ]
    for key, data in datas.items():
        tokens = "alpha one x" if b"alpha" in data else "beta two x"
        if database.flavour == "sqlite":
            lines.append(f"INSERT INTO words (rowid, tokens) VALUES ({ids[key]}, '{tokens}')")
        else:
            vector = f"array_to_tsvector(string_to_array('{tokens}', ' '))"
            lines.append(f"INSERT INTO words (body, chunk, tokens) VALUES ({ids[key]}, 0, {vector})")
    if database.flavour == "postgres":
        lines += [f"ALTER TABLE {table} ALTER COLUMN id RESTART WITH 9" for table in ("bodies", "sessions")]
    database.write(lambda tx: [tx.connection.execute(line) for line in lines])


def test_a_store_of_the_first_schema_is_brought_up_to_date(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with program_of(1, monkeypatch, words=1, more=99):
        upkeep.migrate(database)
    old_store(database)
    assert [migration.number for migration in upkeep.pending(database)] == [2, 3, 4, 5, 6, 7, *NAMES[database.flavour]]
    store = SqlStore(database)
    assert list(store.check(deep=True)) == []
    assert [row.message.text for row in store.history("s")] == ["alpha one", "beta two", "alpha one"]
    assert [sorted(places) for places in store.find(parse_query("alpha").terms)[0].values()] == [[0, 2]]
    assert store.find_prefix(entries("alpha one", "beta two", "new")) == ("s", 2, 3)
    store.append("s", entries("gamma"), dialect=CHAT, prompt=Prompt(b'"Be brief."'))
    assert store.prompt(store.must("s")).system == b'"Be brief."'
    assert list(store.check(deep=True)) == []


def test_an_older_program_refuses_a_newer_schema_and_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqlStore(database).append("s", entries("a"), dialect=CHAT)
    with program_of(1, monkeypatch), pytest.raises(SchemaError, match="update midfold"):
        SqlStore(database)
    assert SqlStore(database).must("s").count == 1


def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = upkeep.migrations(database.flavour)
    broken = upkeep.Migration(99, "0099_broken.sql", "CREATE TABLE half (x integer);\nSELECT 1 FROM nowhere;", "c")
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "migrations", lambda flavour: (*known, broken))
        with pytest.raises(StoreError, match="nowhere"):
            upkeep.migrate(database)
    assert len(upkeep.migrate(database)) == len(known)
    assert SqlStore(database).append("s", entries("a"), dialect=CHAT).positions == range(1)


def test_hidden_turns_that_were_sessions_are_dropped_because_nobody_knows_whose_they_were(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"gw-hidden-{'0123456789ab' * 2}"
    named = "gw-hidden-by-a-user"
    with program_of(2, monkeypatch):
        store = SqlStore(database)
        store.append(old, entries("hidden words", "shared words"), dialect=CHAT)
        store.append(named, entries("shared words"), dialect=CHAT)
    assert [migration.number for migration in upkeep.migrate(database)] == [3, 4, 5, 7, *NAMES[database.flavour]]
    store = SqlStore(database)
    assert [info.name for info in store.sessions()] == [named]
    assert store.find(parse_query("hidden shared").terms) == [{}, {named: [0]}]
    assert list(store.check(deep=True)) == []


def tables(database: Database) -> set[str]:
    query = {
        "sqlite": "SELECT name FROM sqlite_master",
        "postgres": "SELECT relname FROM pg_class UNION SELECT tgname FROM pg_trigger",
    }[database.flavour]
    return {name for (name,) in database.read(lambda tx: tx.connection.execute(query).fetchall())}


@pytest.mark.parametrize("are_there", [True, False])
def test_tables_that_were_made_at_run_time_keep_their_rows(
    database: Database, are_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program_of(3, monkeypatch):
        older = SqlStore(database)
        older.append("s", entries("a"), dialect=CHAT)
        info = older.must("s")
    columns = "session, at, count, compaction"
    rows = (
        f"INSERT INTO turns ({columns}, prompt, completion, cache_read, cache_write) "
        f"VALUES ({info.id}, 5, 1, 0, 9, 2, 3, 4)",
        f"INSERT INTO sketches ({columns}, tokens, reported, context, threshold, requests) "
        f"VALUES ({info.id}, 6, 1, 0, 9, 1, 200, 100, 3)",
        "INSERT INTO belongings (name, ends) VALUES ('mine', NULL)",
    )
    statements = (*MADE_AT_RUN_TIME[database.flavour], *rows) if are_there else ()
    database.write(lambda tx: [tx.connection.execute(statement) for statement in statements])
    before = tables(database)
    with program_of(4, monkeypatch):
        assert [migration.number for migration in upkeep.migrate(database)] == [4]
    assert not are_there or tables(database) == before

    store = SqlStore(database)
    turns, requests = Turns(store), LastRequests(database)
    assert [turn.usage for turn in turns.of(info)] == ([USAGE] if are_there else [])
    assert requests.of(info.id) == (LastRequest(info.id, 6, 1, 0, 9, True, 200, 100, 3) if are_there else None)
    assert bool(database.row("has_belonging", name="mine")) == are_there
    turns.record(info, Usage(prompt_tokens=1), at=7)
    database.write(lambda tx: put_last_request(tx, LastRequest(info.id, 8, 2, 0, 10, False, 200, 100), None))
    newest = requests.newest(9)[info.id]
    assert (newest.at, newest.requests, newest.reported) == (8, 4 if are_there else 1, False)
    assert list(store.check(deep=True)) == []
    store.delete("s")
    assert turns.of(info) == [] and requests.of(info.id) is None


def only_adds(statement: str) -> bool:
    """Return whether an older program still works: indexes may be dropped, but nothing that is read or written."""
    if statement.startswith("ALTER TABLE"):
        return " ADD COLUMN " in statement and ("NOT NULL" not in statement or "DEFAULT" in statement)
    return statement.startswith(ADDS)


def test_what_only_adds_is_told_from_what_does_not() -> None:
    assert only_adds("ALTER TABLE sessions ADD COLUMN later integer")
    for statement in ("ALTER TABLE a ADD COLUMN b integer NOT NULL", "DROP TABLE a", "UPDATE a SET b = 1"):
        assert not only_adds(statement)


@pytest.mark.parametrize("flavour", ["sqlite", "postgres"])
def test_migrations_since_the_first_release_only_add(flavour: Flavour) -> None:
    """An older gateway may be running on the same database (docs/howto/operate-the-gateway.md)."""
    for migration in upkeep.migrations(flavour)[FIRST_RELEASE:]:
        for statement in upkeep.statements(migration.text):
            assert only_adds(statement), f"{migration.name}: {statement[:80]}"


def test_a_store_from_before_clients_were_known_keeps_its_conversations(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program_of(6, monkeypatch, more=99):
        older = SqlStore(database)
        older.append("s", entries("a"), dialect=CHAT)
        info = older.must("s")
        database.write(
            lambda tx: tx.connection.execute(
                "INSERT INTO sketches (session, at, count, compaction, tokens, reported, context, threshold, requests) "
                f"VALUES ({info.id}, 6, 1, 0, 9, 1, 200, 100, 3)"
            )
        )
    store, requests = SqlStore(database), LastRequests(database)
    assert store.must("s") == info
    assert requests.of(info.id) == LastRequest(info.id, 6, 1, 0, 9, True, 200, 100, 3, client="")
    assert requests.clients() == {}
    database.write(
        lambda tx: put_last_request(tx, LastRequest(info.id, 8, 2, 0, 10, False, 200, 100, client="one/1.2"), None)
    )
    assert requests.clients() == {info.id: "one/1.2"}
    assert list(store.check(deep=True)) == []
