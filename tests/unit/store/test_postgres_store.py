"""PostgreSQL specifics: damage that `check` finds, external backups, clocks."""

from __future__ import annotations

import psycopg
import pytest

from midfold.errors import StoreError
from midfold.store import SqlStore, open_database
from midfold.testing.doubles import FakeClock
from tests.support.store_contract import CHAT, entries

DAMAGE = [
    ("DELETE FROM messages WHERE position = 1", "position 1 is missing"),
    (r"UPDATE messages SET chain = '\x00' WHERE position = 1", "chain is broken at position 1"),
    ("UPDATE sessions SET count = 9", "the session counts 9"),
    (
        r"INSERT INTO bodies (digest, indexed, codec, data) VALUES ('\x01', 0, 0, '\x01')",
        "bodies that nothing refers to",
    ),
    ("DELETE FROM word_segments", "search index"),
    ("UPDATE word_segments SET version = 0", "store reindex"),
    (r"UPDATE bodies SET codec = 0, data = '\x00' WHERE id = (SELECT min(id) FROM bodies)", "does not match its hash"),
    ("UPDATE sessions SET compaction = 4", "compaction 4 is in force but missing"),
]


def test_check_finds_damage(postgres_url: str) -> None:
    store = SqlStore(open_database(postgres_url))
    store.append("s", entries("a", "b", *map(str, range(20))), dialect=CHAT)
    assert list(store.check(deep=True)) == []
    for damage, found in DAMAGE:
        with psycopg.connect(postgres_url) as connection:
            tables = ("messages", "word_segments")
            before = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
            connection.execute(damage)
            connection.commit()
            assert any(found in problem for problem in store.check(deep=True)), damage
            _put_back(connection, before)
    store.close()


def _put_back(connection: psycopg.Connection, before: dict[str, list[tuple[object, ...]]]) -> None:
    for table, rows in before.items():
        connection.execute(f"DELETE FROM {table}")
        for row in rows:
            places = ", ".join(["%s"] * len(row))
            connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
    connection.execute("UPDATE sessions SET count = 22, compaction = 0")


def test_a_backup_is_pg_dumps(postgres_url: str) -> None:
    store = SqlStore(open_database(postgres_url))
    with pytest.raises(StoreError, match="pg_dump"):
        store.database.backup("copy")
    store.close()


def test_time_is_the_servers(postgres_url: str) -> None:
    store = SqlStore(open_database(postgres_url, clock=FakeClock(1_000.0)), ttl=5)
    store.append("s", entries("a"), dialect=CHAT)
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
    assert row is not None and abs(store.must("s").created - row[0]) < 60_000
    store.close()
