"""Many threads on few connections: served in order, and within the limit."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import midfold
from midfold.config import load
from midfold.errors import StoreUnavailable
from midfold.store import SqlStore, database, open_database
from midfold.store.database import FairSemaphore
from support.fixtures import user
from tests.support.store_contract import CHAT, entries


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - shown in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_turns_are_taken_in_the_order_of_asking() -> None:
    turns, order, threads = FairSemaphore(1), [], []
    assert turns.acquire(1)

    def wait(number: int) -> None:
        assert turns.acquire(20)
        order.append(number)
        turns.release()

    for number in range(8):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while len(turns._waiting) <= number:
            time.sleep(0.001)
    turns.release()
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    assert turns.acquire(0)


def test_who_waits_too_long_leaves_the_queue() -> None:
    turns = FairSemaphore(1)
    assert turns.acquire(0) and not turns.acquire(0.01)
    turns.release()
    assert turns.acquire(0)


def test_more_threads_than_connections(postgres_url: str) -> None:
    with midfold.open(postgres_url, connections=3) as sessions, psycopg.connect(postgres_url) as watch:
        most = [0]
        ours = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'"

        def work(number: int) -> None:
            session = sessions.session(f"s{number % 7}", context_length=4_000)
            for turn in range(3):
                session.append([user(f"{number}/{turn}")])
                session.view()
            if number == 20:
                most[0] = watch.execute(ours).fetchall()[0][0]

        before = watch.execute(ours).fetchall()[0][0]
        assert in_threads(40, work) == []
        assert most[0] <= before + 3
        assert sum(info.count for info in sessions.all()) == 120
        assert len(sessions.store.database._idle) <= 3
        assert sessions.check() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_bound_that_is_reached_for_long_is_a_clear_error(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path}/s.db"
    store = SqlStore(open_database(url, connections=1))
    store.append("s", entries("a"), dialect=CHAT)
    monkeypatch.setattr(database, "CONNECTION_WAIT_SECONDS", 0.05)
    with pytest.raises(StoreUnavailable, match="all 1 connections"):
        store.database.read(lambda tx: store.must("s"))
    assert store.must("s").count == 1
    store.close()


def test_connections_that_cannot_be_opened_give_their_place_back(tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    store = SqlStore(open_database(f"sqlite:///{blocked}/s.db", connections=1))
    store.close()
    (blocked / "s.db").rename(blocked / "t.db")
    (blocked / "s.db").mkdir()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            store.must("s")
    (blocked / "s.db").rmdir()
    (blocked / "t.db").rename(blocked / "s.db")
    assert store.info("s") is None


def test_a_writer_in_another_thread_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/s.db?timeout=0.1"))

    def nested(tx: object) -> None:
        assert [str(error) for error in in_threads(1, lambda _: store.append("s", entries("b"), dialect=CHAT))] != []

    store.database.write(nested)
    assert store.append("s", entries("a"), dialect=CHAT).positions == range(1)


def test_a_fork_begins_with_connections_of_its_own(tmp_path: Path) -> None:
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/s.db", connections=1))
    store.append("s", entries("a"), dialect=CHAT)
    held = store.database._connection()[0]
    child = os.fork()
    if not child:
        try:
            store.append("s", entries("b"), dialect=CHAT)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.database._put_back(held)
    assert [row.message.text for row in store.history("s")] == ["a", "b"]


def test_the_setting_bounds_what_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store:\n  connections: 5\n", encoding="utf-8")
    with midfold.open("memory:") as plain, midfold.open(f"sqlite:///{tmp_path}/s.db", config=load(file).config) as told:
        assert (plain.store.database.connections, told.store.database.connections) == (16, 5)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_store_that_nobody_closes_closes_its_connections_when_it_goes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db"}
    store = SqlStore(open_database(urls.get(kind) or request.getfixturevalue("postgres_url")))
    store.append("s", entries("a"), dialect=CHAT)
    connection = store.database.read(lambda tx: tx.connection)
    connection.execute("SELECT 1")
    del store
    gc.collect()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        connection.execute("SELECT 1")
