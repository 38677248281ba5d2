"""Full or read-only disk: a clear error, an intact history, and the next call works afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import midfold
from midfold.errors import StoreUnavailable
from midfold.session.sessions import Sessions
from support.fixtures import long_tool_heavy_conversation, user
from support.postgres import Server, server

TALK = long_tool_heavy_conversation().messages
LIMIT = 3 << 20


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Start a server with a write-ahead log in files of 1 MB, so that a file size limit can affect only the tables."""
    with server("--wal-segsize=1") as running:
        yield running


def noise(number: int) -> str:
    """Return incompressible text with words that fill the index."""
    words = " ".join(os.urandom(6).hex() for _ in range(400))
    return f"{words} {b64encode(os.urandom(48_000)).decode()} {number}"


def filled(sessions: Sessions, told: str) -> int:
    """Append until it fails; return the number of acknowledged appends."""
    session = sessions.session("s", context_length=64_000)
    done = len(session.history())
    with pytest.raises(StoreUnavailable) as caught:
        for number in range(200):
            session.append([user(noise(number))])
            done += 1
    assert told in str(caught.value)
    return done


def assert_intact(sessions: Sessions, promised: int) -> None:
    session = sessions.session("s", context_length=64_000)
    assert len(session.history()) == promised
    assert session.history(0, len(TALK)).messages == TALK
    assert session.search("schema", limit=1)
    assert sessions.check(deep=True) == []


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """Mount a file system of 6 MB at `folder`, and yield a function that changes its options."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here; the tests with limits for files stand in")
    try:
        yield lambda options: _run("mount", "-o", f"remount,{options}", str(folder))
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def test_a_small_disk(own_server: Server) -> None:
    folder = own_server.folder / "small"
    with small_disk(folder) as remount:
        shutil.chown(folder, "nobody")
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        url = own_server.database("on_small_disk") + "%20-cdefault_tablespace%3Dsmall"
        with midfold.open(url) as sessions:
            sessions.session("s").append(TALK)
            promised = filled(sessions, "disk is full")
            assert_intact(sessions, promised)
            remount("size=64m")
            session = sessions.session("s", context_length=64_000)
            session.append([user("room again")])
            assert session.compact(force=True).receipt.status == "compacted"
            assert_intact(sessions, promised + 1)


def test_a_small_disk_under_sqlite(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with small_disk(folder) as remount, midfold.open(f"sqlite:///{folder}/s.db") as sessions:
        sessions.session("s").append(TALK)
        promised = filled(sessions, "full")
        assert_intact(sessions, promised)
        remount("size=64m")
        sessions.session("s").append([user("room again")])
        assert_intact(sessions, promised + 1)


def test_a_disk_that_became_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with small_disk(folder) as remount:
        with midfold.open(f"sqlite:///{folder}/s.db") as sessions:
            sessions.session("s").append(TALK)
        remount("ro")
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            midfold.open(f"sqlite:///{folder}/s.db")
        remount("rw")
        with midfold.open(f"sqlite:///{folder}/s.db") as sessions:
            assert_intact(sessions, len(TALK))
            sessions.session("s").append([user("next")])


def test_files_that_may_not_grow(own_server: Server) -> None:
    with midfold.open(own_server.database("with_small_files")) as sessions:
        sessions.session("s").append(TALK)
        own_server.stop()
        own_server.start(largest_file=LIMIT)
        promised = filled(sessions, "File too large")
        assert_intact(sessions, promised)
        own_server.stop()
        own_server.start()
        assert_intact(sessions, promised)
        sessions.session("s").append([user("room again")])
        assert_intact(sessions, promised + 1)
