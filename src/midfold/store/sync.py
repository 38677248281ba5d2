"""Find a client's history in the store by its hash chain, for clients that send the complete history every time.

1. A chain value identifies a message and all messages before it. A history that only grew costs one lookup; for one
   that changed, the common prefix is found by binary search.
2. A changed history becomes a branch: another session with the messages before the change and the compactions that
   replace only those. The old session is unchanged.
3. A client may keep the view instead of the history. A history that starts with the view of a compaction is treated as
   starting with the messages that compaction was made from.
4. An ended session continues in its child: messages after its last one are added there.
5. The view of a compaction ends with a run of original messages; everything before that run is what the compaction
   replaces. A checkpoint is that part of the history and its replacement, valid whatever follows.
6. Finding a prefix or a checkpoint only reads, without locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from midfold.store import word_index
from midfold.store.bodies import NewMessage, blob, chain_of, inflate
from midfold.store.database import Database, Tx
from midfold.store.protocol import Prefix, SyncResult
from midfold.store.rows import require_compaction, require_view, seal_compaction
from midfold.store.writing import (
    LockedSession,
    create_session,
    ensure_session,
    extend,
    lock_session,
    memory_at,
    require_session,
    set_compaction,
)
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript


class OfferedHistory(NamedTuple):
    """History whose first `start` messages the session has, followed by `entries`."""

    start: int
    entries: Sequence[NewMessage]
    chains: list[bytes]

    @property
    def total(self) -> int:
        return self.start + len(self.entries)


class SyncTarget(NamedTuple):
    """Candidate session for a history."""

    session: LockedSession
    offer: OfferedHistory
    is_named: bool
    """True for the named session and its continuations."""


def sync(
    tx: Tx, name: str, entries: Sequence[NewMessage], chains: list[bytes], *, dialect: str, model: str | None = None
) -> SyncResult:
    """Store a history and return where it is; `chains` are the chain values of all entries."""
    session = ensure_session(tx, name, dialect, model)
    if not entries:
        return SyncResult(name, 0, 0, branched=False, ahead=session.count)
    best: tuple[int, SyncTarget] | None = None
    for target in _targets(tx, session, entries, chains):
        own, offer, is_named = target
        common = _common(tx, own, offer)
        if common == min(own.count, offer.total) and (common or is_named):
            rest = offer.entries[common - offer.start :]
            extend(tx, own, rest, dialect=dialect, model=model)
            ahead = max(own.count - offer.total, 0)
            return SyncResult(own.name, common, len(rest), branched=not is_named, ahead=ahead)
        if best is None or common > best[0]:
            best = (common, target)
    assert best is not None
    common, (own, offer, _) = best
    rest = offer.entries[common - offer.start :]
    branch = _branch(tx, own, common, rest, dialect, model)
    return SyncResult(branch, common, len(rest), branched=True)


def _targets(
    tx: Tx, session: LockedSession, entries: Sequence[NewMessage], chains: list[bytes]
) -> Iterator[SyncTarget]:
    for own in _family(tx, session):
        for offer in _offers(tx, own, entries, chains):
            yield from _follow(tx, SyncTarget(own, offer, own is session))


def _follow(tx: Tx, target: SyncTarget) -> Iterator[SyncTarget]:
    """Yield the target or, if the history extends an ended session, the child and its branches."""
    session, offer, is_named = target
    child = None
    if session.ended is not None and offer.total > session.count and _common(tx, session, offer) == session.count:
        child = _child(tx, session)
    if child is None:
        yield target
        return
    own, begun = child
    rest = offer.entries[session.count - offer.start :]
    after = OfferedHistory(begun, rest, list(chain_of((entry.digest for entry in rest), _chain(tx, own, begun))))
    for line in _family(tx, own):
        yield from _follow(tx, SyncTarget(line, after, is_named and line is own))


def _child(tx: Tx, session: LockedSession) -> tuple[LockedSession, int] | None:
    """Return the continuation of an ended session and its initial message count; None if it was deleted."""
    row = tx.one("compaction", session=session.id, seq=session.compaction)
    for (name,) in tx.all("children", id=session.id):
        child = lock_session(tx, name)
        if row is not None and child is not None and child.id == row[7]:
            view = tx.all("view_digests", session=session.id, seq=session.compaction)
            return child, len(view) + session.count - row[2]
    return None


def _family(tx: Tx, session: LockedSession) -> Iterator[LockedSession]:
    """Yield the session, then the other branches of its root."""
    yield session
    for (name,) in tx.all("family", root=session.root or session.id):
        other = None if name == session.name else lock_session(tx, name)
        if other is not None:
            yield other


def _offers(
    tx: Tx, session: LockedSession, entries: Sequence[NewMessage], chains: list[bytes]
) -> Iterator[OfferedHistory]:
    """Yield the history as given, then with each matching view replaced by the messages it was made from."""
    yield OfferedHistory(0, entries, chains)
    digests = [entry.digest for entry in entries]
    seq = session.compaction
    while seq:
        row = tx.one("compaction", session=session.id, seq=seq)
        assert row is not None
        view = [bytes(digest) for *_, digest in tx.all("view_digests", session=session.id, seq=seq)]
        if digests[: len(view)] == view:
            rest = entries[len(view) :]
            start = _chain(tx, session, row[2])
            yield OfferedHistory(row[2], rest, list(chain_of((entry.digest for entry in rest), start)))
        seq = row[1]


def _common(tx: Tx, session: LockedSession, offer: OfferedHistory) -> int:
    """Return the number of messages a history shares with a session, probing the complete shorter one first."""
    low, high = min(offer.start, session.count), min(session.count, offer.total)
    probe = high
    while low < high:
        if _chain(tx, session, probe) == offer.chains[probe - offer.start - 1]:
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


def _chain(tx: Tx, session: LockedSession, count: int) -> bytes:
    if count == session.count:
        return session.chain
    row = tx.one("chain_at", session=session.id, position=count - 1) if count else None
    return bytes(row[0]) if row else b""


def _branch(
    tx: Tx, source: LockedSession, shared: int, rest: Sequence[NewMessage], dialect: str, model: str | None
) -> str:
    root = source.root or source.id
    values = {"kind": "branch", "parent": source.id, "root": root, "forked": shared, "dialect": source.dialect}
    line, number = source.name.partition("~")[0], tx.number("branches", root=root) + 1
    while not create_session(tx, name := f"{line}~{number}", model=model, **values):
        number += 1
    branch = require_session(tx, name)
    tx.run("copy_messages", source=source.id, target=branch.id, stop=shared)
    word_index.copy(tx, source.id, branch.id, shared)
    tx.run("copy_prompts", source=source.id, target=branch.id, stop=shared)
    _copy_compactions(tx, source, branch, shared)
    grown = msgspec.structs.replace(branch, count=shared, chain=_chain(tx, source, shared))
    if not rest:
        grown_to = {"count": shared, "chain": grown.chain, "dialect": source.dialect, "model": model}
        tx.run("grow_session", id=branch.id, used=branch.now, **grown_to)
    extend(tx, grown, rest, dialect=dialect, model=model)
    return name


def _copy_compactions(tx: Tx, source: LockedSession, branch: LockedSession, shared: int) -> None:
    """Copy the compactions in force that replace only shared messages; the newest is in force in the branch."""
    newest, memory = 0, b""
    seq = source.compaction
    while seq:
        row = tx.one("compaction", session=source.id, seq=seq)
        assert row is not None
        run = _last_tail(tx, source.id, seq, row[2])
        if row[2] <= shared or (run is not None and run.first <= shared):
            require_compaction(tx, source.id, seq)
            for part in ("compaction", "pieces", "handles"):
                tx.run(f"copy_{part}", source=source.id, target=branch.id, seq=seq)
            if row[2] > shared and run is not None:
                _trim(tx, branch.id, seq, run, shared)
            seal_compaction(tx, branch.id, seq)
            if not newest:
                newest, memory = seq, memory_at(row)
        seq = row[1]
    if newest:
        set_compaction(tx, branch, newest, source.compactions, memory)


class _Tail(NamedTuple):
    """Run of original messages at the end of a view."""

    place: int
    first: int


def _last_tail(tx: Tx, session: int, seq: int, upto: int) -> _Tail | None:
    row = tx.one("last_piece", session=session, seq=seq)
    if row is None or row[3] is not None or row[1] is None or row[1] + row[2] != upto:
        return None
    return _Tail(row[0], row[1])


def _trim(tx: Tx, session: int, seq: int, run: _Tail, upto: int) -> None:
    """Shorten the view of a compaction made from more messages than the branch shares."""
    tx.run("trim_compaction", session=session, seq=seq, upto=upto)
    if run.first == upto:
        tx.run("drop_piece", session=session, seq=seq, place=run.place)
    else:
        tx.run("trim_piece", session=session, seq=seq, place=run.place, count=upto - run.first)


class CheckpointPart(msgspec.Struct, frozen=True):
    """Run of `count` messages of the history from `first`, or the bytes of one message that is not part of it."""

    first: int
    count: int
    data: bytes | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """Replacement of the first `count` messages of a history by `parts`."""

    session: str
    seq: int
    count: int
    chain: bytes
    noted: bool
    """True if the system prompt contains the compaction note."""
    parts: tuple[CheckpointPart, ...]

    def apply(self, messages: Transcript, dialect: type[Dialect]) -> Transcript:
        """Return the history as the model sees it."""
        view: list[Message] = []
        for part in self.parts:
            if part.data is None:
                view += messages[part.first : part.first + part.count]
            else:
                view.append(Message.over(Raw(part.data), dialect.read))
        return (*view, *messages[self.count :])


class StoredCheckpoints:
    """Checkpoints of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, name: str, chains: Mapping[bytes, int]) -> Checkpoint | None:
        """Return the checkpoint of a session or its branches that replaces most of a history.

        `chains` maps each chain value of the history to its number of messages.
        """
        known = self._database.rows("checkpoints", name=name)
        fitting = [row for row in known if chains.get(blob(row[5])) == row[4]]
        if not fitting:
            return None
        session, found, seq, noted, count, chain = max(fitting, key=lambda row: (row[4], row[2]))
        row = self._database.row("compaction", session=session, seq=seq)
        rows = self._database.rows("checkpoint_pieces", session=session, seq=seq)
        if row is None:
            return None
        require_view(row, (piece[:4] for piece in rows))
        parts = tuple(
            CheckpointPart(first or 0, number, None if body[0] is None else inflate(*body))
            for _, first, number, *body in rows
            if body[0] is not None or first < count
        )
        return Checkpoint(found, seq, count, blob(chain), bool(noted), parts)

    def is_in_force(self, name: str, seq: int) -> bool:
        """Return whether the compaction is still in force, neither undone nor deleted."""
        return self._database.row("compaction_in_force", name=name, seq=seq) is not None


def find_prefix(tx: Tx, digests: Sequence[bytes], chains: Sequence[bytes], *, least: int, under: str) -> Prefix | None:
    """Return the session with the longest shared prefix.

    On a tie prefer one that ends there, has not ended, and was used last.
    """

    def place(count: int) -> dict[str, object]:
        return {"digest": digests[count - 1], "position": count - 1, "chain": chains[count - 1], "under": under}

    count = _largest_known(lambda count: tx.one("knows_chain", **place(count)) is not None, max(least, 1), len(digests))
    row = tx.one("session_with_chain", **place(count)) if count else None
    return None if row is None else Prefix(row[0], count, row[1])


def _largest_known(is_known: Callable[[int], bool], least: int, total: int) -> int:
    """Return the largest known number; 0 if it is below `least`. All numbers below a known one are known."""
    low = high = total
    step = 1
    while low >= least and not is_known(low):
        low, high, step = low - step, low - 1, step * 2
    low = max(low, least - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if is_known(middle):
            low = middle
        else:
            high = middle - 1
    return low if low >= least else 0
