"""Restarted servers and lost connections: a clear error, an intact history, and the next call works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import midfold
from midfold.errors import MissingExtra, StoreError, StoreUnavailable
from midfold.session.sessions import Sessions
from midfold.store import SqlStore, open_database
from midfold.store.database import Tx
from midfold.store.writing import extend, lock_session
from support.fixtures import long_tool_heavy_conversation, user
from support.postgres import Server, server
from tests.support.store_contract import CHAT, entries

TALK = long_tool_heavy_conversation().messages


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Start a server that a test may stop."""
    with server() as running:
        yield running


@pytest.fixture
def sessions(own_server: Server) -> Iterator[Sessions]:
    with midfold.open(own_server.url) as opened:
        opened.session("s", context_length=64_000).append(TALK)
        yield opened


def test_a_server_that_restarts_in_the_middle_of_a_transaction(own_server: Server, sessions: Sessions) -> None:
    def append(tx: Tx) -> None:
        session = lock_session(tx, "s")
        assert session is not None
        extend(tx, session, entries("lost"), dialect=CHAT)
        own_server.stop("immediate")
        own_server.start()
        tx.number("branches", root=1)

    with pytest.raises(StoreUnavailable):
        sessions.store.database.write(append)
    session = sessions.session("s", context_length=64_000)
    assert session.history().messages == TALK
    session.append([user("next")])
    assert session.compact(force=True).receipt.status == "compacted"
    assert sessions.check(deep=True) == []


def test_a_server_that_restarts_while_a_summary_is_made(own_server: Server, sessions: Sessions) -> None:
    def summarize(ask: midfold.SummaryRequest) -> str:
        own_server.stop("immediate")
        own_server.start()
        return "## Goal\nafter the restart"

    sessions.summarizer = summarize
    done = sessions.session("s", context_length=64_000).compact(force=True)
    assert done.receipt.status == "compacted"
    assert sessions.check(deep=True) == []


def test_a_server_that_is_away_is_a_clear_error_without_a_password(own_server: Server, sessions: Sessions) -> None:
    own_server.stop("fast")
    session = sessions.session
    with pytest.raises(StoreUnavailable) as caught:
        session("s")
    assert "postgresql" in str(caught.value)
    own_server.start()
    assert session("s").history().messages == TALK


def test_a_connection_that_is_cut(own_server: Server, sessions: Sessions) -> None:
    def cut() -> None:
        with psycopg.connect(own_server.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    cut()
    session = sessions.session("s", context_length=64_000)
    session.append([user("the idle connection was dead, nobody noticed")])

    def append(tx: Tx) -> None:
        found = lock_session(tx, "s")
        assert found is not None
        extend(tx, found, entries("lost"), dialect=CHAT)
        cut()
        tx.number("branches", root=1)

    with pytest.raises(StoreUnavailable):
        sessions.store.database.write(append)
    assert len(session.history()) == len(TALK) + 1
    session.append([user("next")])
    assert sessions.check(deep=True) == []


def test_a_read_only_server(own_server: Server, sessions: Sessions) -> None:
    with psycopg.connect(own_server.url, autocommit=True) as other:
        other.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        other.execute("SELECT pg_reload_conf()")
    sessions.close()
    session = sessions.session("s")
    with pytest.raises(StoreUnavailable, match="read-only"):
        session.append([user("no")])
    assert session.history().messages == TALK


def test_passwords_are_in_no_message(own_server: Server) -> None:
    secret = "hunter" + "2"
    for url in (f"postgresql://me:{secret}@/x?host={own_server.folder}/nowhere", f"postgresql://me:{secret}@[bad/x"):
        with pytest.raises((StoreError, MissingExtra)) as caught:
            SqlStore(open_database(url))
        chain: BaseException | None = caught.value
        assert secret not in str(chain)


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import midfold
from midfold.errors import StoreUnavailable
url, limit = sys.argv[1], int(sys.argv[2])
with midfold.open(url) as sessions:
    session = sessions.session("s")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    done = 0
    try:
        for number in range(10_000):
            session.append([{"role": "user", "content": f"{number} " + str(number * 7919) * 300}])
            done += 1
    except StoreUnavailable as error:
        print(error, file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(session.history()) == done, (len(session.history()), done)
    session.append([{"role": "user", "content": "room again"}])
    assert sessions.check(deep=True) == []
    print(done)
"""


@pytest.mark.parametrize("limit", [250_000, 500_000])
def test_a_file_that_may_not_grow(tmp_path: Path, limit: int) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, url, str(limit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "full" in done.stderr or "failed" in done.stderr
    assert int(done.stdout) < 10_000
