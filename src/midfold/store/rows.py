"""Decode and verify rows. A row that cannot be read, or is not the requested one, raises StoreDamaged.

Messages are verified by their hash and chain. Rows that only refer to messages are verified by a seal: a hash, stored
in the row's JSON, of that JSON and the rest of the row. Rows written by older versions have no seal.

1. The memory of a session is sealed with its name and the compaction in force.
2. The state of a compaction has three seals: for its row, for the pieces of its view, and for its handles.
3. Both ends of the JSON mark it as sealed, so that a damaged row is not mistaken for an unsealed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from midfold.compaction.receipt import Receipt
from midfold.compaction.request import CompactionState
from midfold.errors import StoreDamaged
from midfold.recall import Candidate
from midfold.store.bodies import ROLES, blob, read_linked
from midfold.store.database import Tx
from midfold.store.protocol import CompactionRecord, SessionInfo, Stored
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS

_UNREADABLE = (TypeError, ValueError, LookupError, OverflowError, msgspec.MsgspecError)
SEAL_BYTES = 16
ROW, PIECES, HANDLES = 0, 1, 2
Row = tuple[Any, ...]
_BEGIN, _END = b'{"seal":"', b'"sealed":true}'
_SEALS = re.compile(rb'\{"seal":"((?:[0-9a-f]{32}){1,3})",')


class SealedObject(NamedTuple):
    """JSON object without its seals, and the seals."""

    plain: bytes
    seals: bytes

    def require(self, number: int, about: bytes, what: str) -> None:
        """Raise StoreDamaged unless the seal matches; accept an object without seals."""
        expected = self.seals[number * SEAL_BYTES * 2 : (number + 1) * SEAL_BYTES * 2]
        if self.seals and expected != _seal(self.plain, about):
            raise StoreDamaged(f"{what} does not match its checksum")


def _seal(plain: bytes, about: bytes) -> bytes:
    return blake2b(about + b"\0" + plain, digest_size=SEAL_BYTES).hexdigest().encode()


def add_seals(data: bytes, *about: bytes) -> bytes:
    """Add one seal for each item of `about` to a JSON object; return other data unchanged."""
    data = bytes(data).strip() or b"{}"
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return data
    inner = data[1:-1].strip()
    plain = b"{" + inner + b"}"
    seals = b"".join(_seal(plain, each) for each in about)
    return _BEGIN + seals + b'",' + inner + (b"," if inner else b"") + _END


def split_seals(data: bytes) -> SealedObject:
    if not data.startswith(_BEGIN) and not data.endswith(_END):
        return _never_sealed(data)
    found = _SEALS.match(data)
    if found is None or not data.endswith(_END):
        raise StoreDamaged("a row has a malformed checksum")
    return SealedObject(b"{" + data[found.end() : -len(_END)].removesuffix(b",") + b"}", found[1])


def _never_sealed(data: bytes) -> SealedObject:
    try:
        if data:
            msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError):
        raise StoreDamaged("a row is not a JSON object") from None
    return SealedObject(data, b"")


def seal_memory(data: bytes, name: str, compaction: int, compactions: int) -> bytes:
    """Return a session's memory with its seal, as stored."""
    return add_seals(data, _session_bytes(name, compaction, compactions))


def read_memory(data: bytes, name: str, compaction: int, compactions: int) -> bytes:
    """Return a session's memory without its seal; raise StoreDamaged if the seal does not match."""
    memory = split_seals(data)
    memory.require(0, _session_bytes(name, compaction, compactions), f"the row of session {name}")
    return b"" if memory.plain == b"{}" else memory.plain


def _session_bytes(name: str, compaction: int, compactions: int) -> bytes:
    return f"{name}\n{compaction}\n{compactions}".encode("utf-8", "surrogatepass")


def seal_compaction(tx: Tx, session: int, seq: int) -> None:
    """Seal a compaction with the current content of its rows."""
    row, pieces, handles = _compaction_rows(tx, session, seq)
    state = add_seals(split_seals(blob(row[9])).plain, _row_bytes(row), _piece_bytes(pieces), _handle_bytes(handles))
    tx.run("set_state", session=session, seq=seq, state=state)


def require_row(row: Row) -> SealedObject:
    """Return the state of a compaction; raise StoreDamaged unless its row matches the seal."""
    state = split_seals(blob(row[9]))
    state.require(ROW, _row_bytes(row), f"compaction {row[0]}")
    return state


def require_view(row: Row, pieces: Iterable[Row]) -> None:
    """Raise StoreDamaged unless the row and the pieces (place, first, count, digest) match the seals."""
    require_row(row).require(PIECES, _piece_bytes(pieces), f"the view of compaction {row[0]}")


def require_handles(row: Row, handles: Iterable[Row]) -> None:
    """Raise StoreDamaged unless the row and the handles (handle, place, first, count, digest) match the seals."""
    require_row(row).require(HANDLES, _handle_bytes(handles), f"the handle list of compaction {row[0]}")


def require_compaction(tx: Tx, session: int, seq: int) -> None:
    """Raise StoreDamaged unless all rows of a compaction match its seals."""
    row, pieces, handles = _compaction_rows(tx, session, seq)
    require_view(row, pieces)
    require_handles(row, handles)


def _compaction_rows(tx: Tx, session: int, seq: int) -> tuple[Row, list[Row], list[Row]]:
    at = {"session": session, "seq": seq}
    row = tx.one("compaction", **at)
    if row is None:
        raise StoreDamaged(f"compaction {seq} is missing")
    return row, tx.all("seal_of_pieces", **at), tx.all("seal_of_handles", **at)


def _row_bytes(row: Row) -> bytes:
    seq, base, upto, at, fence, noted, undone, _, receipt, _ = row
    return repr((seq, base, upto, at, fence, bool(noted), undone is None)).encode() + blob(receipt)


def _piece_bytes(rows: Iterable[Row]) -> bytes:
    return repr(list(map(_piece, rows))).encode()


def _handle_bytes(rows: Iterable[Row]) -> bytes:
    return repr([(handle, *_piece(piece)) for handle, *piece in rows]).encode("utf-8", "surrogatepass")


def _piece(piece: Iterable[Any]) -> Row:
    place, first, count, digest = piece
    return place, first, count, None if digest is None else blob(digest)


def read_session(row: tuple[Any, ...], name: str | None = None) -> SessionInfo:
    """Decode a session's row; raise StoreDamaged if it is damaged or not the one named `name`."""
    *values, last = row
    try:
        info = msgspec.convert(dict(zip(SessionInfo.__struct_fields__, values, strict=True)), SessionInfo)
        memory = read_memory(blob(info.memory), info.name, info.compaction, info.compactions)
        dialect_of(info)
    except _UNREADABLE as error:
        raise StoreDamaged(f"the row of a session cannot be read ({type(error).__name__})") from None
    if name not in (None, info.name):
        raise StoreDamaged("the database returned another session than the requested one")
    if info.chain != (b"" if last is None else last):
        raise StoreDamaged(f"the last message of session {info.name} does not match the session's hash chain")
    return msgspec.structs.replace(info, memory=memory)


def read_record(row: tuple[Any, ...]) -> CompactionRecord:
    values = dict(zip(CompactionRecord.__struct_fields__, row, strict=True))
    try:
        values["noted"] = bool(values["noted"])
        values["receipt"] = msgspec.json.decode(blob(values["receipt"]), type=Receipt)
        values["state"] = msgspec.json.decode(require_row(row).plain, type=CompactionState)
        return msgspec.convert(values, CompactionRecord)
    except _UNREADABLE as error:
        raise StoreDamaged(f"the row of a compaction cannot be read ({type(error).__name__})") from None


def read_stored(row: tuple[Any, ...], position: int, dialect: type[Dialect]) -> Stored:
    """Decode a message's row; raise StoreDamaged if it is not the one at `position`."""
    found, role, at, *stored = row
    if found != position:
        raise StoreDamaged(f"the message at position {position} is missing")
    return Stored(position, _role(role), at, read_linked(dialect, *stored))


def read_candidate(row: tuple[Any, ...], session: SessionInfo) -> Candidate:
    position, role, at, *stored = row
    message = read_linked(dialect_of(session), *stored)
    return Candidate(session.name, position, _role(role), at, bytes(stored[2]), message)


def dialect_of(info: SessionInfo) -> type[Dialect]:
    return DIALECTS[info.dialect]


def _role(number: Any) -> str:
    if not isinstance(number, int) or not 0 <= number < len(ROLES):
        raise StoreDamaged("the row of a message has an invalid role")
    return ROLES[number]
