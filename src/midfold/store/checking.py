"""Invariants of a store, each checked by reading it.

1. Positions are 0, 1, 2, ... up to the session's count, and the chain over them ends in the session's.
2. Every message is in the view, or covered by a compaction: a handle of one in force stands for it.
3. Every piece of a view and every handle leads to messages and bodies that are there.
4. No row belongs to nothing: bodies, index rows, pieces, handles.
5. Compactions and what sessions remember are as they were sealed; hidden turns are what was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from midfold.errors import StoreDamaged, StoreError
from midfold.fold.words import VERSION
from midfold.store import hidden_turns, prompts, seals
from midfold.store.bodies import blob, chained, inflated
from midfold.store.database import FOREVER, Database, Tx
from midfold.store.rows import info_of

PAGE = 1000
STALE = "{} bodies are indexed by the rules of another midfold; midfold store reindex makes the index anew"


def problems(database: Database, *, deep: bool) -> Iterator[str]:
    """What is wrong; nothing if all is well. `deep` also reads every body and hashes it."""
    yield from database.damage()
    for name, what in (
        ("orphan_bodies", "bodies that nothing refers to"),
        ("missing_bodies", "messages whose body is missing or not in the search index"),
        ("orphan_rows", "rows that belong to no session or compaction"),
        ("orphan_words", "bodies that the search index does not agree with"),
    ):
        yield from _told(database, lambda tx, name=name, what=what: _counted(tx, f"{{}} {what}", name))  # type: ignore[misc]
    yield from _told(database, lambda tx: _counted(tx, STALE, "stale_words", words=VERSION))
    if deep:
        yield from _told(database, lambda tx: list(hidden_turns.problems(tx)))
    try:
        rows = database.rows("sessions", before=FOREVER, most=1 << 31)
    except StoreError as error:
        yield str(error)
        return
    for row in rows:
        found = _told(database, lambda tx, row=row: list(_session(tx, row, deep)))  # type: ignore[misc]
        yield from (f"session {row[1]}: {problem}" for problem in found)


def _told(database: Database, look: Callable[[Tx], list[str]]) -> list[str]:
    """What was found; where looking is impossible, why."""
    try:
        return database.read(look)
    except StoreError as error:
        return [str(error)]


def _counted(tx: Tx, told: str, query: str, **values: Any) -> list[str]:
    count = tx.number(query, **values)
    return [told.format(count)] if count else []


def _session(tx: Tx, listed: tuple[Any, ...], deep: bool) -> Iterator[str]:
    row = tx.one("session", name=listed[1])
    if row is None:
        return
    try:
        info_of(row, listed[1])
    except StoreDamaged as error:
        yield str(error)
    session, count, chain, current = row[0], row[11], blob(row[12]), row[13]
    if not all(isinstance(number, int) for number in (session, count, current)):
        return
    yield from _history(tx, session, count, chain)
    if deep:
        yield from _bodies(tx, session, count)
        try:
            prompts.history(tx, session)
        except StoreDamaged as error:
            yield str(error)
    covered: set[int] = set()
    known = {seq: (base, upto) for seq, base, upto, *_ in tx.all("compactions", session=session)}
    seq, lines = current, 0
    while seq:
        if seq not in known or lines > len(known):
            yield f"compaction {seq} is in force and not there"
            return
        try:
            seals.require(tx, session, seq)
        except StoreDamaged as error:
            yield str(error)
        for handle, _, _, first, length, body in tx.all("handles", session=session, seq=seq):
            if first is not None and first + length > count:
                yield f"handle {handle} stands for positions up to {first + length}, there are {count}"
            covered.update(range(first or 0, (first or 0) + length) if first is not None else ())
            if body is not None and tx.one("body", id=body) is None:
                yield f"handle {handle} stands for a body that is not there"
        seq, lines = known[seq][0], lines + 1
    if current:
        yield from _view(tx, session, current, known[current][1], count, covered)


def _view(tx: Tx, session: int, seq: int, upto: int, count: int, covered: set[int]) -> Iterator[str]:
    shown: set[int] = set()
    for _, place, first, length, body in tx.all("pieces", session=session, seq=seq):
        if body is None:
            shown.update(range(first, first + length))
        elif tx.one("body", id=body) is None:
            yield f"the view of compaction {seq} has a body at place {place} that is not there"
    if upto > count or any(position >= upto for position in shown):
        yield f"the view of compaction {seq} shows messages it was not made from"
    lost = set(range(upto)) - shown - covered
    if lost:
        yield f"{len(lost)} message(s) are neither in the view nor covered by a compaction, the first at {min(lost)}"


def _history(tx: Tx, session: int, count: int, chain: bytes) -> Iterator[str]:
    last, expected = b"", 0
    while True:
        rows = tx.all("chained", session=session, start=expected, most=PAGE)
        for position, stored, digest in rows:
            last = chained(last, blob(digest))
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
        yield f"{expected} message(s) are there, the session counts {count}"
    elif last != chain:
        yield "the chain does not end where the session's does"


def _bodies(tx: Tx, session: int, count: int) -> Iterator[str]:
    for start in range(0, count, PAGE):
        rows = tx.all("messages", session=session, start=start, stop=start + PAGE, most=PAGE)
        for position, *_, digest, codec, data in rows:
            try:
                inflated(digest, codec, data)
            except StoreDamaged:
                yield f"the body at position {position} is not what was stored"
