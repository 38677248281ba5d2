"""A compaction in one transaction, and taking one back.

Rules of this file:
1. The lease is checked first, in the same transaction, with its row locked: who has lost it commits nothing.
2. A compaction was made from one view. If another one is in force by now, it does not fit and is refused; messages
   that were appended meanwhile are behind it and stay.
3. No row of the history is touched: not rewritten, not inserted again, not indexed again.
4. A continuation ends the session and begins the child with the view and what was appended meanwhile, in the same
   transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from midfold.errors import LeaseLost, NotStored, StoreConflict
from midfold.store import seals
from midfold.store.appending import Tip, extend, made, tip
from midfold.store.bodies import Entry, blob, linked_message
from midfold.store.database import Tx
from midfold.store.leases import Lease
from midfold.store.protocol import Commit, Item, Piece
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect


def commit(tx: Tx, name: str, lease: Lease, new: Commit, dialect: type[Dialect]) -> int:
    """The number of the compaction."""
    session = tip(tx, name)
    if session is None:
        raise NotStored(f"there is no session {name}")
    if lease.session != name or tx.one("lease_held", **lease._asdict()) is None:
        raise LeaseLost(f"session {name}: the lease with fence {lease.fence} is no longer held; nothing was committed")
    if session.compaction != new.base or session.ended is not None:
        raise StoreConflict(
            f"session {name}: the compaction was made from the view of compaction {new.base}, and now "
            f"{session.compaction} is in force; nothing was committed"
        )
    seq = session.compactions + 1
    child = None if new.child is None else _continued(tx, name, session, new, new.child, dialect)
    _write_pieces(tx, session.id, seq, new, dialect)
    tx.run(
        "add_compaction",
        session=session.id,
        seq=seq,
        base=new.base,
        upto=new.upto,
        at=session.now,
        fence=lease.fence,
        noted=int(new.noted),
        child=child,
        receipt=jsonio.encode_whole(new.receipt),
        state=msgspec.json.encode(new.state),
    )
    seals.seal(tx, session.id, seq)
    set_compaction(tx, session, name, seq, seq, new.memory, ended=session.now if child else None)
    return seq


def set_compaction(
    tx: Tx, session: Tip, name: str, compaction: int, compactions: int, memory: bytes, ended: int | None = None
) -> None:
    """Which compaction is in force, of how many, and what the session remembers."""
    values = {"compaction": compaction, "compactions": compactions, "ended": ended}
    memory = seals.memory_of(memory, name, compaction, compactions)
    tx.run("set_compaction", id=session.id, now=session.now, memory=memory, **values)


def _continued(tx: Tx, name: str, session: Tip, new: Commit, child: str, dialect: type[Dialect]) -> int:
    if tip(tx, child) is not None:
        raise StoreConflict(f"session {name}: its continuation cannot be called {child}, there is such a session")
    begun = made(tx, child, session.dialect, kind="continuation", parent=session.id)
    entries = [Entry(item.message, dialect) for item in new.view]
    values = {"session": session.id, "start": new.upto, "stop": session.count, "most": session.count}
    for _, _, at, *stored in tx.all("messages", **values):
        entries.append(Entry(linked_message(dialect, *stored), dialect, at))
    extend(tx, begun, entries, dialect=session.dialect)
    tx.run("carry_prompts", source=session.id, target=begun.id)
    memory = seals.memory_of(new.memory, child, 0, 0)
    tx.run("set_memory", id=begun.id, memory=memory, compaction=0, compactions=0)
    return begun.id


def _write_pieces(tx: Tx, session: int, seq: int, new: Commit, dialect: type[Dialect]) -> None:
    items = [*new.view, *(item for items in new.handles.values() for item in items)]
    fresh = {id(item.message): Entry(item.message, dialect) for item in items if _is_fresh(item)}
    bodies = tx.add_bodies(list(fresh.values()), index=False)
    ids = {message: bodies[entry.digest] for message, entry in fresh.items()}
    tx.many("add_piece", _rows(new.view, ids, session=session, seq=seq))
    for handle, kept in new.handles.items():
        tx.many("add_handle", _rows(kept, ids, session=session, seq=seq, handle=handle))


def _is_fresh(item: Item) -> bool:
    return (item.body is None and item.position is None) or item.body == FRESH


FRESH = -1
"""The body of an item that stands for a message of the history and is not stored yet."""


def _rows(items: Sequence[Item], ids: dict[int, int], **fixed: Any) -> list[dict[str, Any]]:
    return [
        {**fixed, "place": place, **msgspec.structs.asdict(piece)} for place, piece in enumerate(pieces(items, ids))
    ]


def pieces(items: Iterable[Item], ids: dict[int, int]) -> Iterator[Piece]:
    """Neighbours of the history as one run."""
    run: Piece | None = None
    for item in items:
        body = ids.get(id(item.message), item.body)
        if body is None and run is not None and run.first is not None and run.first + run.count == item.position:
            run = Piece(run.first, run.count + 1)
            continue
        if run is not None:
            yield run
            run = None
        if body is None:
            run = Piece(item.position, 1)
        else:
            yield Piece(item.position, 1, body)
    if run is not None:
        yield run


def memory_at(compaction: tuple[Any, ...]) -> bytes:
    """What a session knew right after a compaction, from that compaction's row."""
    noted = b"true" if compaction[5] else b"false"
    return b'{"state":' + seals.unsealed(blob(compaction[9])).plain + b',"noted":' + noted + b"}"


def undo(tx: Tx, name: str) -> int:
    """The compaction in force is in force no longer; its base is again. Gives its number."""
    session = tip(tx, name)
    if session is None:
        raise NotStored(f"there is no session {name}")
    if not session.compaction:
        raise NotStored(f"session {name}: there is no compaction to undo")
    seals.require(tx, session.id, session.compaction)
    row = tx.one("compaction", session=session.id, seq=session.compaction)
    assert row is not None
    base = row[1]
    before = tx.one("compaction", session=session.id, seq=base) if base else None
    tx.run("undo_compaction", session=session.id, seq=session.compaction, now=session.now)
    seals.seal(tx, session.id, session.compaction)
    memory = b"" if before is None else memory_at(before)
    set_compaction(tx, session, name, base, session.compactions, memory)
    return session.compaction
