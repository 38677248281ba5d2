"""Compactions by the messages they replace: for clients that send their whole history again and again.

Rules of this file:
1. A compaction leaves a view. Its end is a run of messages as they were; what comes before that run is what the
   compaction replaces, and a checkpoint is that much: so many messages of the history, and what stands for them.
2. It is found by the chain of hashes after the last message it replaces, in a session or any branch of it. Whatever
   comes after those messages, the checkpoint fits.
3. Looking is reading: nothing is written, nothing is locked.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from midfold.store import seals
from midfold.store.bodies import blob, inflated
from midfold.store.database import Database
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript


class Stand(msgspec.Struct, frozen=True):
    """What stands at one place: `count` messages of the history from `first` on, or the bytes of one that is none."""

    first: int
    count: int
    data: bytes | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """The first `count` messages of a history are replaced by `stands`."""

    session: str
    seq: int
    count: int
    chain: bytes
    noted: bool
    """Whether the system prompt has its note."""
    stands: tuple[Stand, ...]

    def applied(self, messages: Transcript, dialect: type[Dialect]) -> Transcript:
        """The history as the model sees it."""
        view: list[Message] = []
        for stand in self.stands:
            if stand.data is None:
                view += messages[stand.first : stand.first + stand.count]
            else:
                view.append(Message.over(Raw(stand.data), dialect.read))
        return (*view, *messages[self.count :])


def longest(database: Database, name: str, chains: Mapping[bytes, int]) -> Checkpoint | None:
    """The checkpoint of a session or its branches that replaces most of a history; `chains` -> number of messages."""
    fitting = [row for row in database.rows("checkpoints", name=name) if chains.get(blob(row[5])) == row[4]]
    if not fitting:
        return None
    session, found, seq, noted, count, chain = max(fitting, key=lambda row: (row[4], row[2]))
    row = database.row("compaction", session=session, seq=seq)
    rows = database.rows("checkpoint_pieces", session=session, seq=seq)
    if row is None:
        return None
    seals.require_view(row, (piece[:4] for piece in rows))
    stands = tuple(
        Stand(first or 0, number, None if body[0] is None else inflated(*body))
        for _, first, number, *body in rows
        if body[0] is not None or first < count
    )
    return Checkpoint(found, seq, count, blob(chain), bool(noted), stands)
