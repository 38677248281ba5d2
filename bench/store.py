"""Insert, compact, search and store 3,000 messages, against Hermes 0.19's session database."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import midfold
from bench.peers import HERMES, ask
from bench.workload import messages, origin, report
from midfold.session.sessions import Sessions

COUNT = 3_000
RUNS = 4
MODES = ["full", "normal"]
KEPT = 60
FULL = bool(os.environ.get("MIDFOLD_SOAK"))
SESSIONS = 1_000 if FULL else 20
SHORT, LONG = 100, 10_000
WINDOW = 200_000
QUERIES = ["test", "import error", "config", "README.md", "git commit", "src"]
SUMMARY = "## Goal\nFinish the refactoring.\n\n## Progress\n### Done\n- all of it"
PEER = """
import json, os, pathlib, sys, tempfile, time
import hermes_state
question = json.load(sys.stdin)
messages = question["messages"]
FIELDS = ("content", "tool_calls", "tool_call_id", "reasoning_content")
def fresh():
    folder = tempfile.mkdtemp()
    db = hermes_state.SessionDB(pathlib.Path(folder) / "state.db")
    db.create_session("bench", "cli")
    return db, folder
def timed(work):
    start = time.process_time()
    work()
    return time.process_time() - start
def clocked(mode):
    db, folder = fresh()
    db._conn.execute("PRAGMA synchronous=" + mode)
    start = time.perf_counter()
    cpu = timed(lambda: one_by_one(db))
    answer["clock_" + mode], answer["cpu_" + mode] = time.perf_counter() - start, cpu
    db.close()
    answer["size"] = size(folder)
def size(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
def one_by_one(db):
    for message in messages:
        db.append_message("bench", message["role"], **{key: message[key] for key in FIELDS if message.get(key)})
answer = {}
db, folder = fresh()
answer["synchronous"] = db._conn.execute("PRAGMA synchronous").fetchone()[0]
db.close()
for mode in question["modes"]:
    clocked(mode)
db, folder = fresh()
answer["batch"] = timed(lambda: db.replace_messages("bench", messages))
answer["search"] = timed(lambda: [db.search_messages(query, limit=20) for query in question["queries"]])
answer["compact"] = timed(lambda: db.archive_and_compact("bench", question["compacted"]))
db.close()
answer["size_after"] = size(folder)
print(json.dumps(answer))
"""


def main() -> None:
    values = messages(COUNT)
    raw = sum(len(json.dumps(value, ensure_ascii=False).encode()) for value in values)
    question = {"messages": values, "compacted": values[:2] + values[-KEPT:], "queries": QUERIES, "modes": MODES}
    peer: dict[str, float] = {}
    ours: dict[str, float] = {}
    for _ in range(RUNS):  # alternating, so that a temporary slowdown affects both
        _keep_best(peer, ask(HERMES, PEER, question))
        _keep_best(ours, _ours(values))
        _keep_best(ours, {"waits": _waits() * COUNT})
    names = {0: "off", 1: "normal", 2: "full"}
    print(
        f"  {COUNT:,} messages from {origin()}, {raw / 1e6:.1f} MB of JSON; best of {RUNS} in turns; both with a "
        f"write-ahead log; else CPU time and synchronous={names[int(peer['synchronous'])]}, the default of both"
    )
    print(f"  to wait {COUNT:,} times until 28 kB are on the disk, and do nothing else: {ours['waits'] * 1000:.0f} ms")
    one_by_one = [
        (f"{measure}_{mode}", f"insert one by one, synchronous={mode}, by the {measure.replace('cpu', 'CPU')}", 2)
        for mode in MODES
        for measure in ("clock", "cpu")
    ]
    for what, label, goal in (
        *one_by_one,
        ("batch", "insert in one batch", 5),
        ("compact", "archive and compact", 5),
        ("search", f"{len(QUERIES)} searches", 1),
    ):
        ratio = peer[what] / ours[what]
        print(f"  {label}: Hermes {peer[what] * 1000:.0f} ms, midfold {ours[what] * 1000:.1f} ms")
        report(f"{label}, against Hermes", f"{ratio:.1f}x faster", f">= {goal}x", met=ratio >= goal)
    for what, label in (("size", "after inserting"), ("size_after", "after compacting")):
        print(f"  on disk {label}: Hermes {peer[what] / raw:.1f}x the text, midfold {ours[what] / raw:.2f}x")
        report(
            f"size {label}, against Hermes",
            f"{ours[what] / peer[what]:.2f}x",
            "<= 0.33x",
            met=ours[what] <= peer[what] / 3,
        )
    _flat()
    _known(values[:2_000])
    _size(values)


def _keep_best(best: dict[str, float], run: dict[str, float]) -> None:
    for key, value in run.items():
        best[key] = min(value, best.get(key, value))


def _ours(values: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for mode in MODES:
        found |= _one_by_one(values, mode)
    with tempfile.TemporaryDirectory() as folder, midfold.open(f"sqlite:///{folder}/s.db") as sessions:
        sessions.summarizer = lambda ask: SUMMARY
        session = sessions.session("bench", context_length=WINDOW)
        found["batch"] = _timed(lambda: session.append(values))
        found["search"] = _timed(lambda: [sessions.search(query, limit=20) for query in QUERIES])
        found["compact"] = _committed(sessions, session)
        sessions.close()
        found["size_after"] = _on_disk(Path(folder))
    return found


def _one_by_one(values: list[dict[str, Any]], mode: str) -> dict[str, float]:
    found: dict[str, float] = {}
    url = "sqlite:///{}/one.db?synchronous={}"
    with tempfile.TemporaryDirectory() as folder, midfold.open(url.format(folder, mode)) as sessions:
        session = sessions.session("bench")
        start = time.perf_counter()
        found[f"cpu_{mode}"] = _timed(lambda: [session.append([value]) for value in values])
        found[f"clock_{mode}"] = time.perf_counter() - start
        sessions.close()
        found["size"] = _on_disk(Path(folder))
    return found


def _waits() -> float:
    """Return the seconds to sync an overwritten file to disk: the minimum cost of synchronous=full."""
    block, times = b"x" * 28_000, 300
    with tempfile.TemporaryFile() as file:
        file.write(block * times)
        os.fsync(file.fileno())
        start = time.perf_counter()
        for number in range(times):
            os.pwrite(file.fileno(), block, number * len(block))
            os.fdatasync(file.fileno())
        return (time.perf_counter() - start) / times


def _committed(sessions: Sessions, session: midfold.Session) -> float:
    """Time the store's part of a compaction, without planning and summary, as on Hermes' side."""
    spent: list[float] = []
    commit = sessions.store.commit

    def timed(*arguments: Any) -> int:
        start = time.process_time()
        seq = commit(*arguments)
        spent.append(time.process_time() - start)
        return seq

    sessions.store.commit = timed  # type: ignore[method-assign, assignment]
    assert session.compact(force=True).changed
    return spent[0]


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    work()
    return clock() - start


def _on_disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _flat() -> None:
    """Time one appended message, and the view of a newly opened session, alternating short and long ones."""
    tail = messages(500)[-SHORT // 2 :]
    with tempfile.TemporaryDirectory() as folder, midfold.open(f"sqlite:///{folder}/s.db?synchronous=normal") as store:
        open_sessions = {count: store.session(f"s{count}", context_length=WINDOW) for count in (SHORT, LONG)}
        for count, session in open_sessions.items():
            session.append([*messages(count - len(tail)), *tail])  # same end, and so nearly the same view
            session.compact(force=True, target_tokens=15_000)
        appended: dict[int, list[float]] = {SHORT: [], LONG: []}
        viewed: dict[int, list[float]] = {SHORT: [], LONG: []}
        for number in range(300):
            for count, session in open_sessions.items():
                value = {"role": "user", "content": f"and then number {number} of {count}"}
                appended[count].append(_timed(partial(session.append, [value]), time.perf_counter))
                viewed[count].append(_timed(partial(_viewed, store, session.name), time.perf_counter))
    for what, costs in (("append", appended), ("view", viewed)):
        short, long = (sorted(costs[count])[len(costs[count]) // 4] for count in (SHORT, LONG))
        print(f"  one {what}: {short * 1e6:.0f} us at {SHORT} messages, {long * 1e6:.0f} at {LONG:,} (lower quartiles)")
        ratio = long / short
        report(f"{what} at {LONG:,} messages against {SHORT}", f"{ratio:.2f}x the time", "<= 2x", met=ratio <= 2)


def _viewed(store: Sessions, name: str) -> object:
    return store.session(name).view().transcript


def _known(values: list[dict[str, Any]]) -> None:
    """Time a client's whole history when the store has all but the last message."""
    with tempfile.TemporaryDirectory() as folder, midfold.open(f"sqlite:///{folder}/s.db?synchronous=normal") as store:
        store.session("s").append(values)
        for number in range(200):
            store.session(f"other{number}").append([*values[:2], {"role": "user", "content": str(number)}])
        last = {"role": "user", "content": "and now?"}
        hashed = min(_timed(lambda: store.given([*values, last])) for _ in range(5))
        asked = store.given([*values, last])
        found = min(_timed(lambda: store.find_prefix(asked)) for _ in range(5))
        synced = _timed(lambda: store.session("s").sync(asked))
    print(
        f"  {len(values):,} messages sent again with one more: hashed in {hashed * 1e3:.1f} ms, their session found in "
        f"{found * 1e3:.1f}, the new one added in {synced * 1e3:.1f} (CPU time)"
    )
    ratio = (found + synced) / hashed
    report("finding and adding, against hashing", f"{ratio:.2f}x the time", "<= 0.5x", met=ratio <= 0.5)


def _size(values: list[dict[str, Any]]) -> None:
    """Measure the size of many distinct sessions of a thousand messages, so that nothing is deduplicated."""
    raw = 0
    with tempfile.TemporaryDirectory() as folder, midfold.open(f"sqlite:///{folder}/s.db?synchronous=normal") as store:
        start = time.perf_counter()
        for number in range(SESSIONS):
            mine = [_unlike(value, f"{number}.{place}") for place, value in enumerate(values[:1_000])]
            raw += sum(len(json.dumps(value, ensure_ascii=False).encode()) for value in mine)
            store.session(f"s{number}").append(mine)
        spent = time.perf_counter() - start
        store.close()
        size = _on_disk(Path(folder))
    print(f"  {SESSIONS:,} sessions x 1,000 messages, all different: {raw / 1e6:.0f} MB of JSON in {spent:.0f} s")
    report("size on disk against the text, index included", f"{size / raw:.2f}x", "<= 2.5x", met=size <= 2.5 * raw)


def _unlike(value: dict[str, Any], mark: str) -> dict[str, Any]:
    content = value.get("content")
    return {**value, "content": f"{content} [{mark}]" if isinstance(content, str) else f"[{mark}]"}


if __name__ == "__main__":
    main()
