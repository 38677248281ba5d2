"""Store maintenance: migrations, reindexing, deleting sessions, and integrity checks.

Migrations are numbered SQL files, applied once and in order, together with their number and checksum.
1. A released file never changes: its checksum is in the databases it was applied to.
2. A database with an unknown migration number was written by a newer midfold and is refused.
3. Older programs must be able to ignore what a migration adds. What it makes obsolete is deleted in the same
   transaction, with everything that refers to it.
4. A database without our migrations table is new. If it has tables with our names, creating them fails and nothing
   changes.

The index is rebuilt when the tokenizer version has changed, or when it is damaged.
5. This takes small transactions, so that others can read and write. Messages stay searchable by their old tokens until
   the new ones are written.
6. It may be interrupted at any point; the next start resumes it.
7. The database records the tokenizer version of its index. An index of a newer version is refused.

A store is intact if
8. positions are 0, 1, 2, ... up to the session's count, and their chain ends with the session's chain;
9. every message is in the view or covered by a handle of a compaction in force;
10. every piece of a view and every handle refers to existing messages and bodies;
11. there are no orphaned bodies, index rows, pieces or handles;
12. compactions and session memories match their seals; hidden turns match their digests.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any, NamedTuple

from midfold.errors import SchemaError, StoreDamaged, StoreError
from midfold.recall.words import VERSION
from midfold.store import gateway_turns as hidden_turns
from midfold.store import word_index, writing
from midfold.store.bodies import blob, inflate, next_chain
from midfold.store.database import FOREVER, Database, Flavour, Tx
from midfold.store.rows import read_session, require_compaction
from midfold.store.writing import lock_session, require_session

_FILE = re.compile(r"(\d{4})_\w+\.sql")
HIDDEN_TURNS = 3
"""Migration after which hidden turns are no longer stored as sessions."""
_OLD_HIDDEN = re.compile(r"gw-hidden-[0-9a-f]{24}")
ROWS_OF_A_SESSION = ("messages", "pieces", "handles", "compactions", "appends", "prompts")
PAGE = 1000
"""Messages checked per query."""
STALE = "{} parts of the search index were written by another version; run midfold store reindex"
OLD_INDEX = ("drop_old_words", "drop_waiting_words", "unmark_bodies")
"""Queries that delete the index of older versions. They run on an explicit reindex, when no older program is running.
"""
Progress = Callable[[int, int], None]
"""Callback with the number of messages done and the total."""


def is_stale(database: Database) -> bool:
    """Return whether any part of the index has an older tokenizer version."""
    return database.read(lambda tx: tx.number("oldest_words")) < VERSION


def reindex(database: Database, progress: Progress | None = None, *, everything: bool = True) -> int:
    """Rebuild the index of all messages, or of those not indexed with the current version; return their number."""

    def begin(tx: Tx) -> int:
        if everything:
            for query in (*OLD_INDEX, "drop_broken_segments", "drop_lost_blocks", "age_words"):
                tx.run(query)
            tx.run("set_words", words=0)
        return tx.number("words_to_renew", version=VERSION)

    def renew(tx: Tx, name: str) -> int:
        session = lock_session(tx, name)
        return 0 if session is None else word_index.renew(tx, session.id, session.count)

    total, done = database.write(begin, how="alone"), 0
    for _, name, _ in database.rows("session_names"):
        while count := database.write(lambda tx, name=name: renew(tx, name)):  # type: ignore[misc]
            done += count
            if progress is not None:
                progress(min(done, total), total)
    database.write(lambda tx: tx.run("set_words", words=VERSION))
    return done


def delete_session(tx: Tx, name: str) -> None:
    """Delete a session. Its branches and continuations are sessions of their own and are kept."""
    session = require_session(tx, name)
    bodies = [row[0] for row in tx.all("bodies_of", session=session.id)]
    for rows in ROWS_OF_A_SESSION:
        tx.run(f"delete_{rows}", session=session.id)
    tx.run("delete_lease", name=name)
    tx.run("delete_hidden_turns", name=name)
    tx.run("forget_parent", session=session.id)
    tx.run("delete_session", session=session.id)
    for body in sorted(bodies):
        if tx.one("unreferenced", id=body) is not None:
            tx.run("delete_body", id=body)


def delete_unused_session(tx: Tx, name: str, age: int) -> bool:
    """Delete a session unless it was used within the last `age` milliseconds; return whether it was deleted."""
    if lock_session(tx, name) is None or tx.one("is_unused", name=name, age=age) is None:
        return False
    delete_session(tx, name)
    return True


class Migration(NamedTuple):
    number: int
    name: str
    text: str
    checksum: str


@cache
def migrations(flavour: Flavour) -> tuple[Migration, ...]:
    found: list[Migration] = []
    for source in (files("midfold.store") / "sql" / flavour).iterdir():
        match = _FILE.fullmatch(source.name)
        if match:
            text = source.read_text(encoding="utf-8")
            checksum = blake2b(text.encode(), digest_size=16).hexdigest()
            found.append(Migration(int(match[1]), source.name, text, checksum))
    return tuple(sorted(found))


def pending(database: Database) -> list[Migration]:
    """Return the migrations to apply; raise SchemaError if the database is newer or has different migrations."""
    return database.read(lambda tx: _pending(tx, database))


def _pending(tx: Tx, database: Database) -> list[Migration]:
    known = migrations(database.flavour)
    if tx.one("has_migrations") is None:
        return list(known)
    applied = dict(tx.all("versions"))
    if tx.number("newest_words") > VERSION:
        raise SchemaError(f"{database.where}: its search index was written by a newer midfold; update midfold")
    ours = {migration.number: migration for migration in known}
    newer = sorted(set(applied) - set(ours))
    if newer:
        raise SchemaError(
            f"{database.where}: its schema version is {newer[-1]}, this midfold supports up to {known[-1].number}; "
            "it was written by a newer midfold; update midfold"
        )
    for number, checksum in applied.items():
        if checksum != ours[number].checksum:
            raise SchemaError(f"{database.where}: migration {ours[number].name} was applied with different contents")
    return [migration for migration in known if migration.number not in applied]


def migrate(database: Database, progress: Progress | None = None) -> list[Migration]:
    """Update the schema and the search index; return the applied migrations."""
    done = _apply(database) if pending(database) else []
    if is_stale(database):
        reindex(database, progress, everything=False)
    return done


def _apply(database: Database) -> list[Migration]:

    def apply(tx: Tx) -> list[Migration]:
        tx.run("lock_migrations")
        tx.run("make_migrations")
        todo = _pending(tx, database)
        for migration in todo:
            for statement in statements(migration.text):
                tx.connection.execute(statement)
            tx.run("add_version", number=migration.number, checksum=migration.checksum, words=VERSION)
        if any(migration.number == HIDDEN_TURNS for migration in todo):
            _drop_old_hidden_sessions(tx)
        return todo

    return database.write(apply, how="alone")


def _drop_old_hidden_sessions(tx: Tx) -> None:
    """Delete sessions with hidden turns of older versions: their owner is unknown."""
    for (name,) in tx.all("old_hidden_sessions"):
        if _OLD_HIDDEN.fullmatch(name):
            delete_session(tx, name)


def statements(text: str) -> list[str]:
    """Split a file into statements; comments must be on their own lines."""
    found = [""]
    for line in text.splitlines():
        if not line.startswith("--"):
            found[-1] += line + "\n"
            if sqlite3.complete_statement(found[-1]):
                found.append("")
    return [statement for piece in found if (statement := piece.strip().removesuffix(";"))]


def problems(database: Database, *, deep: bool) -> Iterator[str]:
    """Yield the problems of a store; with `deep`, also read and hash every body."""
    yield from database.damage()
    for name, what in (
        ("orphan_bodies", "bodies that nothing refers to"),
        ("missing_bodies", "messages whose body is missing"),
        ("orphan_rows", "rows that belong to no session or compaction"),
        ("orphan_words", "sessions or parts of sessions with an inconsistent search index"),
    ):
        yield from _try_check(database, lambda tx, name=name, what=what: _count(tx, f"{{}} {what}", name))  # type: ignore[misc]
    yield from _try_check(database, lambda tx: _count(tx, STALE, "stale_words", words=VERSION))
    if deep:
        yield from _try_check(database, lambda tx: list(hidden_turns.problems(tx)))
    try:
        rows = database.rows("sessions", before=FOREVER, most=1 << 31)
    except StoreError as error:
        yield str(error)
        return
    for row in rows:
        found = _try_check(database, lambda tx, row=row: list(_session_problems(tx, row, deep)))  # type: ignore[misc]
        yield from (f"session {row[1]}: {problem}" for problem in found)


def _try_check(database: Database, look: Callable[[Tx], list[str]]) -> list[str]:
    """Return the problems found, or the error if the check failed."""
    try:
        return database.read(look)
    except StoreError as error:
        return [str(error)]


def _count(tx: Tx, template: str, query: str, **values: Any) -> list[str]:
    count = tx.number(query, **values)
    return [template.format(count)] if count else []


def _session_problems(tx: Tx, listed: tuple[Any, ...], deep: bool) -> Iterator[str]:
    row = tx.one("session", name=listed[1])
    if row is None:
        return
    try:
        read_session(row, listed[1])
    except StoreDamaged as error:
        yield str(error)
    session, count, chain, current = row[0], row[11], blob(row[12]), row[13]
    if not all(isinstance(number, int) for number in (session, count, current)):
        return
    yield from _history_problems(tx, session, count, chain)
    if deep:
        yield from _body_problems(tx, session, count)
        try:
            writing.prompt_history(tx, session)
        except StoreDamaged as error:
            yield str(error)
    covered: set[int] = set()
    known = {seq: (base, upto) for seq, base, upto, *_ in tx.all("compactions", session=session)}
    seq, lines = current, 0
    while seq:
        if seq not in known or lines > len(known):
            yield f"compaction {seq} is in force but missing"
            return
        try:
            require_compaction(tx, session, seq)
        except StoreDamaged as error:
            yield str(error)
        for handle, _, _, first, length, body in tx.all("handles", session=session, seq=seq):
            if first is not None and first + length > count:
                yield f"handle {handle} covers positions up to {first + length}, but there are {count} messages"
            covered.update(range(first or 0, (first or 0) + length) if first is not None else ())
            if body is not None and tx.one("body", id=body) is None:
                yield f"handle {handle} refers to a missing body"
        seq, lines = known[seq][0], lines + 1
    if current:
        yield from _view_problems(tx, session, current, known[current][1], count, covered)


def _view_problems(tx: Tx, session: int, seq: int, upto: int, count: int, covered: set[int]) -> Iterator[str]:
    shown: set[int] = set()
    for _, place, first, length, body in tx.all("pieces", session=session, seq=seq):
        if body is None:
            shown.update(range(first, first + length))
        elif tx.one("body", id=body) is None:
            yield f"the view of compaction {seq} refers to a missing body at place {place}"
    if upto > count or any(position >= upto for position in shown):
        yield f"the view of compaction {seq} shows messages it was not made from"
    lost = set(range(upto)) - shown - covered
    if lost:
        yield f"{len(lost)} message(s) are neither in the view nor covered by a compaction, the first at {min(lost)}"


def _history_problems(tx: Tx, session: int, count: int, chain: bytes) -> Iterator[str]:
    last, expected = b"", 0
    while True:
        rows = tx.all("chained", session=session, start=expected, most=PAGE)
        for position, stored, digest in rows:
            last = next_chain(last, blob(digest))
            if position != expected:
                yield f"position {expected} is missing"
                return
            if last != stored:
                yield f"the chain is broken at position {position}"
                return
            expected += 1
        if len(rows) < PAGE:
            break
    if expected != count:
        yield f"{expected} message(s) found, but the session counts {count}"
    elif last != chain:
        yield "the chain does not match the session's chain"


def _body_problems(tx: Tx, session: int, count: int) -> Iterator[str]:
    for start in range(0, count, PAGE):
        rows = tx.all("messages", session=session, start=start, stop=start + PAGE, most=PAGE)
        for position, *_, digest, codec, data in rows:
            try:
                inflate(digest, codec, data)
            except StoreDamaged:
                yield f"the body at position {position} does not match its hash"
