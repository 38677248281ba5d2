"""Rebuild of the search index: after a change of its rules, after damage, during other writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from midfold.errors import SchemaError
from midfold.recall import words
from midfold.recall.words import Term
from midfold.store import SqlStore, open_database, upkeep, word_index
from tests.support.store_contract import CHAT, entries

TEXTS = [f"number{place} common" for place in range(700)]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return address
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?synchronous=normal"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = SqlStore(open_database(url))
    opened.append("s", entries(*TEXTS), dialect=CHAT)
    opened.append("s", entries("a few", "wait still"), dialect=CHAT)
    yield opened
    assert list(opened.check(deep=True)) == []
    opened.close()


def found(store: SqlStore, text: str) -> list[int]:
    each = store.find([Term(word) for word in text.split()])
    return sorted(set.intersection(*({place for places in one.values() for place in places} for one in each)))


def newer_rules(patch: pytest.MonkeyPatch) -> None:
    """Simulate the next version of the rules: every token is prefixed with x."""
    original = words.index_text
    for module in (upkeep, word_index):
        patch.setattr(module, "VERSION", words.VERSION + 1)
    for place in ("midfold.store.word_index", "midfold.store.bodies"):
        patch.setattr(f"{place}.index_text", lambda data: " ".join(f"x{word}" for word in original(data).split()))


def test_the_index_is_the_same_afterwards(store: SqlStore) -> None:
    reports: list[tuple[int, int]] = []
    assert upkeep.reindex(store.database, lambda done, total: reports.append((done, total))) == len(TEXTS) + 2
    assert reports[-1] == (len(TEXTS) + 2, len(TEXTS) + 2) and len(reports) == 2
    assert found(store, "number7") == [7] and found(store, "wait still") == [701]
    assert len(found(store, "common")) == len(TEXTS)
    store.delete("s")
    assert found(store, "common") == []
    store.append("s", entries("again"), dialect=CHAT)


def test_other_rules_make_it_anew_when_the_store_is_opened(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        newer_rules(patch)
        _opened_by_a_newer_program(store)
    older_again(store)


def older_again(store: SqlStore) -> None:
    store.database.write(lambda tx: tx.run("set_words", words=words.VERSION))
    upkeep.reindex(store.database)


def _opened_by_a_newer_program(store: SqlStore) -> None:
    assert any("store reindex" in problem for problem in store.check())
    assert upkeep.is_stale(store.database)
    upkeep.migrate(store.database)
    assert not upkeep.is_stale(store.database) and list(store.check(deep=True)) == []
    assert found(store, "number7") == [] and found(store, "xnumber7") == [7]
    store.append("s", entries("number7 once more"), dialect=CHAT)
    assert found(store, "xnumber7") == [7, 702]


def test_a_program_with_older_rules_is_refused(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        newer_rules(patch)
        upkeep.migrate(store.database)
    with pytest.raises(SchemaError, match="newer midfold"):
        upkeep.migrate(store.database)
    older_again(store)


def test_everything_is_found_while_it_is_made_and_after_it_was_stopped(store: SqlStore) -> None:
    seen: list[tuple[list[int], int]] = []

    class Stopped(Exception):
        pass

    def look(done: int, total: int) -> None:
        store.append("t", entries(f"meanwhile {done}"), dialect=CHAT)
        seen.append((found(store, "number3"), len(found(store, "common"))))
        raise Stopped

    with pytest.raises(Stopped):
        upkeep.reindex(store.database, look)
    assert seen == [([3], len(TEXTS))]
    assert found(store, "meanwhile") == [0] and len(found(store, "common")) == len(TEXTS)
    upkeep.reindex(store.database)


def test_a_damaged_index_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlStore(open_database(f"sqlite:///{path}"))
    store.append("s", entries(*TEXTS), dialect=CHAT)
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM word_segments")
    connection.close()
    assert found(store, "number59") == [] and list(store.check()) != []
    upkeep.reindex(store.database)
    assert found(store, "number59") == [59] and list(store.check(deep=True)) == []
