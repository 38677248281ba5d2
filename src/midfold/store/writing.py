"""Change a session within a transaction: append messages, commit and undo compactions, and store prompts.

1. Each position has its own row, so equal messages stay separate; their body is stored once.
2. The cost of an append depends only on what is appended: the chain continues from the session's row.
3. A commit first checks the lease with its row locked; without a valid lease nothing is written.
4. A compaction is made from one view. If another one is in force at commit time, the commit is refused. Messages
   appended meanwhile follow the new view; no row of the history is changed.
5. A continuation ends the session and starts the child with the view and the messages appended meanwhile.
6. System prompts and tools are stored as bodies. Each change has a row with the position of the first message it was
   sent with, and a seal of its body; rows of older versions have no seal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Raw

from midfold.errors import LeaseLost, NotStored, StoreConflict, StoreDamaged
from midfold.store import word_index
from midfold.store.bodies import NewMessage, blob, chain_of, digest_of, inflate, read_linked
from midfold.store.database import Tx
from midfold.store.leases import Lease
from midfold.store.protocol import AppendResult, Commit, Item, Kind, Prompt, PromptKind, ViewPiece
from midfold.store.rows import require_compaction, seal_compaction, seal_memory, split_seals
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import DIGEST_SIZE, Message
from midfold.transcript.openai_chat import OpenAIChat

FRESH = -1
"""Body of an item that replaces a message of the history and is not stored yet."""
PROMPT_KINDS: tuple[PromptKind, ...] = get_args(PromptKind)
DEFAULT_DIALECT = "openai-chat"
"""Dialect assumed for messages that fit every dialect; a later message may determine it."""


class LockedSession(msgspec.Struct, frozen=True):
    """Row of a session, locked for this transaction."""

    name: str
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


def lock_session(tx: Tx, name: str) -> LockedSession | None:
    row = tx.one("locked_session", name=name)
    if row is None:
        return None
    identity, dialect, count, chain, *rest = row
    return LockedSession(name, identity, dialect, count, bytes(chain), *rest)


def require_session(tx: Tx, name: str) -> LockedSession:
    session = lock_session(tx, name)
    if session is None:
        raise NotStored(f"there is no session {name}")
    return session


def ensure_session(tx: Tx, name: str, dialect: str, model: str | None = None, **more: Any) -> LockedSession:
    """Return the session's locked row; create the session if it does not exist."""
    found = lock_session(tx, name)
    if found is None:
        create_session(tx, name, dialect=dialect, model=model, **more)
        found = require_session(tx, name)
    return found


def create_session(tx: Tx, name: str, **values: Any) -> bool:
    """Insert a session; return False if the name is taken."""
    plain = {"kind": "root", "parent": None, "root": None, "forked": None, "memory": seal_memory(b"", name, 0, 0)}
    return bool(tx.all("create_session", name=name, **{**plain, **values}))


def append(
    tx: Tx, name: str, entries: Sequence[NewMessage], *, dialect: str, model: str | None = None, key: str | None = None
) -> AppendResult:
    """Append messages to the session; do nothing if the same append was already made with `key`."""
    session = ensure_session(tx, name, dialect, model)
    if key is not None:
        repeated = _find_append(tx, session, entries, key)
        if repeated is not None:
            return repeated
    positions = extend(tx, session, entries, dialect=dialect, model=model)
    if key is not None:
        values = {"first": positions.start, "count": len(positions), "digest": _digest(entries)}
        tx.run("add_append", session=session.id, key=key, **values)
    return AppendResult(positions)


def _find_append(tx: Tx, session: LockedSession, entries: Sequence[NewMessage], key: str) -> AppendResult | None:
    before = tx.one("append_by_key", session=session.id, key=key)
    if before is None:
        return None
    first, count, digest = before
    if bytes(digest) != _digest(entries):
        raise StoreConflict(
            f"session {session.name}: the key of this append was already used for {count} other message(s) "
            f"at position {first}"
        )
    return AppendResult(range(first, first + count), repeated=True)


def _digest(entries: Sequence[NewMessage]) -> bytes:
    return blake2b(b"".join(entry.digest for entry in entries), digest_size=DIGEST_SIZE).digest()


def extend(
    tx: Tx, session: LockedSession, entries: Sequence[NewMessage], *, dialect: str, model: str | None = None
) -> range:
    """Insert rows for the messages and update the session's row."""
    if not entries:
        return range(session.count, session.count)
    if session.ended is not None:
        children = ", ".join(row[0] for row in tx.all("children", id=session.id))
        raise StoreConflict(
            f"session {session.name} has ended and continues as {children or 'another one'}; append there"
        )
    bodies = tx.add_bodies(entries)
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
    word_index.add(tx, session.id, session.count, entries)
    count = session.count + len(entries)
    spoken = dialect if session.dialect == DEFAULT_DIALECT else session.dialect
    used = session.now if entries[-1].at is None else min(entries[-1].at, session.now)
    tx.run("grow_session", id=session.id, count=count, chain=chains[-1], used=used, dialect=spoken, model=model)
    return range(session.count, count)


def commit(tx: Tx, name: str, lease: Lease, new: Commit, dialect: type[Dialect]) -> int:
    """Commit a compaction and return its number."""
    session = require_session(tx, name)
    if lease.session != name or tx.one("lease_held", **lease._asdict()) is None:
        raise LeaseLost(f"session {name}: lease {lease.fence} is no longer held; nothing was committed")
    if session.compaction != new.base or session.ended is not None:
        raise StoreConflict(
            f"session {name}: the compaction is based on compaction {new.base}, but now "
            f"{session.compaction} is in force; nothing was committed"
        )
    seq = session.compactions + 1
    child = None if new.child is None else _continue(tx, session, new, new.child, dialect)
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
        receipt=jsonio.encode_record(new.receipt),
        state=msgspec.json.encode(new.state),
    )
    seal_compaction(tx, session.id, seq)
    set_compaction(tx, session, seq, seq, new.memory, ended=session.now if child else None)
    return seq


def set_compaction(
    tx: Tx, session: LockedSession, compaction: int, compactions: int, memory: bytes, ended: int | None = None
) -> None:
    """Set the compaction in force, the number of compactions, and the session's memory."""
    values = {"compaction": compaction, "compactions": compactions, "ended": ended}
    memory = seal_memory(memory, session.name, compaction, compactions)
    tx.run("set_compaction", id=session.id, now=session.now, memory=memory, **values)


def _continue(tx: Tx, session: LockedSession, new: Commit, child: str, dialect: type[Dialect]) -> int:
    if lock_session(tx, child) is not None:
        raise StoreConflict(f"session {session.name}: cannot continue as {child}, because that session already exists")
    begun = ensure_session(tx, child, session.dialect, kind="continuation", parent=session.id)
    entries = [NewMessage(item.message, dialect) for item in new.view]
    values = {"session": session.id, "start": new.upto, "stop": session.count, "most": session.count}
    for _, _, at, *stored in tx.all("messages", **values):
        entries.append(NewMessage(read_linked(dialect, *stored), dialect, at))
    extend(tx, begun, entries, dialect=session.dialect)
    tx.run("carry_prompts", source=session.id, target=begun.id)
    memory = seal_memory(new.memory, child, 0, 0)
    tx.run("set_memory", id=begun.id, memory=memory, compaction=0, compactions=0)
    return begun.id


def _write_pieces(tx: Tx, session: int, seq: int, new: Commit, dialect: type[Dialect]) -> None:
    items = [*new.view, *(item for items in new.handles.values() for item in items)]
    fresh = {id(item.message): NewMessage(item.message, dialect) for item in items if _is_fresh(item)}
    bodies = tx.add_bodies(list(fresh.values()))
    ids = {message: bodies[entry.digest] for message, entry in fresh.items()}
    tx.many("add_piece", _rows(new.view, ids, session=session, seq=seq))
    for handle, kept in new.handles.items():
        tx.many("add_handle", _rows(kept, ids, session=session, seq=seq, handle=handle))


def _is_fresh(item: Item) -> bool:
    return (item.body is None and item.position is None) or item.body == FRESH


def _rows(items: Sequence[Item], ids: dict[int, int], **fixed: Any) -> list[dict[str, Any]]:
    return [
        {**fixed, "place": place, **msgspec.structs.asdict(piece)} for place, piece in enumerate(pieces(items, ids))
    ]


def pieces(items: Iterable[Item], ids: dict[int, int]) -> Iterator[ViewPiece]:
    """Merge consecutive messages of the history into runs."""
    run: ViewPiece | None = None
    for item in items:
        body = ids.get(id(item.message), item.body)
        if body is None and run is not None and run.first is not None and run.first + run.count == item.position:
            run = ViewPiece(run.first, run.count + 1)
            continue
        if run is not None:
            yield run
            run = None
        if body is None:
            run = ViewPiece(item.position, 1)
        else:
            yield ViewPiece(item.position, 1, body)
    if run is not None:
        yield run


def memory_at(compaction: tuple[Any, ...]) -> bytes:
    """Return the session's memory right after a compaction, from the compaction's row."""
    noted = b"true" if compaction[5] else b"false"
    return b'{"state":' + split_seals(blob(compaction[9])).plain + b',"noted":' + noted + b"}"


def undo(tx: Tx, name: str) -> int:
    """Undo the compaction in force, restore its base, and return its number."""
    session = require_session(tx, name)
    if not session.compaction:
        raise NotStored(f"session {name}: there is no compaction to undo")
    require_compaction(tx, session.id, session.compaction)
    row = tx.one("compaction", session=session.id, seq=session.compaction)
    assert row is not None
    base = row[1]
    before = tx.one("compaction", session=session.id, seq=base) if base else None
    tx.run("undo_compaction", session=session.id, seq=session.compaction, now=session.now)
    seal_compaction(tx, session.id, session.compaction)
    memory = b"" if before is None else memory_at(before)
    set_compaction(tx, session, base, session.compactions, memory)
    return session.compaction


class PromptChange(NamedTuple):
    """Change of a system prompt or of the tools."""

    kind: PromptKind
    position: int
    at: int
    data: bytes | None


def keep_prompt(tx: Tx, name: str, prompt: Prompt, position: int) -> None:
    """Store the parts of the prompt that changed; it was sent with the messages from `position` on."""
    session = require_session(tx, name)
    for kind, number in _changes(tx, session.id, prompt).items():
        add_prompt(tx, session.id, number, PromptChange(kind, position, session.now, getattr(prompt, kind)))


def is_prompt_kept(tx: Tx, session: int, prompt: Prompt) -> bool:
    return not _changes(tx, session, prompt)


def _changes(tx: Tx, session: int, prompt: Prompt) -> dict[PromptKind, int]:
    """Return the kinds that differ from what is stored, with the number of the change."""
    known = {kind: (number, digest) for kind, number, digest in tx.all("last_prompts", session=session)}
    found: dict[PromptKind, int] = {}
    for kind in PROMPT_KINDS:
        data = getattr(prompt, kind)
        number, digest = known.get(kind, (0, None))
        if (None if digest is None else bytes(digest)) != (None if data is None else digest_of(data)):
            found[kind] = number + 1
    return found


def add_prompt(tx: Tx, session: int, number: int, prompted: PromptChange) -> None:
    body = seal = None
    if prompted.data is not None:
        entry = NewMessage(Message.over(Raw(prompted.data), OpenAIChat.read), OpenAIChat)
        body = tx.add_bodies([entry])[entry.digest]
        seal = _seal_of(prompted.kind, entry.digest)
    values = {"kind": prompted.kind, "number": number, "position": prompted.position, "at": prompted.at}
    tx.run("add_prompt", session=session, body=body, seal=seal, **values)


def read_prompt(kind: str, seal: bytes | None, *body: Any) -> bytes:
    """Return the stored prompt or tools; raise StoreDamaged if they do not match the seal."""
    if seal is not None and blob(seal) != _seal_of(kind, blob(body[0])):
        raise StoreDamaged(f"the {kind} of a session does not match its checksum")
    return inflate(*body)


def _seal_of(kind: str, digest: bytes) -> bytes:
    return blake2b(kind.encode() + digest, digest_size=16).digest()


def prompt_history(tx: Tx, session: int) -> list[PromptChange]:
    """Return all changes, oldest first."""
    return [
        PromptChange(kind, position, at, None if body is None else read_prompt(kind, *sealed))
        for kind, position, at, body, *sealed in tx.all("prompts", session=session)
    ]
