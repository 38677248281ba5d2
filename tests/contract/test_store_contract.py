"""Memory, SQLite and PostgreSQL satisfy the store contract."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

import midfold
from midfold.store import SqlStore, Store, open_database
from midfold.store.database import Tx
from midfold.testing.doubles import FakeClock
from support.postgres import Server
from tests.support.store_contract import StoreContract


class TestMemory(StoreContract):
    clock: ClassVar[FakeClock] = FakeClock()

    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        database = open_database("memory:", clock=self.clock)
        return lambda: SqlStore(database, ttl=self.ttl)


class TestSQLite(StoreContract):
    clock: ClassVar[FakeClock] = FakeClock()

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Store]:
        url = f"sqlite:///{tmp_path}/sessions.db?synchronous=normal"
        return lambda: SqlStore(open_database(url, clock=self.clock), ttl=self.ttl)


class TestPostgres(StoreContract):
    @pytest.fixture
    def connect(self, postgres_url: str) -> Callable[[], Store]:
        return lambda: SqlStore(open_database(postgres_url), ttl=self.ttl)


def test_the_server_of_the_tests_is_a_real_one(postgres: Server) -> None:
    assert postgres.data.joinpath("PG_VERSION").read_text(encoding="ascii").strip() == "18"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_is_read_in_one_go_is_one_state_however_many_queries_it_takes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/sessions.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    sessions = midfold.open(url)
    session = sessions.session("a", context_length=100_000)
    session.append([{"role": "user", "content": "one"}])

    def work(tx: Tx) -> list[int]:
        before = tx.number("count_messages")
        session.append([{"role": "user", "content": "two"}])
        return [before, tx.number("count_messages")]

    with sessions, closing(open_database(url)) as database:
        assert database.read(work) == [1, 1]
