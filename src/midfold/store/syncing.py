"""A client's whole history: what is new in it is added, what was changed in it is a branch.

Rules of this file:
1. Histories are compared by the chain of hashes, the longest possible prefix first: a history that only grew costs one
   look-up, a changed one a search by halves.
2. A changed history becomes a branch: another session that shares the messages before the change, and the compactions
   that replace only those. The old one stays as it is.
3. A client may keep the view instead of the history. What begins with the view a compaction left stands for the
   messages that compaction was made from.
4. A session that has ended goes on in its child: what comes after its last message is added there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from midfold.store import seals
from midfold.store.appending import Tip, extend, made, tip
from midfold.store.bodies import Entry, chain_of
from midfold.store.committing import memory_at, set_compaction
from midfold.store.database import Tx
from midfold.store.protocol import Synced


class Offer(NamedTuple):
    """A history: `start` messages the session has, and these after them."""

    start: int
    entries: Sequence[Entry]
    chains: list[bytes]

    @property
    def total(self) -> int:
        return self.start + len(self.entries)


class Place(NamedTuple):
    """Where a history might go on."""

    line: str
    session: Tip
    offer: Offer
    asked_for: bool
    """Whether it is the session that was named, or what that has become."""


def sync(
    tx: Tx, name: str, entries: Sequence[Entry], chains: list[bytes], *, dialect: str, model: str | None = None
) -> Synced:
    """`chains` are those of the entries from an empty history on."""
    session = made(tx, name, dialect, model)
    if not entries:
        return Synced(name, 0, 0, branched=False, ahead=session.count)
    best: tuple[int, Place] | None = None
    for place in _places(tx, name, session, entries, chains):
        own, offer = place.session, place.offer
        common = _common(tx, own, offer)
        if common == min(own.count, offer.total) and (common or place.asked_for):
            rest = offer.entries[common - offer.start :]
            extend(tx, own, rest, dialect=dialect, model=model)
            ahead = max(own.count - offer.total, 0)
            return Synced(place.line, common, len(rest), branched=not place.asked_for, ahead=ahead)
        if best is None or common > best[0]:
            best = (common, place)
    assert best is not None
    common, place = best
    rest = place.offer.entries[common - place.offer.start :]
    branch = _branch(tx, place.line, place.session, common, rest, dialect, model)
    return Synced(branch, common, len(rest), branched=True)


def _places(tx: Tx, name: str, session: Tip, entries: Sequence[Entry], chains: list[bytes]) -> Iterator[Place]:
    for line, own in _lines(tx, name, session):
        for offer in _offers(tx, own, entries, chains):
            yield from _continued(tx, Place(line, own, offer, line == name))


def _continued(tx: Tx, place: Place) -> Iterator[Place]:
    """The place; the child, and what branched off from it, for a history that has all of an ended session and more."""
    _, session, offer, asked_for = place
    child = None
    if session.ended is not None and offer.total > session.count and _common(tx, session, offer) == session.count:
        child = _child(tx, session)
    if child is None:
        yield place
        return
    name, own, begun = child
    rest = offer.entries[session.count - offer.start :]
    after = Offer(begun, rest, list(chain_of((entry.digest for entry in rest), _chain(tx, own, begun))))
    yield from _continued(tx, Place(name, own, after, asked_for))
    for other, branch in _lines(tx, name, own):
        if other != name:
            yield from _continued(tx, Place(other, branch, after, asked_for=False))


def _child(tx: Tx, session: Tip) -> tuple[str, Tip, int] | None:
    """The session that an ended one goes on in, if it is still there, and how many messages it began with."""
    row = tx.one("compaction", session=session.id, seq=session.compaction)
    for (name,) in tx.all("children", id=session.id):
        child = tip(tx, name)
        if row is not None and child is not None and child.id == row[7]:
            view = tx.all("view_digests", session=session.id, seq=session.compaction)
            return name, child, len(view) + session.count - row[2]
    return None


def _lines(tx: Tx, name: str, session: Tip) -> Iterator[tuple[str, Tip]]:
    """The session, then the others of its family."""
    yield name, session
    for other, *_ in tx.all("family", root=session.root or session.id):
        own = None if other == name else tip(tx, other)
        if own is not None:
            yield other, own


def _offers(tx: Tx, session: Tip, entries: Sequence[Entry], chains: list[bytes]) -> Iterator[Offer]:
    """The history as given, and as it is if it begins with a view of ours."""
    yield Offer(0, entries, chains)
    digests = [entry.digest for entry in entries]
    seq = session.compaction
    while seq:
        row = tx.one("compaction", session=session.id, seq=seq)
        assert row is not None
        view = [bytes(digest) for *_, digest in tx.all("view_digests", session=session.id, seq=seq)]
        if digests[: len(view)] == view:
            rest = entries[len(view) :]
            start = _chain(tx, session, row[2])
            yield Offer(row[2], rest, list(chain_of((entry.digest for entry in rest), start)))
        seq = row[1]


def _common(tx: Tx, session: Tip, offer: Offer) -> int:
    """How many messages a history shares with a session: the whole of the shorter one is looked at first."""
    low, high = min(offer.start, session.count), min(session.count, offer.total)
    probe = high
    while low < high:
        if _chain(tx, session, probe) == offer.chains[probe - offer.start - 1]:
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


def _chain(tx: Tx, session: Tip, count: int) -> bytes:
    if count == session.count:
        return session.chain
    row = tx.one("chain_at", session=session.id, position=count - 1) if count else None
    return bytes(row[0]) if row else b""


def _branch(tx: Tx, line: str, source: Tip, shared: int, rest: Sequence[Entry], dialect: str, model: str | None) -> str:
    root = source.root or source.id
    fixed = {"kind": "branch", "parent": source.id, "root": root, "forked": shared}
    number = tx.number("branches", root=root) + 1
    while not _created(tx, _name(line, number), dialect=source.dialect, model=model, **fixed):
        number += 1
    name = _name(line, number)
    branch = tip(tx, name)
    assert branch is not None
    tx.run("copy_messages", source=source.id, target=branch.id, stop=shared)
    tx.run("copy_prompts", source=source.id, target=branch.id, stop=shared)
    _copy_compactions(tx, source, branch, name, shared)
    grown = msgspec.structs.replace(branch, count=shared, chain=_chain(tx, source, shared))
    if not rest:
        values = {"count": shared, "chain": grown.chain, "dialect": source.dialect, "model": model}
        tx.run("grow_session", id=branch.id, now=branch.now, **values)
    extend(tx, grown, rest, dialect=dialect, model=model)
    return name


def _created(tx: Tx, name: str, **values: Any) -> bool:
    return bool(tx.all("create_session", name=name, memory=seals.memory_of(b"", name, 0, 0), **values))


def _name(line: str, number: int) -> str:
    return f"{line.partition('~')[0]}~{number}"


def _copy_compactions(tx: Tx, source: Tip, branch: Tip, name: str, shared: int) -> None:
    """The compactions in force that replace only shared messages; the newest of them is in force in the branch."""
    newest, memory = 0, b""
    seq = source.compaction
    while seq:
        row = tx.one("compaction", session=source.id, seq=seq)
        assert row is not None
        run = _last_run(tx, source.id, seq, row[2])
        if row[2] <= shared or (run is not None and run.first <= shared):
            seals.require(tx, source.id, seq)
            for part in ("compaction", "pieces", "handles"):
                tx.run(f"copy_{part}", source=source.id, target=branch.id, seq=seq)
            if row[2] > shared and run is not None:
                _trim(tx, branch.id, seq, run, shared)
            seals.seal(tx, branch.id, seq)
            if not newest:
                newest, memory = seq, memory_at(row)
        seq = row[1]
    if newest:
        set_compaction(tx, branch, name, newest, source.compactions, memory)


class _Run(NamedTuple):
    """The messages at the end of a view that are as they were."""

    place: int
    first: int


def _last_run(tx: Tx, session: int, seq: int, upto: int) -> _Run | None:
    row = tx.one("last_piece", session=session, seq=seq)
    if row is None or row[3] is not None or row[1] is None or row[1] + row[2] != upto:
        return None
    return _Run(row[0], row[1])


def _trim(tx: Tx, session: int, seq: int, run: _Run, upto: int) -> None:
    """A compaction that was made from more messages than the branch shares: its view ends where they do."""
    tx.run("trim_compaction", session=session, seq=seq, upto=upto)
    if run.first == upto:
        tx.run("drop_piece", session=session, seq=seq, place=run.place)
    else:
        tx.run("trim_piece", session=session, seq=seq, place=run.place, count=upto - run.first)
