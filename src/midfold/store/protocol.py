"""Store protocol and the records it exchanges.

A store never rewrites or deletes a message of an existing session. A compaction adds a row; the view that the model
sees is derived from both. The protocol is synchronous; asynchronous callers use a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from midfold.compaction.receipt import Receipt
from midfold.compaction.request import CompactionState
from midfold.recall.words import Term
from midfold.store.bodies import NewMessage
from midfold.store.gateway_turns import HiddenTurns
from midfold.store.leases import CompactionLease, Lease
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript
from midfold.transcript.splice import message_bytes, message_value

Kind = Literal["root", "branch", "continuation"]
PromptKind = Literal["system", "tools"]


class Prompt(NamedTuple):
    """System prompt and tools as JSON; None if there are none."""

    system: bytes | None = None
    tools: bytes | None = None


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Stored metadata of one session. Times are milliseconds since 1970."""

    id: int
    name: str
    kind: Kind
    parent: str | None
    root: int | None
    forked: int | None
    """Number of messages a branch shares with its parent session."""
    dialect: str
    model: str | None
    created: int
    updated: int
    ended: int | None
    count: int
    chain: bytes
    compaction: int
    """Compaction in force; 0 if there is none."""
    compactions: int
    memory: bytes


class ViewPiece(msgspec.Struct, frozen=True):
    """Run of messages of the history or, with a body, one message that is not part of it.

    A body with a `first` replaces the message at that position: a digest, a spill or a note.
    """

    first: int | None
    count: int
    body: int | None = None


class Item(NamedTuple):
    """Message of a view with its position or body; both are None if it is not stored yet."""

    message: Message
    position: int | None = None
    body: int | None = None


class Stored(NamedTuple):
    """Message of the history."""

    position: int
    role: str
    at: int
    message: Message


class CompactionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction, made from the view of `base` and all messages before `upto`."""

    seq: int
    base: int
    upto: int
    at: int
    fence: int
    noted: bool
    undone: int | None
    child: str | None
    receipt: Receipt
    state: CompactionState


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of one compaction, to be written in one transaction."""

    base: int
    upto: int
    view: tuple[Item, ...]
    handles: dict[str, tuple[Item, ...]]
    receipt: Receipt
    state: CompactionState
    noted: bool = False
    memory: bytes = b""
    child: str | None = None
    """Name of the continuation: the old session ends, and the view becomes the start of the new one."""


class AppendResult(NamedTuple):
    """Positions of appended messages, and whether the same key had already appended them."""

    positions: range
    repeated: bool = False


class SyncResult(NamedTuple):
    """Result of synchronizing a client's history.

    `common` messages were already stored and `added` are new. A history that diverged is stored as the branch
    `session`.
    """

    session: str
    common: int
    added: int
    branched: bool
    ahead: int = 0
    """Number of stored messages beyond the end of the client's history."""


class Prefix(NamedTuple):
    """Session that shares the first `shared` messages with a history and has `length` messages."""

    session: str
    shared: int
    length: int

    @property
    def whole(self) -> bool:
        """Return whether the history starts with the complete session."""
        return self.shared == self.length


class Store(Protocol):
    """Protocol of a session store."""

    where: str

    @property
    def leases(self) -> CompactionLease: ...
    @property
    def hidden_turns(self) -> HiddenTurns: ...
    def info(self, name: str) -> SessionInfo | None: ...
    def sessions(self, limit: int = 100, *, before: int | None = None, under: str = "") -> list[SessionInfo]: ...
    def append(
        self,
        name: str,
        entries: Sequence[NewMessage],
        *,
        dialect: str,
        model: str | None = None,
        key: str | None = None,
        prompt: Prompt | None = None,
    ) -> AppendResult: ...
    def sync(
        self,
        name: str,
        entries: Sequence[NewMessage],
        *,
        dialect: str,
        model: str | None = None,
        prompt: Prompt | None = None,
    ) -> SyncResult: ...
    def prompt(self, info: SessionInfo) -> Prompt: ...
    def find_prefix(self, entries: Sequence[NewMessage], *, least: int = 1, under: str = "") -> Prefix | None: ...
    def history(self, of: str | SessionInfo, start: int = 0, stop: int | None = None) -> Iterator[Stored]: ...
    def view(self, info: SessionInfo, at: int | None = None) -> tuple[Item, ...]: ...
    def commit(self, name: str, lease: Lease, commit: Commit) -> int: ...
    def undo(self, name: str) -> CompactionRecord: ...
    def remember(self, info: SessionInfo, memory: bytes) -> bool: ...
    def records(self, name: str) -> list[CompactionRecord]: ...
    def unfold(self, name: str, handle: str, *, at: int | None = None, stop: int | None = None) -> Transcript: ...
    def find(
        self,
        terms: Sequence[Term],
        *,
        of: str | SessionInfo | None = None,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
        stop: int | None = None,
    ) -> list[dict[str, list[int]]]: ...
    def delete(self, name: str) -> None: ...
    def prune(self, age: int, *, dry_run: bool = False) -> list[str]: ...
    def check(self, *, deep: bool = False) -> Iterable[str]: ...
    def close(self) -> None: ...


class View:
    """Messages of a session (its history or what the model sees), as parsed messages, plain values or exact bytes."""

    def __init__(
        self,
        items: tuple[Item, ...],
        dialect: type[Dialect],
        system: Message | None = None,
        tools: Sequence[Any] = (),
    ) -> None:
        self.items = items
        self.dialect = dialect
        self.prompt = system
        self.tools = list(tools)

    @cached_property
    def transcript(self) -> Transcript:
        return tuple(item.message for item in self.items)

    @cached_property
    def messages(self) -> list[Any]:
        """Plain values, ready to be sent."""
        return [message_value(item.message, self.dialect) for item in self.items]

    def json(self) -> bytes:
        """Return a JSON array of the exact bytes of every message."""
        return b"[" + b",".join(message_bytes(item.message, self.dialect) for item in self.items) + b"]"

    @property
    def system(self) -> Any:
        """System prompt for these messages, in the caller's format."""
        if self.prompt is None or self.prompt.wire is not None:
            return None if self.prompt is None else self.prompt.wire
        return self.dialect.system_value(self.prompt, self.prompt.origin)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)
