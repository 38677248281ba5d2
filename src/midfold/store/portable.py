"""Export a session as JSON lines and import it again: one line for the session, one per change of its system prompt or
tools, one per message, one per compaction.

Messages keep their exact bytes; one that contains a line break is written as base64. An import creates the same
positions, compactions and handles in the other store.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from midfold.compaction.request import Redactor
from midfold.errors import StoreConflict, StoreDamaged, StoreError
from midfold.store import writing
from midfold.store.bodies import NewMessage, inflate
from midfold.store.database import Tx
from midfold.store.intake import redact_json
from midfold.store.protocol import PromptKind, SessionInfo
from midfold.store.rows import require_compaction, seal_compaction, split_seals
from midfold.store.sqlstore import SqlStore
from midfold.store.writing import PromptChange, set_compaction
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Message

FORMAT = 1


class Header(msgspec.Struct, kw_only=True):
    midfold: int
    session: str
    dialect: str
    model: str | None = None
    created: int = 0
    compaction: int = 0
    compactions: int = 0
    memory: Raw = Raw(b"{}")


class PortableMessage(msgspec.Struct):
    """Message line with the JSON unchanged."""

    message: Raw
    at: int

    def data(self) -> bytes:
        return bytes(self.message)


class PackedLine(msgspec.Struct):
    """Message line in base64, for a message that is not a single line of JSON."""

    base64: str
    at: int

    def data(self) -> bytes:
        return b64decode(self.base64)


class PromptLine(msgspec.Struct):
    """Change of the system prompt or the tools; without `base64` they were removed."""

    prompt: PromptKind
    position: int
    at: int
    base64: str | None

    def change(self) -> PromptChange:
        return PromptChange(
            self.prompt, self.position, self.at, None if self.base64 is None else b64decode(self.base64)
        )


_line = msgspec.json.Decoder(PortableMessage).decode
_packed = msgspec.json.Decoder(PackedLine).decode

Run = tuple[int | None, int, int | None]
"""First position, count, and index into the line's `bodies`."""


class CompactionLine(msgspec.Struct):
    seq: int
    base: int
    upto: int
    at: int
    fence: int
    noted: int
    undone: int | None
    receipt: Raw
    state: Raw
    pieces: list[Run]
    handles: dict[str, list[Run]]
    bodies: list[str]


class ExportedSession(NamedTuple):
    """Lines of an exported session by kind."""

    header: Header
    prompts: list[PromptChange]
    messages: list[PortableMessage | PackedLine]
    compactions: list[CompactionLine]


def export_session(store: SqlStore, name: str) -> Iterator[bytes]:
    info = store.must(name)
    header = Header(
        midfold=FORMAT,
        session=info.name,
        dialect=info.dialect,
        model=info.model,
        created=info.created,
        compaction=info.compaction,
        compactions=info.compactions,
        memory=Raw(info.memory or b"{}"),
    )
    yield msgspec.json.encode(header)
    for kind, position, at, body in store.database.read(lambda tx: writing.prompt_history(tx, info.id)):
        yield msgspec.json.encode(PromptLine(kind, position, at, None if body is None else b64encode(body).decode()))
    for row in store.history(info):
        data = bytes(row.message.wire)
        plain = b"\n" not in data and b"\r" not in data and _is_json(data)
        yield msgspec.json.encode(
            PortableMessage(Raw(data), row.at) if plain else PackedLine(b64encode(data).decode(), row.at)
        )
    for record in store.records(name)[: info.compactions]:
        yield msgspec.json.encode(store.database.read(partial(_compaction, info=info, seq=record.seq)))


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _compaction(tx: Tx, info: SessionInfo, seq: int) -> CompactionLine:
    require_compaction(tx, info.id, seq)
    row = tx.one("compaction", session=info.id, seq=seq)
    assert row is not None
    seq, base, upto, at, fence, noted, undone, _, receipt, state = row
    numbers: dict[int, int] = {}

    def run(first: int | None, count: int, body: int | None) -> Run:
        return first, count, None if body is None else numbers.setdefault(body, len(numbers))

    pieces = [run(*piece) for _, _, *piece in tx.all("pieces", session=info.id, seq=seq)]
    handles: dict[str, list[Run]] = {}
    for handle, _, _, *piece in tx.all("handles", session=info.id, seq=seq):
        handles.setdefault(handle, []).append(run(*piece))
    bodies: list[str] = []
    for body in numbers:
        stored = tx.one("body", id=body)
        if stored is None:
            raise StoreDamaged(f"session {info.name}: a body of compaction {seq} is missing")
        bodies.append(b64encode(inflate(*stored)).decode())
    texts = Raw(bytes(receipt)), Raw(split_seals(state).plain)
    return CompactionLine(seq, base, upto, at, fence, noted, undone, *texts, pieces, handles, bodies)


def import_session(
    store: SqlStore, lines: Iterable[bytes], name: str | None = None, *, redactor: Redactor | None = None
) -> str:
    """Import an exported session and return its name.

    The messages are written after the session's row, so the session counts as last used at the time of its last
    message.
    """
    header, prompts, messages, compactions = _parse(lines)
    dialect = DIALECTS[header.dialect]
    target = name or header.session

    def clean(data: bytes) -> bytes:
        return data if redactor is None else redact_json(data, redactor)

    entries = [NewMessage(_message(clean(line.data()), dialect), dialect, line.at) for line in messages]
    prompts = [row._replace(data=None if row.data is None else clean(row.data)) for row in prompts]

    def load(tx: Tx) -> None:
        if writing.lock_session(tx, target) is not None:
            raise StoreConflict(f"session {target} already exists; import it under another name")
        session = writing.ensure_session(tx, target, header.dialect, header.model)
        set_compaction(tx, session, header.compaction, header.compactions, bytes(header.memory))
        writing.extend(tx, session, entries, dialect=header.dialect)
        numbers: Counter[str] = Counter()
        for change in prompts:
            numbers[change.kind] += 1
            writing.add_prompt(tx, session.id, numbers[change.kind], change)
        for compaction in compactions:
            bodies = [clean(b64decode(body)) for body in compaction.bodies]
            _load_compaction(tx, session.id, compaction, bodies, dialect)

    store.database.write(load)
    return target


def _parse(lines: Iterable[bytes]) -> ExportedSession:
    header: Header | None = None
    prompts: list[PromptChange] = []
    messages: list[PortableMessage | PackedLine] = []
    compactions: list[CompactionLine] = []
    read = 0
    try:
        for line in lines:
            read += 1
            if not line.strip():
                continue
            if header is None:
                header = msgspec.json.decode(line, type=Header)
                header.memory = _without_partner(header.memory)
            elif line.startswith(b'{"prompt"'):
                prompts.append(msgspec.json.decode(line, type=PromptLine).change())
            elif line.startswith(b'{"seq"'):
                compactions.append(msgspec.json.decode(line, type=CompactionLine))
            else:
                packed = line.startswith(b'{"base64"')
                messages.append(_packed(line) if packed else _line(line))
    except msgspec.MsgspecError as error:
        raise StoreError(f"line {read}: expected a line of an exported session") from error
    if header is None or header.midfold != FORMAT or header.dialect not in DIALECTS:
        raise StoreError(f"line 1: expected an exported session of format {FORMAT}")
    return ExportedSession(header, prompts, messages, compactions)


def _without_partner(memory: Raw) -> Raw:
    """Remove the conversation's partner: an imported file must not choose where the conversation is sent next."""
    state = msgspec.json.decode(memory, type=dict[str, Raw])
    state.pop("partner", None)
    return Raw(msgspec.json.encode(state))


def _message(data: bytes, dialect: type[Dialect]) -> Message:
    return Message.over(Raw(data), dialect.read)


def _load_compaction(
    tx: Tx, session: int, compaction: CompactionLine, datas: list[bytes], dialect: type[Dialect]
) -> None:
    entries = [NewMessage(_message(data, dialect), dialect) for data in datas]
    ids = tx.add_bodies(entries)
    bodies = [ids[entry.digest] for entry in entries]

    def rows(runs: list[Run], **fixed: Any) -> list[dict[str, Any]]:
        return [
            {**fixed, "place": place, "first": first, "count": count, "body": None if body is None else bodies[body]}
            for place, (first, count, body) in enumerate(runs)
        ]

    at = {"session": session, "seq": compaction.seq}
    tx.run(
        "add_compaction",
        **at,
        base=compaction.base,
        upto=compaction.upto,
        at=compaction.at,
        fence=compaction.fence,
        noted=compaction.noted,
        child=None,
        receipt=bytes(compaction.receipt),
        state=bytes(compaction.state),
    )
    if compaction.undone is not None:
        tx.run("undo_compaction", **at, now=compaction.undone)
    tx.many("add_piece", rows(compaction.pieces, **at))
    for handle, runs in compaction.handles.items():
        tx.many("add_handle", rows(runs, **at, handle=handle))
    seal_compaction(tx, session, compaction.seq)
