"""Reads a store for pages: lists, one session, what was found. Synchronous, as the store is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial

from midfold.config import Config
from midfold.dashboard.access import Sees
from midfold.dashboard.causes import together
from midfold.dashboard.facts import (
    CachePage,
    CacheSession,
    CompactionFacts,
    CompactionList,
    Day,
    Finding,
    HitFacts,
    Lines,
    Overview,
    Search,
    SessionList,
    SessionPage,
    TurnFacts,
    TurnList,
)
from midfold.dashboard.glance import Glances, Known
from midfold.dashboard.health import LEVELS
from midfold.dashboard.links import key_of
from midfold.dashboard.places import Fates, Place, Places, Shelf
from midfold.dashboard.savings import cache_together, saved_together
from midfold.dashboard.shown import Show
from midfold.errors import NotStored
from midfold.recall import search
from midfold.service import Sessions
from midfold.store.protocol import CompactionRecord, SessionInfo

AT_A_GLANCE = 100
"""Sessions on the overview, those used last."""
SESSIONS_PER_PAGE = 50
LINES_PER_PAGE = 50
HITS = 30
DAYS = 14
FIRST_BATCH = 400


class Reader:
    """What one store has to show."""

    def __init__(
        self, sessions: Sessions, config: Config | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.sessions, self.store = sessions, sessions.store
        self.config = config or sessions.config or Config()
        self.clock = clock
        self.glances = Glances(sessions, self.config, clock)

    def must(self, name: str, sees: Sees) -> SessionInfo:
        """One and the same error for what is not there and for what may not be seen."""
        info = self.store.info(name) if sees(name) else None
        if info is None:
            raise NotStored("there is no such session")
        return info

    def _infos(self, sees: Sees, wanted: int, query: str = "") -> list[SessionInfo]:
        """The sessions used last that may be seen; reads no more of the others than it has to."""
        needle, limit = query.casefold(), max(wanted, FIRST_BATCH if query else wanted)
        while True:
            rows = self.store.sessions(limit)
            found = [info for info in rows if sees(info.name) and needle in info.name.casefold()]
            if len(found) >= wanted or len(rows) < limit:
                return found[:wanted]
            limit *= 4

    # All sessions

    def overview(self, sees: Sees) -> Overview:
        infos = self._infos(sees, AT_A_GLANCE + 1)
        known = self.glances.of(infos[:AT_A_GLANCE])
        facts = tuple(item.facts for item in known)
        found = [finding for item in facts for finding in item.findings]
        return Overview(
            sessions=facts,
            more=len(infos) > AT_A_GLANCE,
            saved=saved_together(item.saved for item in facts),
            cache=cache_together(item.cache for item in facts),
            findings=tuple(sorted(found, key=_by_level)),
            days=_days(known, self.clock()),
        )

    def sessions_like(self, query: str, page: int, sees: Sees) -> SessionList:
        first = page * SESSIONS_PER_PAGE
        infos = self._infos(sees, first + SESSIONS_PER_PAGE + 1, query)
        shown = self.glances.of(infos[first : first + SESSIONS_PER_PAGE])
        return SessionList(
            query=query,
            sessions=tuple(item.facts for item in shown),
            page=page,
            more=len(infos) > first + SESSIONS_PER_PAGE,
        )

    def cache(self, sees: Sees) -> CachePage:
        known = [item for item in self.glances.of(self._infos(sees, AT_A_GLANCE)) if item.facts.cache.requests]
        sessions = tuple(
            CacheSession(
                key=item.facts.key,
                name=item.facts.name,
                model=item.facts.model,
                use=item.facts.cache,
                causes=item.facts.causes,
            )
            for item in known
        )
        return CachePage(
            sessions=sessions,
            total=cache_together(item.use for item in sessions),
            causes=together(item.causes for item in sessions),
        )

    def search(self, query: str, sees: Sees, *, session: str = "", role: str = "") -> Search:
        if session:
            self.must(session, sees)
        find = partial(self.store.find, name=session or None, role=role or None)
        hits = search(find, query, self.sessions.redactor, HITS + 1, wanted=lambda found: sees(found.session))
        facts = tuple(
            HitFacts(
                session=hit.session,
                key=key_of(hit.session),
                position=hit.position,
                role=hit.role,
                at=hit.at,
                handle=hit.handle,
                text=hit.text,
            )
            for hit in hits[:HITS]
        )
        nearest = bool(hits) and not hits[0].has_every_word
        return Search(query=query, session=session, role=role, hits=facts, more=len(hits) > HITS, nearest=nearest)

    # One session

    def session(self, name: str, start: int | None, sees: Sees) -> SessionPage:
        info = self.must(name, sees)
        known, shelf = self.glances.one(info), Shelf(self.store, info)
        view = shelf.now(known.records)
        kinds, sampled = self.glances.gauge.kinds(shelf, known.records)
        lease = self.store.database.row("lease", session=info.name)
        return SessionPage(
            session=known.facts,
            view_messages=len(view) + known.facts.messages - info.count,
            compacting=lease is not None and lease[2] > 0,
            kinds=kinds,
            sampled=sampled,
            turns=turn_facts(known),
            compactions=tuple(compaction_facts(record, info) for record in known.records),
            lines=self.history_lines(shelf, view.fates(), start),
        )

    def messages(self, name: str, start: int | None, sees: Sees) -> Lines:
        info = self.must(name, sees)
        shelf, records = Shelf(self.store, info), self.store.records(name) if info.compactions else []
        return self.history_lines(shelf, shelf.now(records).fates(), start)

    def history_lines(self, shelf: Shelf, fates: Fates, start: int | None) -> Lines:
        """Messages as they were said; the newest if no start is given."""
        total = shelf.info.count
        newest = max(total - 1, 0) // LINES_PER_PAGE * LINES_PER_PAGE
        return self.lines(shelf, shelf.history(), fates, newest if start is None else start)

    def lines(self, shelf: Shelf, places: Places, fates: Fates, start: int) -> Lines:
        total = len(places)
        chosen = places.between(start, start + LINES_PER_PAGE)
        return self.lines_of(shelf, list(enumerate(chosen, start)), fates, start, total)

    def lines_of(self, shelf: Shelf, numbered: list[tuple[int, Place]], fates: Fates, start: int, total: int) -> Lines:
        show = self.show(shelf.info)
        found = shelf.read([place for _, place in numbered])
        return Lines(
            session=shelf.info.name,
            start=start,
            total=total,
            lines=tuple(
                show.line(index, item, fates.of(place)) for (index, place), item in zip(numbered, found, strict=True)
            ),
        )

    def show(self, info: SessionInfo) -> Show:
        return Show(self.glances.gauge.meter(info.model), self.sessions.redactor)

    def turns(self, name: str, sees: Sees) -> TurnList:
        return TurnList(session=name, turns=turn_facts(self.glances.one(self.must(name, sees))))

    def compactions(self, name: str, sees: Sees) -> CompactionList:
        info = self.must(name, sees)
        records = self.store.records(name)
        return CompactionList(session=name, compactions=tuple(compaction_facts(record, info) for record in records))


def turn_facts(known: Known) -> tuple[TurnFacts, ...]:
    return tuple(
        TurnFacts(
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


def compaction_facts(record: CompactionRecord, info: SessionInfo) -> CompactionFacts:
    receipt = record.receipt
    return CompactionFacts(
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


def _by_level(finding: Finding) -> int:
    return LEVELS.index(finding.level)


def _days(known: Iterable[Known], now: float) -> tuple[Day, ...]:
    """The last two weeks in which something was sent, day by day (UTC); a day without requests is a day too."""
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
        Day(
            day=datetime.fromtimestamp(number * 86_400, UTC).date().isoformat(),
            requests=sums[number][0],
            tokens_sent=sums[number][1],
            tokens_not_sent=max(sums[number][2], 0),
        )
        for number in range(max(last - DAYS + 1, min(sums)), last + 1)
    )
