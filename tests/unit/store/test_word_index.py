"""The packed search index: writes of an append, reads of a lookup, branches, gaps left by older versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from midfold.errors import StoreDamaged
from midfold.recall.words import Term
from midfold.store import SqlStore, open_database, upkeep, word_index
from midfold.store.database import Tx
from midfold.store.word_index import MAX_UNINDEXED_MESSAGES, MERGE_LEVELS, MERGE_SEGMENTS
from tests.support.store_contract import CHAT, entries


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    is_server = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_server else f"sqlite:///{tmp_path}/s.db?synchronous=normal"
    opened = SqlStore(open_database(url))
    yield opened
    opened.close()


def places(store: SqlStore, word: str, name: str = "s", *, prefix: bool = False) -> list[int]:
    return store.find([Term(word, prefix)], of=name)[0].get(name, [])


def segments(store: SqlStore, name: str = "s") -> list[word_index.WordSegment]:
    session = store.must(name).id
    return store.database.read(lambda tx: word_index.segments(tx, session))


def run(store: SqlStore, statement: str) -> None:
    store.database.write(lambda tx: tx.connection.execute(statement))


def test_small_parts_become_one_and_nothing_is_lost(store: SqlStore) -> None:
    count = MERGE_SEGMENTS * MERGE_SEGMENTS + 5
    for number in range(count):
        store.append("s", entries(f"common word{number:03}"), dialect=CHAT)
    found = segments(store)
    assert [one.start for one in found[1:]] == [one.stop for one in found[:-1]]
    assert found[0].start == 0 and found[-1].stop == count
    assert len(found) < 2 * MERGE_SEGMENTS and found[0].messages >= MERGE_LEVELS[0][1]
    assert places(store, "common") == list(range(count))
    assert [places(store, f"word{number:03}") for number in (0, 7, 8, 63, count - 1)] == [[0], [7], [8], [63], [68]]
    assert places(store, "word06", prefix=True) == list(range(60, 69))
    assert places(store, "word06") == places(store, "wor") == places(store, "zebra") == []
    assert list(store.check(deep=True)) == []


def test_words_beside_the_edges_of_blocks_are_found(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "BLOCK_CHARACTERS", 20)
    words = [f"w{number:02}" for number in range(40)]
    store.append("s", entries(*words), dialect=CHAT)
    assert [places(store, word) for word in words] == [[number] for number in range(40)]
    assert places(store, "w", prefix=True) == list(range(40))
    assert places(store, "w1", prefix=True) == list(range(10, 20))
    assert places(store, "a") == places(store, "zz") == []


def test_a_branch_has_the_words_it_shares_and_no_others(store: SqlStore) -> None:
    said = [f"shared{number}" for number in range(30)]
    store.sync("s", entries(*said, "alone"), dialect=CHAT)
    branch = store.sync("s", entries(*said[:20], "elsewhere"), dialect=CHAT).session
    assert branch != "s"
    assert places(store, "shared19", branch) == [19] and places(store, "elsewhere", branch) == [20]
    assert places(store, "shared20", branch) == places(store, "alone", branch) == []
    assert places(store, "alone") == [30] and list(store.check(deep=True)) == []
    store.delete("s")
    assert places(store, "shared19", branch) == [19] and list(store.check(deep=True)) == []


@pytest.mark.parametrize("count", [3, MAX_UNINDEXED_MESSAGES + 10])
def test_what_an_older_program_appended_is_found_and_taken_in(store: SqlStore, count: int) -> None:
    store.append("s", entries("first", *(f"older{number}" for number in range(count))), dialect=CHAT)
    run(store, "DELETE FROM word_blocks")
    run(store, "DELETE FROM word_segments")
    assert places(store, f"older{count - 1}") == [count]
    store.append("s", entries("newer"), dialect=CHAT)
    assert places(store, "newer") == [count + 1]
    upkeep.reindex(store.database, everything=False)
    assert places(store, "older0") == [1] and places(store, "first") == [0]
    assert list(store.check(deep=True)) == []


def test_a_block_that_cannot_be_read_is_damage_that_a_new_index_mends(store: SqlStore) -> None:
    store.append("s", entries("harbour"), dialect=CHAT)
    data = "x'00'" if store.database.flavour == "sqlite" else r"'\x00'"
    run(store, f"UPDATE word_blocks SET data = {data}")
    with pytest.raises(StoreDamaged, match="store reindex"):
        places(store, "harbour")
    assert upkeep.reindex(store.database) == 1
    assert places(store, "harbour") == [0]


def test_what_an_append_writes_does_not_grow_with_the_session(store: SqlStore) -> None:
    def written(number: int) -> int:
        before = store.database.read(_size)
        store.append("s", entries(f"turn {number} says this and that"), dialect=CHAT)
        return abs(store.database.read(_size) - before)

    early = [written(number) for number in range(MERGE_SEGMENTS * 4)]
    store.append("s", entries(*(f"much more {number}" for number in range(600))), dialect=CHAT)
    late = [written(number) for number in range(1000, 1000 + MERGE_SEGMENTS * 4)]
    assert sum(late) <= 2 * sum(early) + 2_000


def _size(tx: Tx) -> int:
    return int(tx.connection.execute("SELECT coalesce(sum(length(data)), 0) FROM word_blocks").fetchone()[0])
