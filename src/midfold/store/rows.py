"""Rows as what they stand for. A row that cannot be read, or is not the one that was asked for, is damage."""

from __future__ import annotations

from typing import Any

import msgspec

from midfold.errors import StoreDamaged
from midfold.fold.receipt import Receipt
from midfold.fold.request import CompactionState
from midfold.recall import Candidate
from midfold.store import seals
from midfold.store.bodies import ROLES, blob, linked_message
from midfold.store.protocol import Record, SessionInfo, Stored
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS

_UNREADABLE = (TypeError, ValueError, LookupError, OverflowError, msgspec.MsgspecError)


def info_of(row: tuple[Any, ...], name: str | None = None) -> SessionInfo:
    """A session; of this `name`, if one was asked for."""
    *values, last = row
    try:
        info = msgspec.convert(dict(zip(SessionInfo.__struct_fields__, values, strict=True)), SessionInfo)
        memory = seals.remembered(blob(info.memory), info.name, info.compaction, info.compactions)
        dialect_of(info)
    except _UNREADABLE as error:
        raise StoreDamaged(f"the row of a session cannot be read ({type(error).__name__})") from None
    if name not in (None, info.name):
        raise StoreDamaged("another session was found than was looked for")
    if info.chain != (b"" if last is None else last):
        raise StoreDamaged(f"session {info.name} does not end with the message that was written last")
    return msgspec.structs.replace(info, memory=memory)


def record_of(row: tuple[Any, ...]) -> Record:
    values = dict(zip(Record.__struct_fields__, row, strict=True))
    try:
        values["noted"] = bool(values["noted"])
        values["receipt"] = msgspec.json.decode(blob(values["receipt"]), type=Receipt)
        values["state"] = msgspec.json.decode(seals.require_row(row).plain, type=CompactionState)
        return msgspec.convert(values, Record)
    except _UNREADABLE as error:
        raise StoreDamaged(f"the row of a compaction cannot be read ({type(error).__name__})") from None


def stored_of(row: tuple[Any, ...], position: int, dialect: type[Dialect]) -> Stored:
    """The message that is expected at a position."""
    found, role, at, *stored = row
    if found != position:
        raise StoreDamaged(f"the message at position {position} is not there")
    return Stored(position, _role(role), at, linked_message(dialect, *stored))


def candidate_of(row: tuple[Any, ...]) -> Candidate:
    session, position, role, at, dialect, *stored = row
    if dialect not in DIALECTS:
        raise StoreDamaged("the row of a session cannot be read (its dialect)")
    message = linked_message(DIALECTS[dialect], *stored)
    return Candidate(session, position, _role(role), at, bytes(stored[2]), message)


def dialect_of(info: SessionInfo) -> type[Dialect]:
    return DIALECTS[info.dialect]


def _role(number: Any) -> str:
    if not isinstance(number, int) or not 0 <= number < len(ROLES):
        raise StoreDamaged("the row of a message cannot be read (its role)")
    return ROLES[number]
