"""Request statistics without message content: usage reported by providers per turn, size of the last request of each
gateway conversation, and learned context windows.

1. Rows are deleted with their session by the database itself, whichever program deletes the session.
2. A conversation has a session row from its first answered request on; its messages are stored when it is compacted.
3. A conversation's name is derived from its first messages. While there are few, the name changes and the row is
   renamed; if two conversations started alike, the first to continue takes it.
4. The number of conversations without messages is limited; the least recently used are dropped.
5. A learned window belongs to one caller, under a hash, and expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from midfold.cache.health import Kind, RecordedTurn
from midfold.store import SqlStore
from midfold.store.database import Database, Tx
from midfold.store.protocol import SessionInfo
from midfold.store.writing import LockedSession, ensure_session, lock_session
from midfold.transcript.message import Usage

MAX_TURNS = 20_000
"""Maximum number of turns read per session, the newest first."""
MAX_CONVERSATIONS = 10_000
"""Maximum number of conversations without messages."""
MOST_WINDOWS = 10_000
REFUSED_SIZE_FRACTION = 0.6
"""Fraction of a refused size assumed to fit if no larger request was answered."""


class ReportedTurn(msgspec.Struct, frozen=True):
    """Usage reported with one response: tokens of the prompt with `count` messages, and how many of them were cached.

    `at` is milliseconds since 1970; `compaction` is the one in force.
    """

    id: int
    at: int
    count: int
    compaction: int
    model: str | None
    usage: Usage
    kind: Kind | None = None
    """Cache result, if it was known when the turn was recorded; otherwise it is inferred."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> ReportedTurn:
        number, at, count, compaction, model, kind, prompt, completion, read, written = row
        usage = Usage(
            prompt_tokens=prompt, completion_tokens=completion, cache_read_tokens=read, cache_write_tokens=written
        )
        return cls(number, at, count, compaction, model, usage, kind)


class Turns:
    """Turns of the sessions of one store."""

    def __init__(self, store: SqlStore) -> None:
        self._database = store.database

    def record(
        self,
        session: SessionInfo,
        usage: Usage,
        *,
        at: int,
        model: str | None = None,
        compaction: int | None = None,
        kind: Kind | None = None,
    ) -> None:
        """Record a turn of the session as of the request; `compaction` overrides the one in `session`."""
        turn = ReportedTurn(
            id=0,
            at=at,
            count=session.count,
            compaction=session.compaction if compaction is None else compaction,
            model=model or session.model,
            usage=usage,
            kind=kind,
        )
        self._database.write(lambda tx: add_turn(tx, session.id, turn))

    def add_recorded(self, session: SessionInfo, turns: Sequence[RecordedTurn]) -> None:
        """Add turns from a log, each with the number of messages before it, except those already stored."""

        def write(tx: Tx) -> None:
            known = {row[2] for row in tx.all("turns", session=session.id, most=MAX_TURNS)}
            for turn in turns:
                kind = turn.health.last.kind if turn.health.last is not None else None
                at = int(turn.at * 1000)
                if turn.place not in known:
                    add_turn(tx, session.id, ReportedTurn(0, at, turn.place, 0, turn.model or None, turn.usage, kind))

        self._database.write(write)

    def of(self, session: SessionInfo) -> list[ReportedTurn]:
        """Return the turns of a session, oldest first."""
        rows = self._database.rows("turns", session=session.id, most=MAX_TURNS)
        return [ReportedTurn.of(row) for row in reversed(rows)]

    def newest(self, limit: int) -> dict[int, int]:
        """Return the newest turn id of each of the most recently used sessions, by session id, to detect changes."""
        return dict(self._database.rows("newest_turns", most=limit))


def add_turn(tx: Tx, session: int, turn: ReportedTurn) -> None:
    """Insert one turn; the database assigns its id."""
    tx.run(
        "add_turn",
        session=session,
        at=turn.at,
        count=turn.count,
        compaction=turn.compaction,
        model=turn.model,
        kind=turn.kind,
        prompt=turn.usage.prompt_tokens,
        completion=turn.usage.completion_tokens,
        cache_read=turn.usage.cache_read_tokens,
        cache_write=turn.usage.cache_write_tokens,
    )


class LastRequest(msgspec.Struct, frozen=True):
    """Size of the last request of a conversation, with its context window and compaction threshold.

    `at` is milliseconds since 1970; unless `reported`, the tokens are an estimate.
    """

    session: int
    at: int
    count: int
    compaction: int
    tokens: int
    reported: bool
    window: int
    threshold: int
    requests: int = 1
    client: str = ""
    """Client program, as `name/version`."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> LastRequest:
        session, at, count, compaction, tokens, reported, *rest = row
        return cls(session, at, count, compaction, tokens, bool(reported), *rest)


class LastRequests:
    """Last requests of the conversations of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, session: int) -> LastRequest | None:
        row = self._database.row("last_request", session=session)
        return None if row is None else LastRequest.of(row)

    def newest(self, limit: int) -> dict[int, LastRequest]:
        """Return the last requests of the most recently used conversations, by session id."""
        return {row[0]: LastRequest.of(row) for row in self._database.rows("last_requests", most=limit)}

    def clients(self) -> dict[int, str]:
        """Return the known client programs of the most recently used conversations, by session id."""
        return dict(self._database.rows("clients", most=MAX_CONVERSATIONS))

    def forget(self, most: int = MAX_CONVERSATIONS) -> int:
        """Delete the oldest conversations without messages beyond `most`; return their number."""
        return self._database.write(lambda tx: tx.run("forget_conversations", most=most))


def place_conversation(tx: Tx, names: Sequence[str], dialect: str, model: str | None) -> LockedSession:
    """Return the row of a conversation, found by its name or a previous one, or a new row. Names are newest first."""
    found = lock_session(tx, names[0])
    if found is not None and tx.one("last_request", session=found.id) is not None:
        return found
    before = next((row for name in names[1:] if (row := lock_session(tx, name)) is not None and not row.count), None)
    if found is None:
        if before is None:
            # Not sealed: the seal includes the name, and this row will be renamed.
            return ensure_session(tx, names[0], dialect, model, memory=b"")
        tx.run("rename_session", id=before.id, name=names[0])
        return before
    if before is not None:
        # The conversation was compacted before its first requests were recorded, which created the row.
        tx.run("give_turns", source=before.id, target=found.id)
        tx.run("delete_session", session=before.id)
    return found


def put_last_request(tx: Tx, request: LastRequest, model: str | None) -> None:
    tx.run("put_last_request", **{**msgspec.structs.asdict(request), "reported": int(request.reported)})
    tx.run("touch_session", id=request.session, model=model)


class WindowBounds(msgspec.Struct, frozen=True):
    """Learned bounds of a model's context window in tokens; 0 if unknown. `ends` is milliseconds since 1970."""

    name: str
    """Hash of key, upstream, model and beta header."""
    owner: str
    """Name of the gateway key; empty if the gateway has none."""
    upstream: str
    model: str
    beta: str
    named: int = 0
    """Window named by a refusal."""
    refused: int = 0
    """Smallest size refused without naming a limit."""
    fitted: int = 0
    """Largest size that was answered."""
    ends: int = 0

    @property
    def window(self) -> int:
        """Estimated window; 0 if nothing was refused."""
        return self.named or (max(self.fitted, int(self.refused * REFUSED_SIZE_FRACTION)) if self.refused else 0)


class LearnedWindows:
    """Learned context windows of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, now: int, most: int = MOST_WINDOWS) -> list[WindowBounds]:
        """Return the bounds that have not expired, newest first."""
        return [WindowBounds(*row) for row in self._database.rows("windows", now=now, most=most)]

    def put(self, bounds: WindowBounds, now: int) -> None:
        def write(tx: Tx) -> None:
            tx.run("put_window", **msgspec.structs.asdict(bounds))
            tx.run("end_windows", now=now)

        self._database.write(write)

    def forget(self, name: str | None = None) -> int:
        """Delete one entry, or all; return the number deleted."""
        if name is None:
            return self._database.write(lambda tx: tx.run("forget_windows"))
        return self._database.write(lambda tx: tx.run("forget_window", name=name))
