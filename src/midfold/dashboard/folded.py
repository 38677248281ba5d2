"""Reads one compaction for pages: before and after, its receipt, and the originals behind its handles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from midfold.dashboard.access import Sees
from midfold.dashboard.facts import Change, CompactionPage, Fate, Originals, ReceiptPage
from midfold.dashboard.places import Fates, Found, Place, Places, Shelf
from midfold.dashboard.reader import LINES_PER_PAGE, Reader, compaction_facts
from midfold.dashboard.strips import strips_of
from midfold.errors import NotStored
from midfold.fold.archive import PREFIX, source_bytes
from midfold.fold.handoff import recognise
from midfold.store.protocol import CompactionRecord, SessionInfo, ViewPiece
from midfold.transcript.message import ToolCall

ORIGINALS_PER_PAGE = 20
AFTER = "after"
"""Instead of a fate: the messages that were there afterwards."""
FATES: tuple[Fate, ...] = ("folded", "changed", "kept")


class Folds:
    """The compactions of the sessions of a store."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.store = reader, reader.store

    def _record(self, name: str, seq: int, sees: Sees) -> tuple[SessionInfo, CompactionRecord, list[CompactionRecord]]:
        info = self.reader.must(name, sees)
        records = self.store.records(name)
        record = next((record for record in records if record.seq == seq), None)
        if record is None:
            raise NotStored(f"the session has no compaction {seq}")
        return info, record, records

    def receipt(self, name: str, seq: int, sees: Sees) -> ReceiptPage:
        info, record, _ = self._record(name, seq, sees)
        return ReceiptPage(session=name, compaction=compaction_facts(record, info), receipt=record.receipt)

    def compaction(self, name: str, seq: int, start: int, shown: str, sees: Sees) -> CompactionPage:
        info, record, records = self._record(name, seq, sees)
        shelf = Shelf(self.store, info)
        before, after = shelf.before(record, records), shelf.after(record)
        fates = after.fates()
        told = [(index, place, fates.of(place)) for index, place in enumerate(before)]
        chosen = [(index, place) for index, place, fate in told if not shown or fate == shown]
        if shown == AFTER:
            chosen, fates = list(enumerate(after)), Fates.standing(after.pieces)
        counts = Counter(fate for _, _, fate in told)
        view = shelf.read(after)
        strips = strips_of(record, told, view, self.reader.show(info))
        receipt, numbers = record.receipt, [one.seq for one in records]
        return CompactionPage(
            session=name,
            compaction=compaction_facts(record, info),
            previous=max((number for number in numbers if number < seq), default=None),
            next=min((number for number in numbers if number > seq), default=None),
            before=strips.before,
            after=strips.after,
            counts={fate: counts[fate] for fate in FATES},
            handoff=_handoff(view, self.reader.sessions.redactor, receipt.fold),
            fold=receipt.fold,
            changes=tuple(
                Change(
                    kind=digest.kind,
                    tool=digest.tool,
                    characters_before=digest.characters_before,
                    characters_after=digest.characters_after,
                    handle=digest.handle,
                )
                for digest in receipt.digests
            ),
            shown=shown,
            lines=self.reader.lines_of(shelf, chosen[start : start + LINES_PER_PAGE], fates, start, len(chosen)),
        )

    # Originals

    def message(self, name: str, position: int, sees: Sees) -> Originals:
        info = self.reader.must(name, sees)
        if not 0 <= position < info.count:
            raise NotStored(f"the session has no message {position}")
        shelf = Shelf(self.store, info)
        first = max(position - ORIGINALS_PER_PAGE, 0)
        found = shelf.read(shelf.history().between(first, position + 1))
        shown = self.reader.show(info).original(found[-1], _names(found))
        return Originals(
            session=name,
            handle=shown.handle,
            start=0,
            total=1,
            messages=(shown,),
            next=position + 1 if position + 1 < info.count else None,
        )

    def unfold(self, name: str, handle: str, start: int, sees: Sees) -> Originals:
        """The originals behind a handle of this session."""
        info = self.reader.must(name, sees)
        shelf, stop = Shelf(self.store, info), start + ORIGINALS_PER_PAGE
        places = self._places(info, handle)
        if places is not None:
            before = shelf.read(places.between(max(start - ORIGINALS_PER_PAGE, 0), start))
            page, total = shelf.read(places.between(start, stop)), len(places)
        else:
            messages = self.store.unfold(name, handle)
            found = [Found(Place(None), message, message.role, None) for message in messages]
            before, page, total = found[:start], found[start:stop], len(found)
        show, names = self.reader.show(info), _names([*before, *page])
        shown = tuple(show.original(item, names) for item in page)
        return Originals(session=name, handle=handle, start=start, total=total, messages=shown)

    def _places(self, info: SessionInfo, handle: str) -> Places | None:
        """Where the originals of a receipt's handle are, so that a long fold is read by the page."""
        records = self.store.records(info.name) if info.compactions else []
        seq = max((record.seq for record in records if handle in record.receipt.handles), default=None)
        if seq is None:
            return None
        rows = self.store.database.rows("handles", session=info.id, seq=seq)
        pieces = [
            ViewPiece(first, count, None if first is not None else body)
            for one, _, _, first, count, body in rows
            if one == handle
        ]
        return Places(pieces) if pieces else None

    def raw(self, name: str, handle: str, sees: Sees) -> bytes:
        """The same as a JSON array, byte for byte and not redacted."""
        self.reader.must(name, sees)
        return b"[" + b",".join(source_bytes(message) for message in self.store.unfold(name, handle)) + b"]"


def _names(found: list[Found]) -> dict[str, str]:
    return {part.id: part.name for item in found for part in item.message.parts if isinstance(part, ToolCall)}


def _handoff(view: list[Found], redact: Callable[[str], str], fold: str) -> str:
    for item in view:
        ours = recognise(item.message)
        if ours is not None and ours.kind == "fold" and fold == f"{PREFIX}{ours.fold}":
            return redact(ours.body)
    return ""
