"""Session store on a database. Each method is one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from midfold.compaction.archive import DIGITS, PREFIX
from midfold.compaction.handoff import Generated
from midfold.compaction.request import CompactionState
from midfold.errors import NotStored, StoreDamaged, StoreError
from midfold.recall.words import Term
from midfold.store import sync, upkeep, word_index, writing
from midfold.store.bodies import ROLES, NewMessage, chain_of, inflate, require_link
from midfold.store.database import CONNECTIONS, FOREVER, Database, Tx
from midfold.store.gateway_turns import HiddenTurns
from midfold.store.leases import TTL, Lease, StoredLeases
from midfold.store.protocol import (
    AppendResult,
    Commit,
    CompactionRecord,
    Item,
    Prefix,
    Prompt,
    SessionInfo,
    Stored,
    SyncResult,
)
from midfold.store.rows import (
    dialect_of,
    read_record,
    read_session,
    read_stored,
    require_handles,
    require_view,
    seal_memory,
)
from midfold.store.sqlite import MemoryDatabase, SQLite
from midfold.store.sync import StoredCheckpoints
from midfold.store.upkeep import migrate
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript

MEMORY = frozenset({"memory:", "memory://", "sqlite://", "sqlite:///:memory:", "sqlite://:memory:"})
"""URLs of an in-memory store, including the spellings of other programs, so that no file named :memory: is created."""
FILE = "sqlite:///"
PAGE = 500
LAST_CHARACTER = "\U0010ffff"
"""Character that sorts after every name; it is not printable, so no name contains it."""


class SqlStore:
    """`Store` on SQLite or PostgreSQL."""

    def __init__(self, database: Database, *, ttl: float = TTL) -> None:
        self.database = database
        self.where = database.where
        self.leases = StoredLeases(database, ttl)
        self.hidden_turns = HiddenTurns(database)
        self.checkpoints = StoredCheckpoints(database)
        migrate(database)

    # Sessions

    def info(self, name: str) -> SessionInfo | None:
        row = self.database.row("session", name=name)
        return None if row is None else read_session(row, name)

    def must(self, name: str) -> SessionInfo:
        found = self.info(name)
        if found is None:
            raise NotStored(f"{self.where}: there is no session {name}")
        return found

    def sessions(self, limit: int = 100, *, before: int | None = None, under: str = "") -> list[SessionInfo]:
        """List sessions, newest first.

        `before`: only sessions last used before this time; `under`: only sessions whose names start with it.
        """
        until = FOREVER if before is None else before
        if not under:
            rows = self.database.rows("sessions", before=until, most=limit)
        elif under.isprintable():
            rows = self.database.rows("sessions_under", **_names_under(under), before=until, most=limit)
        else:
            rows = []
        return [read_session(row) for row in rows]

    def append(
        self,
        name: str,
        entries: Sequence[NewMessage],
        *,
        dialect: str,
        model: str | None = None,
        key: str | None = None,
        prompt: Prompt | None = None,
    ) -> AppendResult:
        """Append messages; `prompt` is the system prompt and tools sent with them, if they are to be stored."""
        _check_name(name)

        def write(tx: Tx) -> AppendResult:
            done = writing.append(tx, name, entries, dialect=dialect, model=model, key=key)
            if prompt is not None and not done.repeated:
                writing.keep_prompt(tx, name, prompt, done.positions.start)
            return done

        return self.database.write(write)

    def sync(
        self,
        name: str,
        entries: Sequence[NewMessage],
        *,
        dialect: str,
        model: str | None = None,
        prompt: Prompt | None = None,
    ) -> SyncResult:
        """Store a client's complete history.

        An unchanged history costs no write. Hashing is done before the session is locked.
        """
        _check_name(name)
        chains = list(chain_of(entry.digest for entry in entries))
        known = self.info(name)
        if known is not None and entries and (known.count, known.chain) == (len(entries), chains[-1]):
            identity = known.id
            if prompt is None or self.database.read(lambda tx: writing.is_prompt_kept(tx, identity, prompt)):
                return SyncResult(name, known.count, 0, branched=False)

        def write(tx: Tx) -> SyncResult:
            done = sync.sync(tx, name, entries, chains, dialect=dialect, model=model)
            if prompt is not None:
                writing.keep_prompt(tx, done.session, prompt, done.common)
            return done

        return self.database.write(write)

    def prompt(self, info: SessionInfo) -> Prompt:
        """Return the system prompt and the tools last sent with the session."""
        rows = self.database.rows("current_prompts", session=info.id)
        known = [row for row in rows if row[0] in writing.PROMPT_KINDS]
        return Prompt(**{kind: writing.read_prompt(kind, *stored) for kind, *stored in known})

    def find_prefix(self, entries: Sequence[NewMessage], *, least: int = 1, under: str = "") -> Prefix | None:
        """Return the session that shares the longest prefix of this history, of at least `least` messages.

        `under`: only sessions whose names start with it.
        """
        digests = [entry.digest for entry in entries]
        chains = list(chain_of(digests))
        return self.database.read(lambda tx: sync.find_prefix(tx, digests, chains, least=least, under=under))

    # Reading

    def history(self, of: str | SessionInfo, start: int = 0, stop: int | None = None) -> Iterator[Stored]:
        """Iterate over the messages in order, up to the count in `of`, with at most one page in memory."""
        return self._history(self.must(of) if isinstance(of, str) else of, start, stop)

    def _history(self, session: SessionInfo, start: int, stop: int | None) -> Iterator[Stored]:
        dialect, end = dialect_of(session), session.count if stop is None else min(stop, session.count)
        while start < end:
            values = {"session": session.id, "start": start, "stop": end, "most": PAGE}
            rows = self.database.rows("messages", **values)
            if not rows:
                raise self._missing(session, f"the message at position {start} is missing")
            for place, row in enumerate(rows, start):
                yield read_stored(row, place, dialect)
            start += len(rows)

    def view(self, info: SessionInfo, at: int | None = None, history: Transcript = ()) -> tuple[Item, ...]:
        """Return what the model sees, or with `at` what it saw right after that compaction.

        `history`: all messages, if the caller already has them.
        """
        if history:
            return self._view_over(info, history)
        seq = info.compaction if at is None else at
        if not seq:
            return self.tail(info, 0)
        record = self.database.row("compaction", session=info.id, seq=seq)
        if record is None:
            raise NotStored(f"session {info.name}: there is no compaction {seq}")
        pieces = self.database.rows("seal_of_pieces", session=info.id, seq=seq)
        rows = self.database.rows("view_messages", session=info.id, seq=seq)
        try:
            require_view(record, pieces)
        except StoreDamaged as damaged:
            raise self._missing(info, f"compaction {seq} does not match its checksum") from damaged
        if len(rows) != sum(piece[2] for piece in pieces):
            raise self._missing(info, f"messages of the view of compaction {seq} are missing")
        dialect = dialect_of(info)
        kept = tuple(Item(_message(stored, dialect), position, body) for _, position, body, *stored in rows)
        return kept if at is not None else (*kept, *self.tail(info, record[2]))

    def _view_over(self, info: SessionInfo, history: Transcript) -> tuple[Item, ...]:
        """Build the view from a loaded history, reading only what the compaction wrote."""
        if not info.compaction:
            return tuple(Item(message, position) for position, message in enumerate(history))
        record = self.database.row("compaction", session=info.id, seq=info.compaction)
        pieces = self.database.rows("view_pieces", session=info.id, seq=info.compaction)
        if record is None:
            raise self._missing(info, f"compaction {info.compaction} is missing")
        try:
            require_view(record, (piece[:4] for piece in pieces))
        except StoreDamaged as damaged:
            raise self._missing(info, f"compaction {info.compaction} does not match its checksum") from damaged
        dialect, items = dialect_of(info), []
        for _, first, count, digest, body, *data in pieces:
            if body is None:
                items += [Item(history[position], position) for position in range(first, first + count)]
            else:
                items.append(Item(_message((None, None, digest, *data), dialect), first, body))
        return (*items, *(Item(history[position], position) for position in range(record[2], info.count)))

    def _missing(self, info: SessionInfo, what: str) -> StoreError:
        """Return the error for missing rows: the session was deleted meanwhile, or the database is damaged."""
        now = self.database.row("session", name=info.name)
        if now is None or now[0] != info.id:
            return NotStored(f"{self.where}: session {info.name} was deleted")
        return StoreDamaged(f"{self.where}: session {info.name}: {what}")

    def tail(self, info: SessionInfo, start: int) -> tuple[Item, ...]:
        """Return the messages from `start` to the count in `info`."""
        return tuple(Item(row.message, row.position) for row in self.history(info, start))

    # Compactions

    def commit(self, name: str, lease: Lease, commit: Commit) -> int:
        """Commit a compaction and return its number.

        Raise LeaseLost or StoreConflict, and write nothing, if it came too late.
        """
        dialect = dialect_of(self.must(name))
        return self.database.write(lambda tx: writing.commit(tx, name, lease, commit, dialect))

    def undo(self, name: str) -> CompactionRecord:
        """Undo the compaction in force and return it; the state before it is restored."""
        seq = self.database.write(lambda tx: writing.undo(tx, name))
        return next(record for record in self.records(name) if record.seq == seq)

    def remember(self, info: SessionInfo, memory: bytes) -> bool:
        """Store the session's memory and return True, unless the compaction in force changed since `info` was read."""
        seen = {"id": info.id, "compaction": info.compaction, "compactions": info.compactions}
        memory = seal_memory(memory, info.name, info.compaction, info.compactions)
        return self.database.write(lambda tx: tx.run("set_memory", memory=memory, **seen)) == 1

    def records(self, name: str) -> list[CompactionRecord]:
        session = self.must(name)
        return [read_record(row) for row in self.database.rows("compactions", session=session.id)]

    # Originals

    def unfold(self, name: str, handle: str, *, at: int | None = None, stop: int | None = None) -> Transcript:
        """Return the originals of a handle, or of the start of one, in this session or one it continues.

        `at`: only handles of compactions up to this one; `stop`: only messages before this position.
        """
        session: SessionInfo | None = self.must(name)
        while session is not None:
            found = self._read_handle(session, handle, FOREVER if at is None else at, FOREVER if stop is None else stop)
            at = stop = None
            if found:
                dialect = dialect_of(session)
                return tuple(Message.over(Raw(data), dialect.read) for data in found)
            session = self.info(session.parent) if session.parent and session.kind == "continuation" else None
        raise NotStored(f"session {name}: there is no handle {handle}")

    def _read_handle(self, session: SessionInfo, handle: str, seq: int, stop: int) -> list[bytes]:
        """Resolve a handle: an exact fold, the first message with that digest prefix, or a fold with that prefix."""
        full = handle if handle.startswith(PREFIX) else PREFIX + handle
        names = self.database.rows("handle", session=session.id, low=full, high=full + "\x7f", seq=seq)
        if names and names[0][0] == full:
            return self._read_fold(session, *names[0])
        digests = digest_range(full.removeprefix(PREFIX))
        if digests is not None:
            values = {"session": session.id, "low": digests[0], "high": digests[1], "stop": stop}
            found = self.database.rows("message_by_digest", **values)
            if found:
                return [inflate(*stored) for _, *stored in found]
        if len(names) > 1:
            raise NotStored(f"session {session.name}: several handles begin with {handle}")
        return self._read_fold(session, *names[0]) if names else []

    def _read_fold(self, session: SessionInfo, handle: str, seq: int) -> list[bytes]:
        row = self.database.row("compaction", session=session.id, seq=seq)
        handles = self.database.rows("seal_of_handles", session=session.id, seq=seq)
        found = self.database.rows("handle_messages", session=session.id, handle=handle, seq=seq)
        wanted = sum(own[3] for own in handles if own[0] == handle)
        if row is None or len(found) != wanted:
            raise self._missing(session, f"originals of {handle} are missing")
        require_handles(row, handles)
        return [_bytes(*stored) for _, _, *stored in found]

    def find(
        self,
        terms: Sequence[Term],
        *,
        of: str | SessionInfo | None = None,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
        stop: int | None = None,
    ) -> list[dict[str, list[int]]]:
        """Return the positions of each term by session, in one session or in all."""
        session = self.must(of) if isinstance(of, str) else of
        if not terms:
            return []
        if session is not None:
            found, names = word_index.find(self.database, terms, session.id, session.count), {session.id: session.name}
        else:
            found = word_index.find(self.database, terms, None, 0)
            names = {row[0]: row[1] for row in self.database.rows("session_names")}
        number, end = -1 if role is None else ROLES.index(role), FOREVER if stop is None else stop
        is_whole = role is None and since is None and until is None

        @cache
        def choose(owner: int) -> Container[int]:
            if is_whole:
                return range(end)
            values = {"role": number, "since": since or 0, "until": FOREVER if until is None else until}
            return {row[0] for row in self.database.rows("matching_positions", session=owner, **values) if row[0] < end}

        def keep(each: dict[int, list[int]]) -> dict[str, list[int]]:
            named = {owner: places for owner, places in each.items() if owner in names}
            if is_whole and stop is None:
                return {names[owner]: places for owner, places in named.items()}
            kept = {owner: [one for one in places if one in choose(owner)] for owner, places in named.items()}
            return {names[owner]: places for owner, places in kept.items() if places}

        return [keep(each) for each in found]

    # Maintenance

    def delete(self, name: str) -> None:
        self.database.write(lambda tx: upkeep.delete_session(tx, name), how="alone")

    def prune(self, age: int, *, dry_run: bool = False) -> list[str]:
        """Delete sessions not used for `age` milliseconds, one at a time, and return their names.

        Age is measured by the database's clock and checked again at each deletion, so a session used meanwhile is kept.
        Hidden turns not used for as long are deleted too.
        """
        names = [row[0] for row in self.database.rows("unused_sessions", age=age)]
        if dry_run:
            return names
        self.hidden_turns.delete_unused(age)

        def delete_unused(name: str) -> bool:
            return self.database.write(lambda tx: upkeep.delete_unused_session(tx, name, age), how="alone")

        return [name for name in names if delete_unused(name)]

    def check(self, *, deep: bool = False) -> Iterator[str]:
        return upkeep.problems(self.database, deep=deep)

    def close(self) -> None:
        self.database.close()


class StoredKeeper:
    """`Keeper` of one session: verifies handles and handoffs, since a text that looks like one may be made up.

    `space` is the prefix, up to the last slash, of the names of an owner's sessions: a handoff is trusted if one of
    those sessions has it. Without a `space`, the handoff's checksum is enough.
    """

    def __init__(self, store: SqlStore, session: str, space: str | None = None) -> None:
        self._store, self._session, self._space = store, session, space

    def has_handle(self, handle: str) -> bool:
        """Return whether a handle, or the start of one of this session, exists; no originals are read."""
        return self._is_own(handle) or bool(self._folds(handle))

    def _is_own(self, handle: str) -> bool:
        session, database = self._store.info(self._session), self._store.database
        if session is None:
            return False
        ends = {"session": session.id, "low": handle, "high": handle + "\x7f", "seq": FOREVER}
        digests = digest_range(handle.removeprefix(PREFIX))
        return bool(database.rows("handle", **ends)) or bool(
            digests and database.rows("has_message", session=session.id, low=digests[0], high=digests[1])
        )

    def has_handoff(self, handoff: Generated) -> bool:
        if self._space is None:
            return True
        return any(
            state.folds[-1:] == (handoff.fold,) and state.summary.strip() == handoff.body
            for state in self._folds(PREFIX + handoff.fold)
        )

    def _folds(self, handle: str) -> list[CompactionState]:
        """Return the states of the folds with this handle, in any session of the owner."""
        under = f"{self._space}/" if self._space else ""
        rows = self._store.database.rows("folds_by_handle", handle=handle, under=under)
        return [
            msgspec.json.decode(bytes(state), type=CompactionState)
            for name, state in rows
            if self._space is None or name.rpartition("/")[0] == self._space
        ]


class StoredOriginals(Mapping[str, tuple[Message, ...]]):
    """Mapping of handles to originals of one session and those it continues, read on access.

    `at`: only compactions up to this one; `stop`: only messages before this position.
    """

    def __init__(self, store: SqlStore, session: str, *, at: int | None = None, stop: int | None = None) -> None:
        self._store, self._session = store, session
        self._at, self._stop = at, stop

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        try:
            return self._store.unfold(self._session, handle, at=self._at, stop=self._stop)
        except NotStored:
            raise KeyError(handle) from None

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys(handle for record in self._records() for handle in record.receipt.handles)

    def _records(self) -> Iterator[CompactionRecord]:
        """Yield the compactions in force of this session and those it continues."""
        at, session = self._at, self._store.info(self._session)
        while session is not None:
            for record in self._store.records(session.name):
                if record.undone is None and (at is None or record.seq <= at):
                    yield record
            at, parent = None, session.parent if session.kind == "continuation" else None
            session = self._store.info(parent) if parent else None

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_memory(url: str) -> bool:
    """Return whether the store is in memory only."""
    return url.partition("?")[0] in MEMORY


def file_of(url: str) -> str | None:
    """Return the path of a SQLite file, or None for another kind of store."""
    address = url.partition("?")[0]
    return address.removeprefix(FILE) if address.startswith(FILE) and not is_memory(url) else None


def open_database(url: str, *, connections: int = CONNECTIONS, clock: Callable[[], float] = time.time) -> Database:
    """Open `sqlite:///path.db`, `postgresql://...` or `memory:` with at most `connections` connections."""
    address, _, query = url.partition("?")
    if is_memory(url):
        return MemoryDatabase(clock=clock)
    path = file_of(url)
    if path is not None:
        options: dict[str, Any] = dict(parse_qsl(query))
        unknown = sorted(set(options) - {"synchronous", "timeout"})
        if unknown:
            raise StoreError(f"{address}: unknown option {unknown[0]!r}; expected synchronous or timeout")
        try:
            options["timeout"] = float(options.get("timeout", 30.0))
        except ValueError:
            raise StoreError(f"{address}: timeout must be a number of seconds") from None
        if not path:
            raise StoreError(f"{address}: expected a path after it, as in sqlite:///sessions.db")
        return SQLite(path, connections=connections, clock=clock, **options)
    if address.startswith(("postgresql://", "postgres://")):
        from midfold.store.postgres import Postgres

        return Postgres(url, connections=connections)
    raise StoreError("the URL of a store must start with sqlite:///, postgresql:// or memory:")


def find_handle(store: SqlStore, handle: str, *, under: str = "") -> str:
    """Return the newest session with this handle, among those whose names start with `under`."""
    full = handle if handle.startswith(PREFIX) else PREFIX + handle
    first, last = digest_range(full.removeprefix(PREFIX)) or (b"", b"")
    values = {"low": full, "high": full + "\x7f", "first": first, "last": last, **_names_under(under)}
    for (name,) in store.database.rows("sessions_with_handle", **values) if (under + handle).isprintable() else ():
        try:
            store.unfold(name, handle)
        except NotStored:
            continue
        return str(name)
    raise NotStored(f"there is no handle {handle[:80]!r}")


def digest_range(digits: str) -> tuple[bytes, bytes] | None:
    """Return the range of digests that start with these hex digits, or None if the digits are invalid."""
    if not 4 <= len(digits) <= DIGITS * 3 or set(digits) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(digits.ljust(32, "0")[:32]), bytes.fromhex(digits.ljust(32, "f")[:32]) + b"\xff"


def _names_under(under: str) -> dict[str, str]:
    return {"under": under, "beyond": under + LAST_CHARACTER}


def _check_name(name: str) -> None:
    if not name or len(name) > 200 or not name.isprintable():
        raise StoreError("a session name must have 1 to 200 printable characters")


def _bytes(before: bytes | None, chain: bytes | None, *stored: Any) -> bytes:
    """Return the bytes of a body, verifying the chain if it is a message of the history."""
    data = inflate(*stored)
    if chain is not None:
        require_link(before, chain, stored[0])
    return data


def _message(stored: Sequence[Any], dialect: type[Dialect]) -> Message:
    return Message.over(Raw(_bytes(*stored)), dialect.read)
