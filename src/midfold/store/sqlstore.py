"""The store over a database: each method is one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Raw

from midfold.errors import NotStored, SchemaError, StoreDamaged, StoreError
from midfold.fold.archive import DIGITS, PREFIX
from midfold.fold.words import parse_query
from midfold.recall import Candidate
from midfold.store import (
    appending,
    checking,
    checkpoints,
    committing,
    indexing,
    prefixes,
    prompts,
    removing,
    seals,
    syncing,
)
from midfold.store.addresses import file_of, is_memory
from midfold.store.bodies import ROLES, Entry, chain_of, inflated, linked
from midfold.store.database import CONNECTIONS, FOREVER, Database, Tx
from midfold.store.hidden_turns import HiddenTurns
from midfold.store.leases import TTL, Lease, StoredLeases
from midfold.store.memory import Memory
from midfold.store.migrations import migrate, pending
from midfold.store.prefixes import Prefix
from midfold.store.protocol import Appended, Commit, Item, Prompt, Record, SessionInfo, Stored, Synced
from midfold.store.rows import candidate_of, dialect_of, info_of, record_of, stored_of
from midfold.store.sqlite import SQLite
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript

PAGE = 500


class SqlStore:
    """A `Store` on SQLite or PostgreSQL."""

    def __init__(self, database: Database, *, ttl: float = TTL, migrated: bool = True) -> None:
        self.database = database
        self.where = database.where
        self.leases = StoredLeases(database, ttl)
        self.hidden_turns = HiddenTurns(database)
        if migrated:
            migrate(database)

    def require_current(self) -> None:
        """Raises unless the schema is up to date: for programs that must not migrate."""
        if pending(self.database):
            raise SchemaError(f"{self.where}: its schema is older than this midfold; run midfold store migrate")

    # Sessions

    def info(self, name: str) -> SessionInfo | None:
        row = self.database.row("session", name=name)
        return None if row is None else info_of(row, name)

    def must(self, name: str) -> SessionInfo:
        found = self.info(name)
        if found is None:
            raise NotStored(f"{self.where}: there is no session {name}")
        return found

    def sessions(self, limit: int = 100, *, before: int | None = None) -> list[SessionInfo]:
        """The newest first; `before`: only those not touched since."""
        values = {"before": FOREVER if before is None else before, "most": limit}
        return [info_of(row) for row in self.database.rows("sessions", **values)]

    def append(
        self,
        name: str,
        entries: Sequence[Entry],
        *,
        dialect: str,
        model: str | None = None,
        key: str | None = None,
        prompt: Prompt | None = None,
    ) -> Appended:
        """`prompt`: what stands beside these messages, if it is to be remembered."""
        _checked(name)

        def append(tx: Tx) -> Appended:
            done = appending.append(tx, name, entries, dialect=dialect, model=model, key=key)
            if prompt is not None and not done.repeated:
                _keep(tx, name, prompt, done.positions.start)
            return done

        return self.database.write(append)

    def sync(
        self,
        name: str,
        entries: Sequence[Entry],
        *,
        dialect: str,
        model: str | None = None,
        prompt: Prompt | None = None,
    ) -> Synced:
        """A history that is there as it is costs no write; what is hashed is hashed before the session is locked."""
        _checked(name)
        chains = list(chain_of(entry.digest for entry in entries))
        known = self.info(name)
        if known is not None and entries and (known.count, known.chain) == (len(entries), chains[-1]):
            identity = known.id
            if prompt is None or self.database.read(lambda tx: prompts.is_kept(tx, identity, prompt)):
                return Synced(name, known.count, 0, branched=False)

        def sync(tx: Tx) -> Synced:
            done = syncing.sync(tx, name, entries, chains, dialect=dialect, model=model)
            if prompt is not None:
                _keep(tx, done.session, prompt, done.common)
            return done

        return self.database.write(sync)

    def prompt(self, info: SessionInfo) -> Prompt:
        """The system prompt and the tools that were last sent with the session."""
        rows = self.database.rows("current_prompts", session=info.id)
        return Prompt(**{kind: prompts.stored(kind, *sealed) for kind, *sealed in rows if kind in prompts.KINDS})

    def find_prefix(self, entries: Sequence[Entry], *, least: int = 1, under: str = "") -> Prefix | None:
        """The session that has the longest beginning of this history, of at least `least` messages.

        `under`: only sessions whose names begin so.
        """
        digests = [entry.digest for entry in entries]
        chains = list(chain_of(digests))
        return self.database.read(lambda tx: prefixes.longest(tx, digests, chains, least=least, under=under))

    # Reading

    def history(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Stored]:
        """Messages in their order; page by page, so that a long history is never in memory at once."""
        return self.history_of(self.must(name), start, stop)

    def history_of(self, session: SessionInfo, start: int = 0, stop: int | None = None) -> Iterator[Stored]:
        """The same, as far as this row of the session knows."""
        dialect, end = dialect_of(session), session.count if stop is None else min(stop, session.count)
        while start < end:
            values = {"session": session.id, "start": start, "stop": end, "most": PAGE}
            rows = self.database.rows("messages", **values)
            if not rows:
                raise self._missing(session, f"the message at position {start} is not there")
            for place, row in enumerate(rows, start):
                yield stored_of(row, place, dialect)
            start += len(rows)

    def view(self, info: SessionInfo, at: int | None = None) -> tuple[Item, ...]:
        """What the model sees; `at`: what it saw right after that compaction."""
        seq = info.compaction if at is None else at
        if not seq:
            return self.tail(info, 0)
        record = self.database.row("compaction", session=info.id, seq=seq)
        if record is None:
            raise NotStored(f"session {info.name}: there is no compaction {seq}")
        pieces = self.database.rows("seal_of_pieces", session=info.id, seq=seq)
        rows = self.database.rows("view_messages", session=info.id, seq=seq)
        try:
            seals.require_view(record, pieces)
        except StoreDamaged as damaged:
            raise self._missing(info, f"compaction {seq} is not what was written") from damaged
        if len(rows) != sum(piece[2] for piece in pieces):
            raise self._missing(info, f"some of what compaction {seq} left is not there")
        dialect = dialect_of(info)
        kept = tuple(Item(_message(stored, dialect), position, body) for _, position, body, *stored in rows)
        return kept if at is not None else (*kept, *self.tail(info, record[2]))

    def _missing(self, info: SessionInfo, what: str) -> StoreError:
        """Why rows are not there: somebody has deleted the session meanwhile, or the database is damaged."""
        now = self.database.row("session", name=info.name)
        if now is None or now[0] != info.id:
            return NotStored(f"{self.where}: session {info.name} was deleted")
        return StoreDamaged(f"{self.where}: session {info.name}: {what}")

    def tail(self, info: SessionInfo, start: int) -> tuple[Item, ...]:
        """The messages from `start` up to what `info` counts."""
        return tuple(Item(row.message, row.position) for row in self.history_of(info, start))

    # Compactions

    def commit(self, name: str, lease: Lease, commit: Commit) -> int:
        """The compaction's number. LeaseLost or StoreConflict if it came too late; then nothing was written."""
        dialect = dialect_of(self.must(name))
        return self.database.write(lambda tx: committing.commit(tx, name, lease, commit, dialect))

    def undo(self, name: str) -> Record:
        """Takes the compaction in force back; the state is again what it was before."""
        seq = self.database.write(lambda tx: committing.undo(tx, name))
        return next(record for record in self.records(name) if record.seq == seq)

    def remember(self, info: SessionInfo, memory: bytes) -> bool:
        """What was learnt since; not if a compaction was committed or undone meanwhile, which knows better."""
        seen = {"id": info.id, "compaction": info.compaction, "compactions": info.compactions}
        memory = seals.memory_of(memory, info.name, info.compaction, info.compactions)
        return self.database.write(lambda tx: tx.run("set_memory", memory=memory, **seen)) == 1

    def records(self, name: str) -> list[Record]:
        session = self.must(name)
        return [record_of(row) for row in self.database.rows("compactions", session=session.id)]

    def checkpoint(self, name: str, chains: Mapping[bytes, int]) -> checkpoints.Checkpoint | None:
        """The compaction that replaces most of a history with these chains, in a session or its branches."""
        return checkpoints.longest(self.database, name, chains)

    def is_in_force(self, name: str, seq: int) -> bool:
        """Whether a session still has this compaction: it may have been undone, or deleted."""
        return bool(self.database.rows("compaction_in_force", name=name, seq=seq))

    # Originals

    def unfold(self, name: str, handle: str, *, at: int | None = None, stop: int | None = None) -> Transcript:
        """The originals behind a handle, or the beginning of one, of this session or one it continues.

        `at`: only handles of compactions up to this one; `stop`: only messages before this position.
        """
        session: SessionInfo | None = self.must(name)
        while session is not None:
            found = self._unfolded(session, handle, FOREVER if at is None else at, FOREVER if stop is None else stop)
            at = stop = None
            if found:
                dialect = dialect_of(session)
                return tuple(Message.over(Raw(data), dialect.read) for data in found)
            session = self.info(session.parent) if session.parent and session.kind == "continuation" else None
        raise NotStored(f"session {name}: there is no handle {handle}")

    def has_handle(self, name: str, handle: str) -> bool:
        """Whether a handle, or the beginning of one, leads to something in this session; nothing is read."""
        session = self.info(name)
        if session is None:
            return False
        named = {"session": session.id, "low": handle, "high": handle + "\x7f", "seq": FOREVER}
        digest = _digests(handle.removeprefix(PREFIX))
        return bool(self.database.rows("handle", **named)) or bool(
            digest and self.database.rows("has_message", session=session.id, low=digest[0], high=digest[1])
        )

    def _unfolded(self, session: SessionInfo, handle: str, seq: int, stop: int) -> list[bytes]:
        full = handle if handle.startswith(PREFIX) else PREFIX + handle
        ends = {"session": session.id, "low": full, "high": full + "\x7f", "seq": seq}
        names = self.database.rows("handle", **ends)
        if len(names) > 1 and names[0][0] != full:
            raise NotStored(f"session {session.name}: several handles begin with {handle}")
        if names:
            return self._behind(session, *names[0])
        digests = _digests(full.removeprefix(PREFIX))
        if digests is None:
            return []
        values = {"session": session.id, "low": digests[0], "high": digests[1], "stop": stop}
        found = self.database.rows("message_by_digest", **values)
        if len(found) > 1:
            raise NotStored(f"session {session.name}: several messages have handles that begin with {handle}")
        return [inflated(*stored) for stored in found]

    def _behind(self, session: SessionInfo, handle: str, seq: int) -> list[bytes]:
        row = self.database.row("compaction", session=session.id, seq=seq)
        handles = self.database.rows("seal_of_handles", session=session.id, seq=seq)
        found = self.database.rows("handle_messages", session=session.id, handle=handle, seq=seq)
        wanted = sum(own[3] for own in handles if own[0] == handle)
        if row is None or len(found) != wanted:
            raise self._missing(session, f"some of what {handle} stands for is not there")
        seals.require_handles(row, handles)
        return [_bytes(*stored) for _, _, *stored in found]

    def find(
        self,
        text: str,
        *,
        name: str | None = None,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
        every: bool = True,
        most: int = 200,
    ) -> list[Candidate]:
        """Messages with every word of a query, or with any, the newest first."""
        query = parse_query(text, every=every)
        if not query.terms:
            return []
        filters: dict[str, Any] = {
            "session": None if name is None else self.must(name).id,
            "role": None if role is None else ROLES.index(role),
            "since": since or 0,
            "until": FOREVER if until is None else until,
            "most": most,
        }
        rows = self.database.read(lambda tx: tx.find(query, **filters))
        return [candidate_of(row) for row in rows]

    # The whole

    def delete(self, name: str) -> None:
        self.database.write(lambda tx: removing.delete(tx, name), how="alone")

    def prune(self, age: int, *, dry_run: bool = False) -> list[str]:
        """Deletes sessions that were not used for so many milliseconds, one after the other; says which.

        Time is the database's, and looked at again when a session is deleted: one that was used meanwhile stays. Hidden
        turns that nobody used for as long go too.
        """
        names = [row[0] for row in self.database.rows("unused_sessions", age=age)]
        if dry_run:
            return names
        self.hidden_turns.delete_unused(age)

        def unused(name: str) -> bool:
            return self.database.write(lambda tx: removing.delete_unused(tx, name, age), how="alone")

        return [name for name in names if unused(name)]

    def check(self, *, deep: bool = False) -> Iterator[str]:
        return checking.problems(self.database, deep=deep)

    def reindex(self, progress: indexing.Progress | None = None) -> int:
        """Makes the search index anew while others read and write; says how many bodies it holds."""
        return indexing.reindex(self.database, progress)

    def backup(self, target: str) -> None:
        self.database.backup(target)

    def close(self) -> None:
        self.database.close()


def open_database(url: str, *, connections: int = CONNECTIONS, clock: Callable[[], float] = time.time) -> Database:
    """`sqlite:///path.db`, `postgresql://...` or `memory:`; this process opens at most so many connections."""
    address, _, query = url.partition("?")
    if is_memory(url):
        return Memory(clock=clock)
    path = file_of(url)
    if path is not None:
        options: dict[str, Any] = dict(parse_qsl(query))
        unknown = sorted(set(options) - {"synchronous", "timeout"})
        if unknown:
            raise StoreError(f"{address}: unknown option {unknown[0]!r}; there are synchronous and timeout")
        try:
            options["timeout"] = float(options.get("timeout", 30.0))
        except ValueError:
            raise StoreError(f"{address}: timeout is not a number of seconds") from None
        if not path:
            raise StoreError(f"{address}: expected a path behind it, as in sqlite:///sessions.db")
        return SQLite(path, connections=connections, clock=clock, **options)
    if address.startswith(("postgresql://", "postgres://")):
        from midfold.store.postgres import Postgres

        return Postgres(url, connections=connections)
    raise StoreError("the address of a store begins with sqlite:///, postgresql:// or memory:")


def _digests(digits: str) -> tuple[bytes, bytes] | None:
    """Between which digests those lie that begin with these digits; None if nothing does."""
    if not 4 <= len(digits) <= DIGITS * 3 or set(digits) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(digits.ljust(32, "0")[:32]), bytes.fromhex(digits.ljust(32, "f")[:32]) + b"\xff"


def _keep(tx: Tx, name: str, prompt: Prompt, position: int) -> None:
    session = appending.tip(tx, name)
    assert session is not None
    prompts.keep(tx, session, prompt, position)


def _checked(name: str) -> None:
    if not name or len(name) > 200 or not name.isprintable():
        raise StoreError("the name of a session is 1 to 200 printable characters")


def _bytes(before: bytes | None, chain: bytes | None, *stored: Any) -> bytes:
    """A message of the history, which has a chain, or a text that is none."""
    data = inflated(*stored)
    if chain is not None:
        linked(before, chain, stored[0])
    return data


def _message(stored: Sequence[Any], dialect: type[Dialect]) -> Message:
    return Message.over(Raw(_bytes(*stored)), dialect.read)
