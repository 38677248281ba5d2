"""Rows that say of themselves what they should be.

A message is bound by its hash and the chain over it. What only points at messages is bound by a seal: a hash in the
JSON of a row, over that JSON and whatever the row stands for. Rows that an older midfold wrote have none.

1. The memory of a session is sealed with its name and the compaction in force.
2. The state of a compaction has three seals: over its row, over the pieces of its view, over its handles.
3. Both ends of the JSON say that it is sealed: one that is damaged is not taken for an old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from midfold.errors import StoreDamaged
from midfold.store.bodies import blob
from midfold.store.database import Tx

SIZE = 16
ROW, PIECES, HANDLES = 0, 1, 2
Row = tuple[Any, ...]
_BEGIN, _END = b'{"seal":"', b'"sealed":true}'
_SEALS = re.compile(rb'\{"seal":"((?:[0-9a-f]{32}){1,3})",')


class Sealed(NamedTuple):
    """A JSON object without its seals, and the seals."""

    plain: bytes
    seals: bytes

    def require(self, number: int, about: bytes, what: str) -> None:
        """Raises unless this is what was sealed; what was never sealed is believed."""
        expected = self.seals[number * SIZE * 2 : (number + 1) * SIZE * 2]
        if self.seals and expected != _seal(self.plain, about):
            raise StoreDamaged(f"{what} is not what was written")


def _seal(plain: bytes, about: bytes) -> bytes:
    return blake2b(about + b"\0" + plain, digest_size=SIZE).hexdigest().encode()


def sealed(data: bytes, *about: bytes) -> bytes:
    """A JSON object with a seal for each of these; what is no object stays as it is."""
    data = bytes(data).strip() or b"{}"
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return data
    inner = data[1:-1].strip()
    plain = b"{" + inner + b"}"
    seals = b"".join(_seal(plain, each) for each in about)
    return _BEGIN + seals + b'",' + inner + (b"," if inner else b"") + _END


def unsealed(data: bytes) -> Sealed:
    if not data.startswith(_BEGIN) and not data.endswith(_END):
        return _never_sealed(data)
    found = _SEALS.match(data)
    if found is None or not data.endswith(_END):
        raise StoreDamaged("a row is not what was written")
    return Sealed(b"{" + data[found.end() : -len(_END)].removesuffix(b",") + b"}", found[1])


def _never_sealed(data: bytes) -> Sealed:
    try:
        if data:
            msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError):
        raise StoreDamaged("a row is not what was written") from None
    return Sealed(data, b"")


# Sessions


def memory_of(data: bytes, name: str, compaction: int, compactions: int) -> bytes:
    """What a session remembers, as it is stored."""
    return sealed(data, _session(name, compaction, compactions))


def remembered(data: bytes, name: str, compaction: int, compactions: int) -> bytes:
    """The same without its seal; raises unless it is of this session and this compaction."""
    memory = unsealed(data)
    memory.require(0, _session(name, compaction, compactions), f"the row of session {name}")
    return b"" if memory.plain == b"{}" else memory.plain


def _session(name: str, compaction: int, compactions: int) -> bytes:
    return f"{name}\n{compaction}\n{compactions}".encode("utf-8", "surrogatepass")


# Compactions


def seal(tx: Tx, session: int, seq: int) -> None:
    """Seals a compaction as it stands in its rows."""
    row, pieces, handles = _rows(tx, session, seq)
    state = sealed(unsealed(blob(row[9])).plain, _row(row), _pieces(pieces), _handles(handles))
    tx.run("set_state", session=session, seq=seq, state=state)


def require_row(row: Row) -> Sealed:
    """The state of a compaction; raises unless its row is what was sealed."""
    state = unsealed(blob(row[9]))
    state.require(ROW, _row(row), f"compaction {row[0]}")
    return state


def require_view(row: Row, pieces: Iterable[Row]) -> None:
    """Raises unless these are the row and the pieces (place, first, count, digest) of one compaction."""
    require_row(row).require(PIECES, _pieces(pieces), f"the view of compaction {row[0]}")


def require_handles(row: Row, handles: Iterable[Row]) -> None:
    """The same for its handles (handle, place, first, count, digest)."""
    require_row(row).require(HANDLES, _handles(handles), f"what the handles of compaction {row[0]} stand for")


def require(tx: Tx, session: int, seq: int) -> None:
    """Raises unless a compaction is as it was sealed."""
    row, pieces, handles = _rows(tx, session, seq)
    require_view(row, pieces)
    require_handles(row, handles)


def _rows(tx: Tx, session: int, seq: int) -> tuple[Row, list[Row], list[Row]]:
    at = {"session": session, "seq": seq}
    row = tx.one("compaction", **at)
    if row is None:
        raise StoreDamaged(f"compaction {seq} is not there")
    return row, tx.all("seal_of_pieces", **at), tx.all("seal_of_handles", **at)


def _row(row: Row) -> bytes:
    seq, base, upto, at, fence, noted, undone, _, receipt, _ = row
    return repr((seq, base, upto, at, fence, bool(noted), undone is None)).encode() + blob(receipt)


def _pieces(rows: Iterable[Row]) -> bytes:
    return repr(list(map(_piece, rows))).encode()


def _handles(rows: Iterable[Row]) -> bytes:
    return repr([(handle, *_piece(piece)) for handle, *piece in rows]).encode("utf-8", "surrogatepass")


def _piece(piece: Iterable[Any]) -> Row:
    place, first, count, digest = piece
    return place, first, count, None if digest is None else blob(digest)
