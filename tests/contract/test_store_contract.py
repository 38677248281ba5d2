"""Memory, SQLite and PostgreSQL keep the one contract of stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from midfold.store import SqlStore, Store, open_database
from midfold.testing.doubles import FakeClock
from midfold.testing.stores import StoreContract
from support.postgres import Server


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
