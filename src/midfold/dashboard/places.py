"""Where the messages of a view are, without reading them: a long conversation is looked at a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from midfold.dashboard.facts import Fate
from midfold.store import SqlStore
from midfold.store.bodies import ROLES, read_body, read_linked
from midfold.store.protocol import CompactionRecord, SessionInfo, ViewPiece
from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Message


class Place(NamedTuple):
    """A message of the history, one that stands for it, or, without a position, one that midfold wrote."""

    position: int | None
    body: int | None = None


class Found(NamedTuple):
    """A message that was read."""

    place: Place
    message: Message
    role: str
    at: int | None


class Places:
    """Runs of messages, as a compaction left them."""

    def __init__(self, pieces: Iterable[ViewPiece]) -> None:
        self.pieces = [piece for piece in pieces if piece.count > 0]

    def __len__(self) -> int:
        return sum(piece.count for piece in self.pieces)

    def __iter__(self) -> Iterator[Place]:
        return iter(self.between(0, len(self)))

    def between(self, start: int, stop: int) -> list[Place]:
        """The places start..stop; costs what is asked for and the number of runs."""
        made: list[Place] = []
        begin = 0
        for piece in self.pieces:
            if begin >= stop:
                break
            low, high = max(start - begin, 0), min(stop - begin, piece.count)
            for offset in range(low, high):
                position = None if piece.first is None else piece.first + offset
                made.append(Place(position, piece.body))
            begin += piece.count
        return made

    def fates(self) -> Fates:
        return Fates(self.pieces)


class Fates:
    """What became of messages: whether a view has them, has something else in their place, or does not have them."""

    def __init__(self, pieces: Iterable[ViewPiece]) -> None:
        self.kept: set[int] = set()
        self.instead: dict[int, int] = {}
        self.written: set[int] = set()
        for piece in pieces:
            if piece.body is None and piece.first is not None:
                self.kept.update(range(piece.first, piece.first + piece.count))
            elif piece.body is not None and piece.first is not None:
                self.instead[piece.first] = piece.body
            elif piece.body is not None:
                self.written.add(piece.body)

    @classmethod
    def standing(cls, pieces: Iterable[ViewPiece]) -> Fates:
        """Of a view's own messages: in a shorter form, or as they were said."""
        made = cls(pieces)
        made.instead = dict.fromkeys(made.instead, -1)
        return made

    def of(self, place: Place) -> Fate:
        if place.position is None:
            return "kept" if place.body in self.written else "folded"
        if place.body is None:
            return "kept" if place.position in self.kept else "changed" if place.position in self.instead else "folded"
        stands = self.instead.get(place.position)
        return "folded" if stands is None else "kept" if stands == place.body else "changed"


class Shelf:
    """Reads places of one session."""

    def __init__(self, store: SqlStore, info: SessionInfo) -> None:
        self.store, self.info = store, info
        self.dialect = DIALECTS[info.dialect]

    def pieces(self, seq: int) -> list[ViewPiece]:
        rows = self.store.database.rows("pieces", session=self.info.id, seq=seq)
        return [ViewPiece(first, count, body) for _, _, first, count, body in rows]

    def now(self, records: Iterable[CompactionRecord]) -> Places:
        """What the model sees."""
        seq = self.info.compaction
        upto = next((record.upto for record in records if record.seq == seq), 0)
        return Places([*(self.pieces(seq) if seq else ()), ViewPiece(upto, self.info.count - upto)])

    def after(self, record: CompactionRecord) -> Places:
        """What the model saw right after this compaction."""
        return Places(self.pieces(record.seq))

    def before(self, record: CompactionRecord, records: Iterable[CompactionRecord]) -> Places:
        """What this compaction was made from."""
        upto = next((base.upto for base in records if base.seq == record.base), 0)
        return Places([*(self.pieces(record.base) if record.base else ()), ViewPiece(upto, record.upto - upto)])

    def history(self) -> Places:
        return Places([ViewPiece(0, self.info.count)])

    def read(self, places: Iterable[Place]) -> list[Found]:
        """The messages at these places, neighbours in one query."""
        made: list[Found] = []
        numbered = list(enumerate(places))
        for key, group in groupby(numbered, lambda item: _run(*item)):
            run = [place for _, place in group]
            made += self._bodies(run) if key is None else self._run(run)
        return made

    def _run(self, run: list[Place]) -> Iterator[Found]:
        first = run[0].position or 0
        values = {"session": self.info.id, "start": first, "stop": first + len(run), "most": len(run)}
        for position, role, at, *stored in self.store.database.rows("messages", **values):
            message = read_linked(self.dialect, *stored)
            yield Found(Place(position), message, ROLES[role], at)

    def _bodies(self, run: list[Place]) -> Iterator[Found]:
        for place in run:
            row = self.store.database.row("body", id=place.body)
            if row is not None:
                message = read_body(self.dialect, *row)
                yield Found(place, message, message.role, None)


def _run(index: int, place: Place) -> int | None:
    """The same for neighbours of the history; None for bodies."""
    return None if place.body is not None or place.position is None else place.position - index
