"""Store queries of the pages: lists, sessions, compactions, originals, search hits. Synchronous, like the store.

A compaction is shown as two rows of segments, before and after. Messages that stayed are counted; the fold gets the
remainder of the receipt's total, so that a long fold need not be read.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from midfold.compaction.archive import PREFIX, source_bytes
from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import Receipt
from midfold.compaction.tracking import Trail, follow, latest_checks
from midfold.config import Config
from midfold.errors import NotStored
from midfold.pages import api_types as api
from midfold.pages.api_types import Fate, Segment, SegmentName
from midfold.pages.formatting import client_of, key_of, owner_of
from midfold.pages.messages import (
    MessageFates,
    MessageFormatter,
    MessagePlace,
    MessageReader,
    MessageRuns,
    StoredMessage,
    compare_handoffs,
    with_calls,
    with_neighbours,
)
from midfold.pages.savings import sum_cache_use, sum_causes, sum_savings
from midfold.pages.statistics import LEVELS, SessionStatistics, Statistics
from midfold.recall import Filters, search
from midfold.session.sessions import Sessions
from midfold.store.protocol import CompactionRecord, SessionInfo, ViewPiece
from midfold.store.stored_search import StoredSource

Sees = Callable[[str], bool]
"""Predicate: whether the caller may see the session of this name."""
AT_A_GLANCE = 100
"""Maximum number of most recently used sessions on the overview."""
SESSIONS_PER_PAGE = 50
LINES_PER_PAGE = 50
HITS = 30
DAYS = 14
MAX_FOLLOWED = 400
"""Maximum messages read to continue the trail of the newest fold."""
FIRST_BATCH = 400
CHARACTERS_PER_TOKEN = 4
PlacedFate = tuple[int, MessagePlace, Fate]
SizedSegment = tuple[SegmentName, int]
ORIGINALS_PER_PAGE = 20
AFTER = "after"
"""Value of `show` for the messages after the compaction."""
FATES: tuple[Fate, ...] = ("folded", "changed", "kept")
MAX_CHOICES = 10_000
"""Maximum number of most recently used sessions for filter choices and previous/next links."""
MAX_TITLED = 400
"""Maximum number of most recently used sessions whose titles are searched."""
MAX_SORTED = 500
"""Maximum number of most recently used sessions that are sorted."""
SORTS: dict[str, Callable[[api.SessionFacts], Any]] = {
    "used": lambda facts: facts.updated,
    "title": lambda facts: (facts.title or facts.name).casefold(),
    "model": lambda facts: facts.model or "",
    "client": lambda facts: facts.client,
    "owner": lambda facts: facts.owner,
    "full": lambda facts: facts.size.share,
    "messages": lambda facts: facts.messages,
    "cached": lambda facts: -1.0 if facts.cache.hit_rate is None else facts.cache.hit_rate,
    "folds": lambda facts: facts.compactions,
    "not_sent": lambda facts: facts.saved.tokens_not_sent,
    "saved": lambda facts: float("-inf") if facts.saved.net is None else facts.saved.net,
}
WORDS = ("title", "model", "client", "owner")
"""Columns sorted in ascending order by default; all others in descending order."""


class SessionFilter(NamedTuple):
    """Filter of sessions: part of the name or title, and exact model, client and owner; empty means any."""

    query: str = ""
    model: str = ""
    client: str = ""
    owner: str = ""

    def takes(self, name: str, model: str | None, sent_by: str) -> bool:
        """Return whether a session matches, apart from `query`."""
        return (
            self.model in ("", model)
            and self.client in ("", client_of(name, sent_by) if self.client else "")
            and self.owner in ("", owner_of(name) if self.owner else "")
        )


ALL = SessionFilter()


class Lookup:
    """Queries over one store."""

    def __init__(
        self, sessions: Sessions, config: Config | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.sessions, self.store = sessions, sessions.store
        self.config = config or sessions.config or Config()
        self.clock = clock
        self.statistics = Statistics(sessions, self.config, clock)

    def _info(self, name: str, sees: Sees) -> SessionInfo:
        """Return a session; raise the same error if it does not exist and if the caller may not see it."""
        info = self.store.info(name) if sees(name) else None
        if info is None:
            raise NotStored("no such session")
        return info

    def _infos(self, sees: Sees, wanted: int, choice: SessionFilter = ALL) -> list[SessionInfo]:
        """Return the most recently used matching sessions that the caller may see."""
        limit = max(wanted, FIRST_BATCH if any(choice) else wanted)
        clients = self.statistics.sketches.clients() if choice.client else {}
        while True:
            rows = self.store.sessions(limit)
            seen = [
                info
                for info in rows
                if sees(info.name) and choice.takes(info.name, info.model, clients.get(info.id, ""))
            ]
            found = [info for place, info in enumerate(seen) if self._has_words(info, place, choice.query.casefold())]
            if len(found) >= wanted or len(rows) < limit:
                return found[:wanted]
            limit *= 4

    def _has_words(self, info: SessionInfo, place: int, words: str) -> bool:
        """Return whether the words are in the name, or in the title of one of the most recently used sessions."""
        if words in info.name.casefold():
            return True
        return place < MAX_TITLED and words in self.statistics.title(info).casefold()

    def _names(self, sees: Sees) -> list[tuple[str, str | None, str]]:
        """Return name, model and client of the sessions that the caller may see, most recently used first."""
        rows = self.store.database.rows("session_models", most=MAX_CHOICES)
        return [(name, model, client_of(name, sent_by)) for name, model, sent_by in rows if sees(name)]

    # All sessions

    def overview(self, sees: Sees) -> api.Overview:
        infos = self._infos(sees, AT_A_GLANCE + 1)
        known = self.statistics.of(infos[:AT_A_GLANCE])
        facts = tuple(item.facts for item in known)
        found = [finding for item in facts for finding in item.findings]
        return api.Overview(
            sessions=facts,
            more=len(infos) > AT_A_GLANCE,
            saved=sum_savings(item.saved for item in facts),
            cache=sum_cache_use(item.cache for item in facts),
            findings=tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level))),
            days=_days(known, self.clock()),
        )

    def sessions_like(
        self, choice: SessionFilter, page: int, sees: Sees, *, sort: str = "used", order: str = ""
    ) -> api.SessionList:
        first, stop = page * SESSIONS_PER_PAGE, (page + 1) * SESSIONS_PER_PAGE
        up = order == "up" if order else sort in WORDS
        is_plain = sort == "used" and not up
        infos = self._infos(sees, (stop if is_plain else MAX_SORTED) + 1, choice)
        if is_plain:
            shown = [item.facts for item in self.statistics.of(infos[first:stop])]
        else:
            known = [item.facts for item in self.statistics.of(infos[:MAX_SORTED])]
            shown = sorted(known, key=SORTS[sort], reverse=not up)[first:stop]
        names = self._names(sees)
        return api.SessionList(
            query=choice.query,
            model=choice.model,
            client=choice.client,
            owner=choice.owner,
            sort=sort,
            order="up" if up else "down",
            models=_distinct(model or "" for _, model, _ in names),
            clients=_distinct(client for _, _, client in names),
            owners=_distinct(owner_of(name) for name, _, _ in names),
            sorted_only=0 if is_plain or len(infos) <= MAX_SORTED else MAX_SORTED,
            sessions=tuple(shown),
            page=page,
            more=min(len(infos), len(infos) if is_plain else MAX_SORTED) > stop,
        )

    def cache(self, sees: Sees) -> api.CachePage:
        known = [item.facts for item in self.statistics.of(self._infos(sees, AT_A_GLANCE))]
        sessions = tuple(
            api.CacheSession(
                key=one.key, name=one.name, title=one.title, model=one.model, use=one.cache, causes=one.causes
            )
            for one in known
            if one.cache.requests
        )
        return api.CachePage(
            sessions=sessions,
            total=sum_cache_use(item.use for item in sessions),
            causes=sum_causes(item.causes for item in sessions),
        )

    def search(self, query: str, sees: Sees, *, session: str = "", role: str = "") -> api.SearchPage:
        if session:
            self._info(session, sees)
        past = StoredSource(self.store, session or None, role=role or None, sees=sees)
        hits = search(past, query, self.sessions.redactor, HITS + 1, Filters(role=role))
        titles = {name: self._title(name) for name in {hit.session for hit in hits[:HITS]}}
        facts = tuple(
            api.HitFacts(
                session=hit.session,
                key=key_of(hit.session),
                title=titles[hit.session],
                position=hit.position,
                role=hit.role,
                at=hit.at,
                handle=hit.handle,
                text=hit.text,
            )
            for hit in hits[:HITS]
        )
        nearest = bool(hits) and not any(hit.has_every_word for hit in hits)
        return api.SearchPage(
            query=query, session=session, role=role, hits=facts, more=len(hits) > HITS, nearest=nearest
        )

    def _title(self, name: str) -> str:
        info = self.store.info(name)
        return "" if info is None else self.statistics.title(info)

    # One session

    def session(self, name: str, start: int | None, sees: Sees) -> api.SessionPage:
        info = self._info(name, sees)
        known, reader = self.statistics.one(info), MessageReader(self.store, info)
        view = reader.now(known.records)
        use = self.statistics.sizes.usage(reader, known.records, known.facts.size)
        lease = self.store.database.row("lease", session=info.name)
        names = [other for other, _, _ in self._names(sees)]
        place = names.index(name) if name in names else None
        return api.SessionPage(
            session=known.facts,
            view_messages=len(view) + known.facts.messages - info.count,
            compacting=lease is not None and lease[2] > 0,
            kinds=use.kinds,
            context=use.context,
            sampled=use.sampled,
            turns=_turn_facts(known),
            compactions=tuple(_compaction_facts(record, info) for record in known.records),
            made=self._artifacts(reader, known.records),
            lines=self._history(reader, MessageFates(view), start),
            newer=names[place - 1] if place else None,
            older=names[place + 1] if place is not None and place + 1 < len(names) else None,
        )

    def _artifacts(self, reader: MessageReader, records: Iterable[CompactionRecord]) -> api.Artifacts:
        """Continue the trail of the newest active compaction through the newest messages."""
        count, upto, trail = reader.info.count, 0, Trail()
        for record in records:
            known = record.receipt.trail
            if known is not None and record.undone is None and record.seq <= reader.info.compaction:
                upto, trail = record.upto, known
        start = max(upto, count - MAX_FOLLOWED)
        found = reader.read(reader.history().between(start, count))
        fresh = tuple(item.message for item in found)
        before = msgspec.structs.replace(trail, messages=start, ahead=0)
        made = follow(before, fresh, self.sessions.redactor)
        return api.Artifacts(trail=made, checks=tuple(latest_checks(made)), skipped=start - upto)

    def messages(self, name: str, start: int | None, sees: Sees) -> api.MessageList:
        info = self._info(name, sees)
        reader, records = MessageReader(self.store, info), self.store.records(name) if info.compactions else []
        return self._history(reader, MessageFates(reader.now(records)), start)

    def _history(self, reader: MessageReader, fates: MessageFates, start: int | None) -> api.MessageList:
        """Return a page of the history; the newest messages if `start` is None."""
        total = reader.info.count
        newest = max(total - 1, 0) // LINES_PER_PAGE * LINES_PER_PAGE
        start = newest if start is None else start
        chosen = reader.history().between(start, start + LINES_PER_PAGE)
        return self._lines_at(reader, list(enumerate(chosen, start)), fates, start, total)

    def _lines_at(
        self,
        reader: MessageReader,
        numbered: list[tuple[int, MessagePlace]],
        fates: MessageFates,
        start: int,
        total: int,
    ) -> api.MessageList:
        formatter = self._formatter(reader.info)
        places = with_neighbours(place for _, place in numbered)
        found = with_calls(reader.read([place for place, _ in places]))
        indexes = iter([index for index, _ in numbered])
        return api.MessageList(
            session=reader.info.name,
            start=start,
            total=total,
            lines=tuple(
                formatter.line(next(indexes), item, fates.of(place), calls)
                for (place, is_shown), (item, calls) in zip(places, found, strict=True)
                if is_shown
            ),
        )

    def _formatter(self, info: SessionInfo) -> MessageFormatter:
        return MessageFormatter(self.statistics.sizes.meter(info.model), self.sessions.redactor)

    def turns(self, name: str, sees: Sees) -> api.TurnList:
        return api.TurnList(session=name, turns=_turn_facts(self.statistics.one(self._info(name, sees))))

    def compactions(self, name: str, sees: Sees) -> api.CompactionList:
        info = self._info(name, sees)
        made = tuple(_compaction_facts(record, info) for record in self.store.records(name))
        return api.CompactionList(session=name, compactions=made)

    # One compaction, and the originals behind it

    def _record(self, name: str, seq: int, sees: Sees) -> tuple[SessionInfo, CompactionRecord, list[CompactionRecord]]:
        info = self._info(name, sees)
        records = self.store.records(name)
        record = next((record for record in records if record.seq == seq), None)
        if record is None:
            raise NotStored(f"the session has no compaction {seq}")
        return info, record, records

    def receipt(self, name: str, seq: int, sees: Sees) -> api.ReceiptPage:
        info, record, records = self._record(name, seq, sees)
        before, after = _neighbours(seq, records)
        return api.ReceiptPage(
            session=name,
            title=self.statistics.title(info),
            compaction=_compaction_facts(record, info),
            previous=before,
            next=after,
            receipt=record.receipt,
            checks=tuple(latest_checks(record.receipt.trail)) if record.receipt.trail else (),
        )

    def compaction(self, name: str, seq: int, start: int, shown: str, sees: Sees) -> api.CompactionPage:
        info, record, records = self._record(name, seq, sees)
        reader = MessageReader(self.store, info)
        before, after = reader.before(record, records), reader.after(record)
        fates = MessageFates(after)
        moved = [(index, place, fates.of(place)) for index, place in enumerate(before)]
        chosen = [(index, place) for index, place, fate in moved if not shown or fate == shown]
        if shown == AFTER:
            chosen, fates = list(enumerate(after)), MessageFates.of_view(after)
        counts = Counter(fate for _, _, fate in moved)
        view = reader.read(after)
        segments = _segments_before_and_after(record, moved, view, self._formatter(info))
        receipt, (previous, following) = record.receipt, _neighbours(seq, records)
        handoff = _handoff(view, self.sessions.redactor, receipt.fold)
        return api.CompactionPage(
            session=name,
            title=self.statistics.title(info),
            compaction=_compaction_facts(record, info),
            previous=previous,
            next=following,
            before=segments[0],
            after=segments[1],
            counts={fate: counts[fate] for fate in FATES},
            handoff=handoff,
            compared=self._comparison(handoff, reader.read(_own_places(before)), records) if handoff else None,
            fold=receipt.fold,
            changes=msgspec.convert(receipt.digests, tuple[api.Change, ...], from_attributes=True),
            shown=shown,
            lines=self._lines_at(reader, chosen[start : start + LINES_PER_PAGE], fates, start, len(chosen)),
        )

    def _comparison(
        self, handoff: str, written: Iterable[StoredMessage], records: Sequence[CompactionRecord]
    ) -> api.HandoffComparison | None:
        """Compare a handoff with the previous one, if there is one."""
        folds = [ours for item in written if (ours := recognise(item.message)) is not None and ours.kind == "fold"]
        if not folds:
            return None
        old = folds[-1]
        seq = next((record.seq for record in records if record.receipt.fold == f"{PREFIX}{old.fold}"), 0)
        return compare_handoffs(self.sessions.redactor(old.body), handoff, seq)

    def message(self, name: str, position: int, sees: Sees) -> api.OriginalsPage:
        info = self._info(name, sees)
        if not 0 <= position < info.count:
            raise NotStored(f"the session has no message {position}")
        reader = MessageReader(self.store, info)
        first = max(position - ORIGINALS_PER_PAGE, 0)
        found = reader.read(reader.history().between(first, position + 1))
        *_, (last, calls) = with_calls(found)
        shown = self._formatter(info).original(last, calls)
        return api.OriginalsPage(
            session=name,
            title=self.statistics.title(info),
            handle=shown.handle,
            start=0,
            total=1,
            messages=(shown,),
            next=position + 1 if position + 1 < info.count else None,
        )

    def unfold(self, name: str, handle: str, start: int, sees: Sees) -> api.OriginalsPage:
        """Return the originals behind a handle of this session."""
        info = self._info(name, sees)
        reader, stop = MessageReader(self.store, info), start + ORIGINALS_PER_PAGE
        places = self._places(info, handle)
        if places is not None:
            before = reader.read(places.between(max(start - ORIGINALS_PER_PAGE, 0), start))
            page, total = reader.read(places.between(start, stop)), len(places)
        else:
            messages = self.store.unfold(name, handle)
            found = [StoredMessage(MessagePlace(None), message, message.role, None) for message in messages]
            before, page, total = found[:start], found[start:stop], len(found)
        formatter = self._formatter(info)
        shown = [formatter.original(item, calls) for item, calls in with_calls([*before, *page])][len(before) :]
        title = self.statistics.title(info)
        return api.OriginalsPage(
            session=name, title=title, handle=handle, start=start, total=total, messages=tuple(shown)
        )

    def _places(self, info: SessionInfo, handle: str) -> MessageRuns | None:
        """Return the places of a receipt's originals, so that a long fold is read one page at a time."""
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
        return MessageRuns(pieces) if pieces else None

    def raw(self, name: str, handle: str, sees: Sees) -> bytes:
        """Return the originals as a JSON array, byte for byte and not redacted."""
        self._info(name, sees)
        return b"[" + b",".join(source_bytes(message) for message in self.store.unfold(name, handle)) + b"]"


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}, key=str.casefold))


def _neighbours(seq: int, records: Iterable[CompactionRecord]) -> tuple[int | None, int | None]:
    """Return the numbers of the previous and next compaction."""
    numbers = [record.seq for record in records]
    before, after = [number for number in numbers if number < seq], [number for number in numbers if number > seq]
    return max(before, default=None), min(after, default=None)


def _own_places(view: MessageRuns) -> list[MessagePlace]:
    """Return the places of the messages that midfold wrote."""
    return [MessagePlace(None, piece.body) for piece in view.pieces if piece.first is None]


def _turn_facts(known: SessionStatistics) -> tuple[api.TurnFacts, ...]:
    return tuple(
        api.TurnFacts(
            at=turn.at,
            messages=turn.count,
            compaction=turn.compaction,
            model=turn.model,
            prompt_tokens=turn.usage.prompt_tokens,
            completion_tokens=turn.usage.completion_tokens,
            cache_read_tokens=turn.usage.cache_read_tokens,
            cache_write_tokens=turn.usage.cache_write_tokens,
            without_folds=without,
        )
        for turn, without in zip(known.turns, known.without, strict=True)
    )


def _compaction_facts(record: CompactionRecord, info: SessionInfo) -> api.CompactionFacts:
    receipt = record.receipt
    return api.CompactionFacts(
        seq=record.seq,
        base=record.base,
        at=record.at,
        upto=record.upto,
        undone=record.undone,
        child=record.child,
        in_force=record.seq == info.compaction,
        status=receipt.status,
        reason=receipt.reason,
        old_messages=receipt.old_messages,
        new_messages=receipt.new_messages,
        old_tokens=receipt.old_tokens,
        new_tokens=receipt.new_tokens,
        threshold=receipt.threshold_tokens,
        summary=receipt.summary.source,
        failure=receipt.summary.failure,
    )


def _days(known: Iterable[SessionStatistics], now: float) -> tuple[api.Day, ...]:
    """Return the last two weeks with requests, day by day (UTC), including days without requests."""
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in known:
        for turn, without in zip(item.turns, item.without, strict=True):
            day = sums[turn.at // 86_400_000]
            day[0] += 1
            day[1] += turn.usage.prompt_tokens
            day[2] += without - turn.usage.prompt_tokens
    if not sums:
        return ()
    last = max(sums)
    return tuple(
        api.Day(
            day=datetime.fromtimestamp(number * 86_400, UTC).date().isoformat(),
            requests=sums[number][0],
            tokens_sent=sums[number][1],
            tokens_not_sent=max(sums[number][2], 0),
        )
        for number in range(max(last - DAYS + 1, min(sums)), last + 1)
    )


def _segments_before_and_after(
    record: CompactionRecord, moved: Sequence[PlacedFate], view: Sequence[StoredMessage], formatter: MessageFormatter
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the segments before and after; `moved` has every earlier message with its state, `view` the later
    messages.
    """
    receipt = record.receipt
    counted = [formatter.tokens(item.message) for item in view]
    said = receipt.new_tokens - receipt.fixed_tokens
    scale = said / sum(counted) if sum(counted) and said > 0 else 1.0
    sizes = [round(scale * tokens) for tokens in counted]
    names = _segment_names(moved)
    by_place = {item.place.position: size for item, size in zip(view, sizes, strict=True)}
    stayed = sum(by_place.get(place.position, 0) for _, place, fate in moved if fate != "folded")
    longer = _longer(receipt, max(receipt.old_tokens - receipt.fixed_tokens - stayed, 0), folds="folded" in names)
    old = [
        (names[index], 0 if fate == "folded" else by_place.get(place.position, 0) + longer[index])
        for index, place, fate in moved
    ]
    where = {place.position: names[index] for index, place, _ in moved}
    new = [(_segment_name(item, where, receipt), size) for item, size in zip(view, sizes, strict=True)]
    left = receipt.old_tokens - receipt.fixed_tokens - sum(size for _, size in old)
    return _segments(old, receipt.fixed_tokens, max(left, 0)), _segments(new, receipt.fixed_tokens, 0)


def _segment_names(moved: Sequence[PlacedFate]) -> list[SegmentName]:
    """Name segments: head before the first folded message, tail after the last, pinned in between."""
    folded = [index for index, _, fate in moved if fate == "folded"]
    if not folded:
        return ["kept"] * len(moved)
    first, last = folded[0], folded[-1]
    return [
        "folded" if fate == "folded" else "head" if index < first else "tail" if index > last else "pinned"
        for index, _, fate in moved
    ]


def _segment_name(item: StoredMessage, where: dict[int | None, SegmentName], receipt: Receipt) -> SegmentName:
    if item.place.position is not None:
        return where.get(item.place.position, "kept")
    ours = recognise(item.message)
    return "handoff" if ours is not None and receipt.fold.endswith(ours.fold) else "kept"


def _longer(receipt: Receipt, gone: int, *, folds: bool) -> defaultdict[int, int]:
    """Return by how many tokens each shortened message was longer, by its index in the old view.

    `gone` tokens were removed in total; if nothing was folded, all of them from these messages.
    """
    more: defaultdict[int, int] = defaultdict(int)
    for digest in receipt.digests:
        more[digest.message] += max(digest.characters_before - digest.characters_after, 0)
    whole = sum(more.values())
    tokens = min(whole // CHARACTERS_PER_TOKEN, gone) if folds else gone
    return defaultdict(int, {index: round(tokens * size / whole) for index, size in more.items() if size})


def _segments(sized: Iterable[SizedSegment], fixed: int, folded: int) -> tuple[Segment, ...]:
    """Merge neighbours into segments; distribute the `folded` tokens by message count."""
    groups = [(what, [size for _, size in group]) for what, group in groupby(sized, key=lambda item: item[0])]
    messages = sum(len(sizes) for what, sizes in groups if what == "folded")
    made = [Segment(what="fixed", messages=0, tokens=fixed)] if fixed else []
    for what, sizes in groups:
        tokens = round(folded * len(sizes) / messages) if what == "folded" and messages else sum(sizes)
        made.append(Segment(what=what, messages=len(sizes), tokens=tokens))
    return tuple(made)


def _handoff(view: list[StoredMessage], redact: Callable[[str], str], fold: str) -> str:
    for item in view:
        ours = recognise(item.message)
        if ours is not None and ours.kind == "fold" and fold == f"{PREFIX}{ours.fold}":
            return redact(ours.body)
    return ""
