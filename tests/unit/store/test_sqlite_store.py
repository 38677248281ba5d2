"""SQLite specifics: the file, its faults, migrations, damage that `check` finds."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from midfold.errors import NotStored, SchemaError, StoreError, StoreUnavailable
from midfold.store import SqlStore, open_database, upkeep
from midfold.store.database import Tx
from tests.support.store_contract import CHAT, entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def store(path: Path) -> SqlStore:
    return SqlStore(open_database(f"sqlite:///{path}?timeout=0.2"))


def test_the_file_is_readable_by_its_owner_only(store: SqlStore, path: Path) -> None:
    store.append("s", entries("a"), dialect=CHAT)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://x", "must start with"),
        ("sqlite:///x.db?mode=fast", "unknown option 'mode'"),
        ("sqlite:///x.db?timeout=soon", "timeout"),
        ("sqlite:///x.db?synchronous=off", "expected full or normal"),
    ],
)
def test_addresses_that_are_none_are_refused(url: str, told: str) -> None:
    with pytest.raises(StoreError, match=told):
        open_database(url)


def test_a_newer_schema_is_refused_and_left_alone(store: SqlStore, path: Path) -> None:
    store.append("s", entries("a"), dialect=CHAT)
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO midfold_migrations VALUES (9999, 'x', 1, 0)")
    connection.close()
    with pytest.raises(SchemaError, match="newer midfold"):
        SqlStore(open_database(f"sqlite:///{path}"))


def test_a_migration_with_other_contents_is_refused(store: SqlStore, path: Path) -> None:
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE midfold_migrations SET checksum = 'x'")
    connection.close()
    with pytest.raises(SchemaError, match="different contents"):
        SqlStore(open_database(f"sqlite:///{path}"))


def test_migrating_is_one_transaction_and_happens_once(path: Path) -> None:
    database = open_database(f"sqlite:///{path}")
    assert [migration.number for migration in upkeep.pending(database)] == [1, 2, 3, 4, 5, 6, 7]
    assert len(upkeep.migrate(database)) == 7
    assert upkeep.migrate(database) == upkeep.pending(database) == []


def test_somebody_elses_database_is_not_taken_over(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sessions (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError):
        SqlStore(open_database(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    connection.close()
    assert names == ["sessions"]


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"hello, world " * 100)
    with pytest.raises(SchemaError, match="not a SQLite database"):
        SqlStore(open_database(f"sqlite:///{path}"))


def test_a_locked_database_is_a_clear_error_and_the_next_call_works(store: SqlStore, path: Path) -> None:
    store.append("s", entries("a"), dialect=CHAT)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.append("s", entries("b"), dialect=CHAT)
    assert [row.message.text for row in store.history("s")] == ["a"]
    blocker.execute("ROLLBACK")
    blocker.close()
    store.append("s", entries("b"), dialect=CHAT)
    assert [row.message.text for row in store.history("s")] == ["a", "b"]


def test_a_full_disk_is_a_clear_error_and_the_next_call_works(path: Path) -> None:
    database = open_database(f"sqlite:///{path}")
    store = SqlStore(database)
    store.append("s", entries("a"), dialect=CHAT)
    connection = database._idle[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    noise = [f"{number} {Path(__file__).stat().st_ino * number:x}" * 50 for number in range(200)]
    with pytest.raises(StoreUnavailable, match="full"):
        store.append("s", entries(*noise), dialect=CHAT)
    assert (store.must("s").count, list(store.check(deep=True))) == (1, [])
    connection.execute("PRAGMA max_page_count = 1000000")
    store.append("s", entries(*noise), dialect=CHAT)
    assert (store.must("s").count, list(store.check(deep=True))) == (201, [])


def test_a_database_that_cannot_be_written_can_be_read(store: SqlStore, path: Path) -> None:
    store.append("s", entries("a"), dialect=CHAT)
    database = store.database
    database._idle[0].execute("PRAGMA query_only = on")  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.append("s", entries("b"), dialect=CHAT)
    assert [row.message.text for row in store.history("s")] == ["a"]
    database._idle[0].execute("PRAGMA query_only = off")  # type: ignore[attr-defined]
    store.append("s", entries("b"), dialect=CHAT)


def test_backup_is_a_store_and_overwrites_nothing(store: SqlStore, tmp_path: Path) -> None:
    store.append("s", entries("a", "b"), dialect=CHAT)
    target = tmp_path / "copy.db"
    store.database.backup(str(target))
    copy = SqlStore(open_database(f"sqlite:///{target}"))
    assert [row.message.text for row in copy.history("s")] == ["a", "b"]
    assert list(copy.check(deep=True)) == []
    with pytest.raises(StoreError, match="already exists"):
        store.database.backup(str(target))


def test_a_session_that_is_not_there(store: SqlStore) -> None:
    for ask in (store.must, store.records, store.delete, lambda name: list(store.history(name))):
        with pytest.raises(NotStored, match="no session nobody"):
            ask("nobody")


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM messages WHERE position = 1", "position 1 is missing"),
        ("UPDATE messages SET chain = x'00' WHERE position = 1", "chain is broken at position 1"),
        ("UPDATE sessions SET count = 9", "the session counts 9"),
        (
            "INSERT INTO bodies (digest, indexed, codec, data) VALUES (x'01', 0, 0, x'01')",
            "bodies that nothing refers to",
        ),
        ("DELETE FROM word_segments", "search index"),
        ("DELETE FROM word_blocks", "search index"),
        ("UPDATE word_segments SET version = 0", "store reindex"),
        ("UPDATE bodies SET codec = 0, data = x'00' WHERE id = 1", "does not match its hash"),
        ("INSERT INTO pieces VALUES (77, 1, 0, 0, 1, NULL)", "rows that belong to no session"),
        ("UPDATE sessions SET compaction = 4", "compaction 4 is in force but missing"),
    ],
)
def test_check_finds_damage(store: SqlStore, path: Path, damage: str, found: str) -> None:
    store.append("s", entries("a", "b", *map(str, range(100))), dialect=CHAT)
    assert list(store.check(deep=True)) == []
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    connection.close()
    assert any(found in problem for problem in store.check(deep=True))


def test_a_transaction_that_fails_half_way_leaves_nothing(store: SqlStore) -> None:
    store.append("s", entries("a"), dialect=CHAT)

    def fail(tx: Tx) -> None:
        tx.run("set_memory", id=1, memory=b"half", compaction=0, compactions=0)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        store.database.write(fail)
    assert store.must("s").memory == b""


@pytest.mark.parametrize(
    "address", ["sqlite://", "sqlite:///:memory:", "sqlite://:memory:", "sqlite:///:memory:?timeout=3", "memory:"]
)
def test_memory_is_memory_however_it_is_written(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqlStore(open_database(address))
    store.append("s", entries("a"), dialect=CHAT)
    assert store.must("s").count == 1
    assert SqlStore(open_database(address)).info("s") is None
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_an_address_without_a_path_is_refused() -> None:
    with pytest.raises(StoreError, match="expected a path"):
        open_database("sqlite:///")
