"""Damaged database: each read returns exactly what was written, or raises a midfold error that says what to do."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import midfold
from midfold.errors import MidfoldError, StoreDamaged, StoreError
from midfold.session.sessions import Sessions
from midfold.store import SqlStore, open_database
from midfold.store.bodies import chain_of, digest_of
from midfold.store.rows import split_seals
from midfold.transcript.message import Message
from support.effort import effort
from support.fixtures import long_tool_heavy_conversation, user

TALK = long_tool_heavy_conversation().messages[:121]
SEEDS = effort(84, 168, 504)
PAGE = 4096
Truth = dict[str, Any]
Damage = Callable[[bytearray, random.Random], None]


def build(url: str) -> None:
    """Create sessions with nested compactions, an undone one, a branch, a continuation, and system prompts."""
    with midfold.open(url) as sessions:
        for name in ("one", "two"):
            session = sessions.session(name, context_length=64_000, system=f"You are {name}.")
            session.append(TALK)
            session.compact(force=True)
            session.append([user(f"and then {name} {word}") for word in ("apricots", "bananas", "cherries")])
            session.append(TALK[1:])
            session.compact(force=True)
        sessions.session("two").undo()
        changed = [*TALK[:20], user("something else about apricots")]
        sessions.session("one", context_length=64_000).sync(changed)
        child = sessions.session("three", context_length=64_000)
        child.append(TALK)
        child.compact(force=True, persistence="child", child="four")


def names(sessions: Sessions) -> list[str]:
    return sorted(info.name for info in sessions.all())


def looks(sessions: Sessions, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield every read call for one session."""
    session = sessions.session(name)
    store = sessions.store

    def view_at() -> list[Any]:
        return [session.view(at=record.seq).json() for record in session.receipts()]

    def unfolded() -> dict[str, list[bytes]]:
        handles = sorted({handle for record in session.receipts() for handle in record.receipt.handles})
        return {handle: session.unfold_bytes(handle) for handle in handles}

    def found() -> list[tuple[str, int, str]]:
        return sorted((hit.session, hit.position, hit.text) for hit in session.search("apricots"))

    def checkpoint() -> Any:
        wires = [bytes(message) for message in map(_wire, store.history(name))]
        chains = {chain: place for place, chain in enumerate(chain_of(map(digest_of, wires)), 1)}
        return store.checkpoints.find(name, chains)

    yield "info", lambda: (store.must(name).count, store.must(name).compaction, store.must(name).memory)
    yield "history", lambda: session.history().json()
    yield "slice", lambda: session.history(3, 9).json()
    yield "view", lambda: session.view().json()
    yield "views", view_at
    yield "receipts", lambda: [(record.seq, record.receipt.to_dict(), record.state) for record in session.receipts()]
    yield "unfold", unfolded
    yield "search", found
    yield "checkpoint", checkpoint
    yield "prompt", lambda: store.prompt(store.must(name))
    yield "export", lambda: _texts(session.export())


def _texts(exported: bytes) -> list[Any]:
    """Return the export without times and the name of the model."""
    lines = [json.loads(line) for line in exported.splitlines()]
    return [{key: value for key, value in line.items() if key not in ("at", "created", "model")} for line in lines]


def _wire(row: Any) -> bytes:
    message: Message = row.message
    return bytes(message.wire)


def truth_of(sessions: Sessions) -> Truth:
    found: Truth = {"names": names(sessions)}
    for name in found["names"]:
        found |= {f"{name}.{what}": look() for what, look in looks(sessions, name)}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store.db"
    build(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def truth(whole: Path) -> Truth:
    with midfold.open(f"sqlite:///{whole}") as sessions:
        assert sessions.check(deep=True) == []
        found = truth_of(sessions)
    assert found["one.search"]
    assert found["one.unfold"]
    assert found["one.checkpoint"]
    assert b"and then one apricots" in found["one.history"]
    assert found["names"] == ["four", "one", "one~1", "three", "two"]
    return found


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def scribble(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) - 64)
    data[at : at + 16] = chance.randbytes(16)


def flip_many(data: bytearray, chance: random.Random) -> None:
    for _ in range(200):
        flip(data, chance)


def zero(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(1, len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)


def swap(data: bytearray, chance: random.Random) -> None:
    one, two = (chance.randrange(1, len(data) // PAGE) * PAGE for _ in range(2))
    data[one : one + PAGE], data[two : two + PAGE] = data[two : two + PAGE], data[one : one + PAGE]


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(1, len(data)) :]


KINDS: tuple[Damage, ...] = (flip, scribble, flip_many, zero, swap, cut, flip, flip)


def damaged(whole: Path, target: Path, seed: int) -> Path:
    chance = random.Random(seed)
    data = bytearray(whole.read_bytes())
    KINDS[seed % len(KINDS)](data, chance)
    for beside in target.parent.glob(f"{target.name}-*"):
        beside.unlink()
    target.write_bytes(data)
    return target


def is_less(what: str, answer: Any, expected: Any) -> bool:
    """Return whether the answer only lacks entries, as if they had never been written."""
    if what in ("search", "names"):
        return all(item in expected for item in answer)
    if what == "export":
        return answer == [line for line in expected if "prompt" not in line or line in answer]
    if what == "prompt":
        return all(getattr(answer, kind) in (None, getattr(expected, kind)) for kind in ("system", "tools"))
    return (what, answer) in (("checkpoint", None), ("view", b"[]"))


def wrong_answers(path: Path, truth: Truth) -> tuple[list[str], int]:
    """Return the wrong answers, and the number of calls that raised a midfold error."""
    wrong: list[str] = []
    refused = 0

    def ask(what: str, look: Callable[[], Any]) -> None:
        nonlocal refused
        try:
            answer = look()
        except MidfoldError as error:
            assert str(error)
            refused += 1
        except Exception as error:  # noqa: BLE001 - that nothing but our own errors comes is what is tested
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if answer != truth[what] and not is_less(what.rpartition(".")[2], answer, truth[what]):
                wrong.append(f"{what}: another answer")

    try:
        sessions = midfold.open(f"sqlite:///{path}")
    except MidfoldError:
        return [], 1
    with sessions:
        ask("names", lambda: names(sessions))
        for name in truth["names"]:
            try:
                calls = list(looks(sessions, name))
            except MidfoldError:
                refused += 1
                continue
            for what, look in calls:
                ask(f"{name}.{what}", look)
        try:
            assert all(isinstance(problem, str) for problem in sessions.check(deep=True))
        except MidfoldError:
            refused += 1
    return wrong, refused


def test_a_damaged_file_gives_what_was_written_or_an_error_of_ours(whole: Path, truth: Truth, tmp_path: Path) -> None:
    told: list[str] = []
    refused = 0
    for seed in range(SEEDS):
        wrong, errors = wrong_answers(damaged(whole, tmp_path / "store.db", seed), truth)
        told += [f"seed {seed} ({KINDS[seed % len(KINDS)].__name__}): {answer}" for answer in wrong]
        refused += errors > 0
    assert told == []
    assert refused > SEEDS // 4


def test_nothing_is_damaged_without_damage(whole: Path, truth: Truth, tmp_path: Path) -> None:
    shutil.copy(whole, tmp_path / "store.db")
    assert wrong_answers(tmp_path / "store.db", truth) == ([], 0)


def command(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "midfold", *arguments, "--store", f"sqlite:///{path}"]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "list"),
        ("sessions", "show", "one"),
        ("sessions", "search", "apricots"),
        ("sessions", "export", "one"),
        ("store", "check", "--deep"),
    ],
)
def test_the_command_line_says_what_to_do(whole: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "store.db"
    shutil.copy(whole, path)
    assert command(path, *arguments).returncode == 0
    for seed in (2, 3):
        done = command(damaged(whole, path, seed), *arguments)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, 2)
    cut_off = bytearray(whole.read_bytes())
    del cut_off[PAGE * 9 :]
    path.write_bytes(cut_off)
    done = command(path, *arguments)
    assert done.returncode == 2
    assert "midfold store check --deep" in done.stderr
    assert "backup" in done.stderr


SEVENTH = "(SELECT body FROM messages WHERE position = 7)"
ALTERED = [
    (f"UPDATE bodies SET codec = 0, data = %(data)s WHERE id IN {SEVENTH}", "history"),
    (f"UPDATE bodies SET codec = 7 WHERE id IN {SEVENTH}", "history"),
    ("UPDATE messages SET body = (SELECT min(body) FROM messages) WHERE position = 7", "history"),
    ("UPDATE messages SET body = (SELECT min(body) FROM messages) WHERE position = 7", "slice"),
    ("DELETE FROM messages WHERE position = 7", "history"),
    ("DELETE FROM messages WHERE position < 3", "view"),
    ("DELETE FROM messages WHERE position = 30", "unfold"),
    ("UPDATE compactions SET undone = 5", "receipts"),
    ("UPDATE sessions SET memory = convert_to('{}', 'UTF8') || memory", "info"),
    ("UPDATE sessions SET count = count - 1", "info"),
    ("UPDATE sessions SET compaction = 1", "info"),
    ("UPDATE sessions SET dialect = 'other'", "info"),
    ("UPDATE pieces SET body = (SELECT min(id) FROM bodies) WHERE body IS NOT NULL", "view"),
    ("UPDATE pieces SET count = count - 1 WHERE count > 1", "view"),
    ("UPDATE pieces SET count = count - 1 WHERE count > 1", "checkpoint"),
    ("DELETE FROM pieces WHERE place = 1", "views"),
    ("UPDATE handles SET count = 1 WHERE count > 1", "unfold"),
    ("UPDATE handles SET first = first + 1 WHERE first IS NOT NULL", "unfold"),
    ("UPDATE compactions SET upto = upto - 1", "view"),
    ("UPDATE prompts SET body = (SELECT min(id) FROM bodies) WHERE body IS NOT NULL", "prompt"),
    ("UPDATE prompts SET body = (SELECT min(id) FROM bodies) WHERE body IS NOT NULL", "export"),
    ("UPDATE compactions SET receipt = replace(convert_from(receipt, 'UTF8'), 'mf-', 'mg-')::bytea", "receipts"),
    ("UPDATE messages SET body = (SELECT max(body) FROM messages WHERE position = 121) WHERE position = 7", "search"),
]


@pytest.mark.parametrize(("statement", "what"), ALTERED)
def test_rows_altered_by_hand_are_not_given_out(postgres_url: str, statement: str, what: str) -> None:
    build(postgres_url)
    with midfold.open(postgres_url) as sessions:
        expected = dict(looks(sessions, "one"))[what]()
        with psycopg.connect(postgres_url) as connection:
            connection.execute(statement, {"data": b'{"role":"user","content":"apricots are poison"}'})
        try:
            found = dict(looks(sessions, "one"))[what]()
        except StoreDamaged as error:
            assert "midfold store check --deep" in str(error)
        else:
            assert what == "search" and found == expected, "a search reads no more than it shows"
        assert sessions.check(deep=True) != []


def test_a_row_that_was_given_another_name_is_not_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    build(url)
    with midfold.open(url) as sessions:
        sessions.store.database.write(lambda tx: tx.connection.execute("UPDATE sessions SET name = 'x' WHERE id = 1"))
        with pytest.raises(StoreDamaged, match="session x"):
            sessions.all()
        assert any("session x" in problem for problem in sessions.check())


def test_a_damaged_session_can_be_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    build(url)
    with midfold.open(url) as sessions:
        database = sessions.store.database
        database.write(lambda tx: tx.connection.execute("UPDATE bodies SET data = x'00', codec = 0"))
        with pytest.raises(StoreDamaged):
            sessions.session("one").history()
        sessions.delete("one")
        assert "one" not in sessions


def test_what_an_older_midfold_wrote_is_read_as_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    build(url)
    with midfold.open(url) as sessions:
        expected = truth_of(sessions)

        def unseal(tx: Any) -> None:
            for seq, session, state in tx.connection.execute("SELECT seq, session, state FROM compactions").fetchall():
                values = (split_seals(state).plain, session, seq)
                tx.connection.execute("UPDATE compactions SET state = ? WHERE session = ? AND seq = ?", values)
            for name, memory in tx.connection.execute("SELECT name, memory FROM sessions").fetchall():
                tx.connection.execute(
                    "UPDATE sessions SET memory = ? WHERE name = ?", (split_seals(memory).plain, name)
                )

        sessions.store.database.write(unseal)
    with midfold.open(url) as sessions:
        assert truth_of(sessions) == expected
        assert sessions.check(deep=True) == []
        sessions.session("one", context_length=64_000).append([user("more")])
        assert sessions.session("one", context_length=64_000).compact(force=True).changed
        assert sessions.check(deep=True) == []


def test_an_empty_place_for_a_store_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/store.db"))
    assert store.sessions() == []
    with pytest.raises(StoreError, match="no session"):
        store.must("s")
    store.close()
