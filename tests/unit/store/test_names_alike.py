"""Sessions with a common name prefix are found by name, at no cost from other sessions and without hiding any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import midfold
from midfold.session.sessions import Sessions
from midfold.store.database import FOREVER, Tx
from midfold.store.sqlstore import LAST_CHARACTER

OTHERS = 10_000
MINE = 5


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?synchronous=normal"
    with midfold.open(request.getfixturevalue("postgres_url") if request.param == "postgres" else url) as opened:
        yield opened


def fill(sessions: Sessions, owner: str, count: int, *, start: int) -> None:
    """Create empty sessions of an owner; those created later are used later."""
    database = sessions.store.database
    statement = "INSERT INTO sessions (name, kind, dialect, created, updated) VALUES (?, 'root', 'openai-chat', ?, ?)"
    rows = [(f"{owner}/s-{number}", start + number, start + number) for number in range(count)]

    def work(tx: Tx) -> None:
        tx.connection.cursor().executemany(
            statement.replace("?", "%s") if database.flavour == "postgres" else statement, rows
        )

    database.write(work)


def work_of_sqlite(sessions: Sessions) -> int:
    """Count the steps of SQLite for an answer of `MINE` sessions, in hundreds."""
    steps: list[None] = []

    def work(tx: Tx) -> list[Any]:
        tx.connection.set_progress_handler(lambda: steps.append(None), 100)
        values = {"under": "me/", "beyond": f"me/{LAST_CHARACTER}", "before": FOREVER, "most": 100}
        found = list(tx.all("sessions_under", **values))
        tx.connection.set_progress_handler(None, 0)
        return found

    assert len(sessions.store.database.read(work)) == MINE
    return len(steps)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_whose_sessions_are_older_than_ten_thousand_others_still_has_them(sessions: Sessions) -> None:
    fill(sessions, "me", MINE, start=0)
    fill(sessions, "they", OTHERS, start=MINE)
    assert [info.name for info in sessions.all(under="me/")] == [f"me/s-{number}" for number in reversed(range(MINE))]
    assert [info.name for info in sessions.all(2, under="they/")] == ["they/s-9999", "they/s-9998"]
    assert [info.name for info in sessions.all(1)] == ["they/s-9999"]


def test_sqlite_reads_no_session_of_another_name(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db?synchronous=normal") as opened:
        fill(opened, "me", MINE, start=0)
        alone = work_of_sqlite(opened)
        fill(opened, "they", OTHERS, start=MINE)
        assert work_of_sqlite(opened) <= alone + 1


def test_postgresql_reads_no_session_of_another_name(postgres_url: str) -> None:
    with midfold.open(postgres_url) as opened:
        fill(opened, "me", MINE, start=0)
        fill(opened, "they", OTHERS, start=MINE)
        query = opened.store.database.read(lambda tx: tx.queries["sessions_under"])
    values = {"under": "me/", "beyond": f"me/{LAST_CHARACTER}", "before": FOREVER, "most": 100}
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).fetchone()
    assert row is not None
    found = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    scan = next(node for node in nodes(found[0]["Plan"]) if node.get("Alias") == "s")
    assert (scan["Actual Rows"], scan.get("Rows Removed by Filter", 0)) == (MINE, 0), scan


@pytest.mark.parametrize(
    ("under", "found"),
    [
        ("a", ["a", "a/é", "a/b", "a/B", "ab"]),
        ("a/", ["a/é", "a/b", "a/B"]),
        ("a/é", ["a/é"]),
        ("A", []),
        ("a/%", []),
        ("_", []),
        ("a\x00", []),
        ("\ud800", []),
    ],
)
def test_a_beginning_is_taken_by_the_letter(sessions: Sessions, under: str, found: list[str]) -> None:
    for name in ("b", "ab", "a/B", "a/b", "a/é", "a"):
        sessions.session(name).append([{"role": "user", "content": name}])
    assert [info.name for info in sessions.all(under=under)] == found
