"""Search in 10,000 messages on SQLite and PostgreSQL: time per search, and size of the index relative to the text."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

from bench.workload import ROOT, messages
from midfold.recall import Recall
from midfold.session.sessions import open_sessions
from midfold.store.database import Database

COUNT, A_TURN = 10_000, 20
QUERIES = [
    "pytest failed assertion",
    "config.yaml default timeout",
    "why was the migration rejected",
    "README.md install",
    "git commit hash",
    "parse_url",
    "connection reset by peer",
    "class names used twice",
    "def main",
    "error message of the last test run",
]
MOST_MS, MOST_SHARE = 20.0, 0.4


def main() -> None:
    talk = list(messages(COUNT))
    with tempfile.TemporaryDirectory() as folder:
        _measure("sqlite", f"sqlite:///{folder}/recall.db?synchronous=normal", talk)
    sys.path.append(str(ROOT / "tests"))
    from support.postgres import server

    with server() as running:
        _measure("postgres", running.url, talk)


def _measure(name: str, url: str, talk: list[dict[str, object]]) -> None:
    with open_sessions(url) as sessions:
        session = sessions.session("bench")
        for start in range(0, len(talk), A_TURN):
            session.append(talk[start : start + A_TURN])
        text = sum(len(bytes(row.message.wire)) for row in sessions.store.history("bench"))
        tools = session.recall()
        spent = [_spend(tools, query) for query in QUERIES * 3]
        times, processor = sorted(one[0] for one in spent), statistics.median(one[1] for one in spent)
        size = _index_size(sessions.store.database, name)
    p50, p95 = statistics.median(times), times[int(len(times) * 0.95)]
    verdict = "ok" if p50 <= MOST_MS and size / text <= MOST_SHARE else "MISSED"
    print(
        f"  {name:9} {len(talk):,} messages, {text / 1e6:.1f} MB: p50 {p50:.1f} ms, p95 {p95:.1f} ms "
        f"(aim {MOST_MS:.0f}), {processor:.1f} ms of it worked here; "
        f"index {size / 1e6:.1f} MB = {size / text:.2f}x of the text (aim {MOST_SHARE})  {verdict}"
    )


def _spend(tools: Recall, query: str) -> tuple[float, float]:
    """Return wall-clock and processor milliseconds; processor time excludes other load on the machine."""
    start, worked = time.perf_counter(), time.process_time()
    tools.run("context_search", {"query": query})
    return (time.perf_counter() - start) * 1000, (time.process_time() - worked) * 1000


def _index_size(database: Database, name: str) -> int:
    query = (
        "SELECT sum(length(data) + length(word) + 8) FROM word_blocks"
        if name == "sqlite"
        else "SELECT pg_total_relation_size('word_blocks') + pg_total_relation_size('word_segments')"
    )
    return int(database.read(lambda tx: tx.connection.execute(query).fetchall())[0][0])
