"""Cost by session length, counted in database steps instead of seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import midfold
from midfold.session.sessions import Sessions
from midfold.store.word_index import MERGE_SEGMENTS
from support.fixtures import call, user

SHORT, LONG = 100, 10_000


def steps(sessions: Sessions, work: Callable[[], object]) -> int:
    """Count the instructions SQLite executes for `work`, in tens."""
    (connection,) = sessions.store.database._idle
    counted = [0]

    def tick() -> None:
        counted[0] += 1

    connection.set_progress_handler(tick, 10)
    work()
    connection.set_progress_handler(None, 10)
    return counted[0]


def test_appending_and_viewing_do_not_depend_on_the_length_of_the_session(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db?synchronous=normal") as sessions:
        costs: dict[int, tuple[int, int]] = {}
        for count in (SHORT, LONG):
            session = sessions.session(f"s{count}", context_length=8_000)
            turns = [turn for number in range(count // 2) for turn in call(number, "sh", {"n": number}, f"{number} ok")]
            session.append(turns)
            assert session.compact(target_tokens=800, force=True).changed
            added = [
                user(f"one more for {count}, number {number}") for number in range(2 * MERGE_SEGMENTS * MERGE_SEGMENTS)
            ]
            append = steps(sessions, lambda: [session.append([message]) for message in added])  # noqa: B023
            fresh = sessions.session(session.name)
            view = steps(sessions, fresh.view)
            assert len(fresh.view()) < len(added) + SHORT
            costs[count] = (append, view)
        assert costs[LONG][0] <= 2 * costs[SHORT][0]
        assert costs[LONG][1] <= 2 * costs[SHORT][1]


def test_a_history_that_is_known_is_found_and_synced_in_a_few_steps(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db?synchronous=normal") as sessions:
        costs: dict[int, tuple[int, ...]] = {}
        for count in (SHORT, 2_000):
            history = [user(f"{number} of {count}") for number in range(count)]
            session = sessions.session(f"s{count}")
            session.append(history)
            same, longer = sessions.given(history), sessions.given([*history, user("new")])
            other = sessions.given([*history[: count // 3], *(user(f"else {number}") for number in range(count))])
            costs[count] = (
                steps(sessions, lambda: sessions.find_prefix(longer)),  # noqa: B023
                steps(sessions, lambda: sessions.find_prefix(other)),  # noqa: B023
                steps(sessions, lambda: session.sync(same)),  # noqa: B023
                steps(sessions, lambda: session.sync(longer)),  # noqa: B023
            )
        assert all(long <= 2 * short + 5 for short, long in zip(costs[SHORT], costs[2_000], strict=True)), costs


def test_a_compaction_rewrites_and_indexes_nothing(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db?synchronous=normal") as sessions:
        session = sessions.session("s", context_length=16_000)
        session.append([turn for number in range(300) for turn in call(number, "sh", {"n": number}, f"{number} " * 80)])
        database = sessions.store.database

        def rows() -> list[tuple[object, ...]]:
            tables = ("messages", "word_segments", "word_blocks")
            texts = [f"SELECT '{table}', count(*) FROM {table}" for table in tables]
            found: list[tuple[object, ...]] = database.read(
                lambda tx: tx.connection.execute(" UNION ALL ".join(texts)).fetchall()
            )
            return found

        before = rows()
        assert session.compact(force=True).changed
        assert rows() == before


def test_a_search_asks_the_database_a_few_times_and_reads_a_few_blocks_of_its_index(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db?synchronous=normal") as sessions:
        costs: dict[int, int] = {}
        for count in (1_000, 8_000):
            session = sessions.session(f"s{count}")
            session.append([user(f"plank {number} lies beside rivet{number:05}") for number in range(count)])
            recall = session.recall()
            (connection,) = sessions.store.database._idle
            statements: list[str] = []
            connection.set_trace_callback(statements.append)
            costs[count] = steps(sessions, lambda: recall.run("context_search", {"query": "rivet00500 rivet00700"}))  # noqa: B023
            connection.set_trace_callback(None)
            kinds = Counter(" ".join(one.split()[:2]) for one in statements if "digest >=" not in one)
            assert kinds.total() <= 5 and not {"BEGIN", "COMMIT"} & {*kinds}, statements
        assert costs[8_000] <= 1.5 * costs[1_000], costs
