"""Adding exactly these messages to a history.

Rules of this file:
1. A position is a row of its own, so two equal messages stay two; their body is stored once.
2. The cost of an append is that of what is appended: the chain goes on from the session's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from midfold.errors import StoreConflict
from midfold.store import seals
from midfold.store.bodies import Entry, chain_of
from midfold.store.database import Tx
from midfold.store.protocol import Appended, Kind
from midfold.transcript.message import DIGEST_SIZE

PLAINEST = "openai-chat"
"""What a list that fits every dialect is taken for; a later message may know better."""


class Tip(msgspec.Struct, frozen=True):
    """A session's row, locked for this transaction."""

    id: int
    dialect: str
    count: int
    chain: bytes
    compaction: int
    compactions: int
    kind: Kind
    ended: int | None
    root: int | None
    now: int

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Tip:
        identity, dialect, count, chain, *rest = row
        return cls(identity, dialect, count, bytes(chain), *rest)


def tip(tx: Tx, name: str) -> Tip | None:
    row = tx.one("locked_session", name=name)
    return None if row is None else Tip.of(row)


def made(tx: Tx, name: str, dialect: str, model: str | None = None, **more: Any) -> Tip:
    """The session's row, locked; a new session if there is none."""
    found = tip(tx, name)
    if found is None:
        memory = seals.memory_of(b"", name, 0, 0)
        values = {"kind": "root", "parent": None, "root": None, "forked": None, "memory": memory, **more}
        tx.all("create_session", name=name, dialect=dialect, model=model, **values)
        found = tip(tx, name)
        assert found is not None
    return found


def append(
    tx: Tx, name: str, entries: Sequence[Entry], *, dialect: str, model: str | None = None, key: str | None = None
) -> Appended:
    """These messages at the end of the session; once only, if `key` was used before."""
    session = made(tx, name, dialect, model)
    if key is not None:
        repeated = _repeated(tx, name, session, entries, key)
        if repeated is not None:
            return repeated
    positions = extend(tx, session, entries, dialect=dialect, model=model)
    if key is not None:
        values = {"first": positions.start, "count": len(positions), "digest": _digest(entries)}
        tx.run("add_append", session=session.id, key=key, **values)
    return Appended(positions)


def _repeated(tx: Tx, name: str, session: Tip, entries: Sequence[Entry], key: str) -> Appended | None:
    before = tx.one("append_by_key", session=session.id, key=key)
    if before is None:
        return None
    first, count, digest = before
    if bytes(digest) != _digest(entries):
        raise StoreConflict(
            f"session {name}: the key of this append was used before, for {count} other message(s) at position {first}"
        )
    return Appended(range(first, first + count), repeated=True)


def _digest(entries: Sequence[Entry]) -> bytes:
    return blake2b(b"".join(entry.digest for entry in entries), digest_size=DIGEST_SIZE).digest()


def extend(
    tx: Tx, session: Tip, entries: Sequence[Entry], *, dialect: str, model: str | None = None, index: bool = True
) -> range:
    """Rows for these messages; the session's row goes on."""
    if not entries:
        return range(session.count, session.count)
    if session.ended is not None:
        children = ", ".join(row[0] for row in tx.all("children", id=session.id))
        raise StoreConflict(f"the session has ended and continues as {children or 'another one'}; append there")
    bodies = tx.add_bodies(entries, index=index)
    chains = list(chain_of((entry.digest for entry in entries), session.chain))
    tx.many(
        "add_message",
        [
            {
                "session": session.id,
                "position": session.count + place,
                "body": bodies[entry.digest],
                "chain": chain,
                "role": entry.role,
                "at": session.now if entry.at is None else entry.at,
            }
            for place, (entry, chain) in enumerate(zip(entries, chains, strict=True))
        ],
    )
    count = session.count + len(entries)
    spoken = dialect if session.dialect == PLAINEST else session.dialect
    tx.run("grow_session", id=session.id, count=count, chain=chains[-1], now=session.now, dialect=spoken, model=model)
    return range(session.count, count)
