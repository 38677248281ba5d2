"""What a store holds and what it can do.

The store never rewrites or deletes a message of a living session. A compaction is one more row; what the model sees is
derived from both. Synchronous on purpose: asynchronous callers use a thread.
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
    """What stands beside the messages, each as JSON; None if nothing does."""

    system: bytes | None = None
    tools: bytes | None = None


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session as the store knows it. Times are milliseconds since 1970."""

    id: int
    name: str
    kind: Kind
    parent: str | None
    root: int | None
    forked: int | None
    """How many messages a branch shares with the session it left."""
    dialect: str
    model: str | None
    created: int
    updated: int
    ended: int | None
    count: int
    chain: bytes
    compaction: int
    """The compaction in force; 0 if there is none."""
    compactions: int
    memory: bytes


class ViewPiece(msgspec.Struct, frozen=True):
    """A run of messages of the history, or, with a body, one message that is none.

    A body with a `first` stands for the message at that position: a digest, a spill, a note.
    """

    first: int | None
    count: int
    body: int | None = None


class Item(NamedTuple):
    """One message of a view and where it is from; a message that is not stored yet has neither."""

    message: Message
    position: int | None = None
    body: int | None = None


class Stored(NamedTuple):
    """One message of the history."""

    position: int
    role: str
    at: int
    message: Message


class CompactionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction. It was made from the view of `base` and all messages before `upto`."""

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
    """Everything one compaction implies, to be written in one transaction."""

    base: int
    upto: int
    view: tuple[Item, ...]
    handles: dict[str, tuple[Item, ...]]
    receipt: Receipt
    state: CompactionState
    noted: bool = False
    memory: bytes = b""
    child: str | None = None
    """The continuation's name: the old session ends, and the view becomes the beginning of this one."""


class AppendResult(NamedTuple):
    """Which positions an append has, and whether it had been made before under the same key."""

    positions: range
    repeated: bool = False


class SyncResult(NamedTuple):
    """Where a client's history is now.

    `common` messages were there already, `added` are new; a history that changed became the branch `session`.
    """

    session: str
    common: int
    added: int
    branched: bool
    ahead: int = 0
    """How many messages the stored history has beyond the client's."""


class Prefix(NamedTuple):
    """The first `shared` messages of a history are the first of this session, which has `length` in all."""

    session: str
    shared: int
    length: int

    @property
    def whole(self) -> bool:
        """Whether the history begins with all of the session: it only goes on."""
        return self.shared == self.length


class Store(Protocol):
    """Sessions in a database."""

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
    """Messages of a session, its history or what the model sees of it: read, as plain values, or as exact bytes."""

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
        """A JSON array of the exact bytes of every message."""
        return b"[" + b",".join(message_bytes(item.message, self.dialect) for item in self.items) + b"]"

    @property
    def system(self) -> Any:
        """The system prompt that belongs beside these messages, in the caller's shape."""
        if self.prompt is None or self.prompt.wire is not None:
            return None if self.prompt is None else self.prompt.wire
        return self.dialect.system_value(self.prompt, self.prompt.origin)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)
