"""A store that an older midfold has made, and an older midfold on a store of today; on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midfold.errors import SchemaError, StoreError
from midfold.store import SqlStore, migrations, open_database
from midfold.store.database import Database
from midfold.store.protocol import Prompt
from midfold.store.queries import Flavour
from midfold.testing.stores import CHAT, entries

ADDS = ("CREATE TABLE", "CREATE INDEX", "DROP INDEX", "CREATE VIRTUAL TABLE")
FIRST_RELEASE = 2
"""The schema of 0.1."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/s.db"
    opened = open_database(url)
    yield opened
    opened.close()


@contextmanager
def program_of(number: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A midfold that knows the migrations up to this one."""
    known = migrations.migrations
    with patch.context() as older:
        older.setattr(migrations, "migrations", lambda flavour: known(flavour)[:number])
        yield


def old_store(database: Database) -> None:
    """Three messages in the schema of the first release, written with its own statements."""
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
    with program_of(1, monkeypatch):
        migrations.migrate(database)
        old_store(database)
    assert [migration.number for migration in migrations.pending(database)] == [2, 3]
    store = SqlStore(database)
    assert list(store.check(deep=True)) == []
    assert [row.message.text for row in store.history("s")] == ["alpha one", "beta two", "alpha one"]
    assert [hit.position for hit in store.find("alpha")] == [2, 0]
    assert store.find_prefix(entries("alpha one", "beta two", "new")) == ("s", 2, 3)
    store.append("s", entries("gamma"), dialect=CHAT, prompt=Prompt(b'"Be brief."'))
    assert store.prompt(store.must("s")).system == b'"Be brief."'
    assert list(store.check(deep=True)) == []


def test_an_older_program_refuses_a_newer_schema_and_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqlStore(database).append("s", entries("a"), dialect=CHAT)
    with program_of(1, monkeypatch), pytest.raises(SchemaError, match="update this one"):
        SqlStore(database)
    assert SqlStore(database).must("s").count == 1


def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.migrations(database.flavour)
    broken = migrations.Migration(99, "0099_broken.sql", "CREATE TABLE half (x integer);\nSELECT 1 FROM nowhere;", "c")
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda flavour: (*known, broken))
        with pytest.raises(StoreError, match="nowhere"):
            migrations.migrate(database)
    assert len(migrations.migrate(database)) == len(known)
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
    assert [migration.number for migration in migrations.migrate(database)] == [3]
    store = SqlStore(database)
    assert [info.name for info in store.sessions()] == [named]
    assert store.find("hidden") == [] and [hit.session for hit in store.find("shared")] == [named]
    assert list(store.check(deep=True)) == []


def only_adds(statement: str) -> bool:
    """Whether a program that does not know of it can go on: indexes may go, what is read and written may not."""
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
    for migration in migrations.migrations(flavour)[FIRST_RELEASE:]:
        for statement in migrations.statements(migration.text):
            assert only_adds(statement), f"{migration.name}: {statement[:80]}"
