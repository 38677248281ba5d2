"""Sessions at a glance. What was worked out is kept until the session changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import NamedTuple

import msgspec

from midfold.api import believe
from midfold.cache.prices import Prices, prices_for
from midfold.config import Config
from midfold.dashboard.causes import causes, counted
from midfold.dashboard.facts import SessionFacts
from midfold.dashboard.health import findings
from midfold.dashboard.links import key_of
from midfold.dashboard.places import Found, Shelf
from midfold.dashboard.savings import PriceList, Retrieval, cache_of, cache_use, compared
from midfold.dashboard.sizes import MOST_MODELS, Gauge, run
from midfold.recall import NAMES
from midfold.service import Sessions
from midfold.session import memory_of
from midfold.store.protocol import CompactionRecord, SessionInfo
from midfold.store.usage import LastRequest, LastRequests, ReportedTurn, Turns
from midfold.transcript.message import ToolCall, ToolResult

MOST_KEPT = 200_000
"""Turns, receipts and what they list, over all sessions that are remembered."""
LEAST_ASKED = 500
ANSWERS = 8
"""Messages after a call among which its answer is looked for."""


class Known(NamedTuple):
    """A session, worked out: what it is, and each prompt as it would have been without folds."""

    version: tuple[object, ...]
    facts: SessionFacts
    records: tuple[CompactionRecord, ...]
    turns: tuple[ReportedTurn, ...]
    without: tuple[int, ...]
    sketch: LastRequest | None = None
    """Its last request, where a gateway has noted it."""

    @property
    def weight(self) -> int:
        return 1 + len(self.turns) + sum(20 + len(record.receipt.digests) for record in self.records)


class Glances:
    """Works sessions out, and remembers."""

    def __init__(self, sessions: Sessions, config: Config, clock: Callable[[], float]) -> None:
        self.sessions, self.clock = sessions, clock
        self.store = sessions.store
        self.gauge = Gauge(config)
        self.turns = Turns(self.store)
        self.sketches = LastRequests(self.store.database)
        self.prices = PriceList(lru_cache(maxsize=MOST_MODELS)(partial(_prompt_prices, config)), self.gauge.model)
        self._kept: OrderedDict[int, Known] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def of(self, infos: Sequence[SessionInfo]) -> list[Known]:
        if len(infos) < 2:
            return [self.one(info) for info in infos]
        most = max(2 * len(infos), LEAST_ASKED)
        newest, sketches = self.turns.newest(most), self.sketches.newest(most)
        return [self._one(info, newest.get(info.id), sketches.get(info.id)) for info in infos]

    def one(self, info: SessionInfo) -> Known:
        return self._one(info, None, None)

    def _one(self, info: SessionInfo, newest: int | None, sketch: LastRequest | None) -> Known:
        """`newest` is the number of its newest turn, if that is known: then turns are read only if it is new."""
        turns = None if newest is not None else self.turns.of(info)
        last = newest if turns is None else turns[-1].id if turns else 0
        sketch = sketch or self.sketches.of(info.id)
        version = (info.updated, info.count, info.compaction, info.compactions, hash(info.memory), last, sketch)
        with self._lock:
            kept = self._kept.get(info.id)
            if kept is not None and kept.version == version and kept.facts.name == info.name:
                self._kept.move_to_end(info.id)
                return self._aged(kept, info)
        made = self._made(info, self.turns.of(info) if turns is None else turns, sketch, version)
        with self._lock:
            self._forget(info.id)
            self._kept[info.id] = made
            self._weight += made.weight
            while self._weight > MOST_KEPT and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))
        return made

    def _forget(self, session: int) -> None:
        known = self._kept.pop(session, None)
        self._weight -= known.weight if known is not None else 0

    def _aged(self, known: Known, info: SessionInfo) -> Known:
        """Cooldowns end by themselves."""
        facts = known.facts
        found = findings(info, known.records, facts.size, facts.saved, facts.cache, facts.causes, self._now())
        if found == facts.findings:
            return known
        return known._replace(facts=_with(facts, found))

    def _made(
        self, info: SessionInfo, turns: list[ReportedTurn], sketch: LastRequest | None, version: tuple[object, ...]
    ) -> Known:
        shelf = Shelf(self.store, info)
        records = self.store.records(info.name) if info.compactions else []
        size = self.gauge.size(shelf, records, turns[-1] if turns else None, sketch)
        retrieved = self.retrievals(shelf) if info.compactions and turns else []
        compare = compared(turns, records, self.prices, window=size.window, retrieved=retrieved, model=info.model)
        cache, why = cache_use(turns, self.prices), causes(turns, self.prices)
        health = memory_of(info).health
        if not turns and health.turns:
            cache, why = cache_of(health, self.prices.prompts(info.model)), counted(health)
        facts = SessionFacts(
            key=key_of(info.name),
            name=info.name,
            kind=info.kind,
            parent=info.parent,
            model=info.model,
            dialect=info.dialect,
            created=info.created,
            updated=info.updated,
            ended=info.ended,
            messages=max(info.count, sketch.count if sketch is not None else 0),
            stored=info.count,
            compaction=info.compaction,
            compactions=info.compactions,
            size=size,
            saved=compare.saved,
            cache=cache,
            causes=why,
            findings=findings(info, records, size, compare.saved, cache, why, self._now()),
        )
        return Known(version, facts, tuple(records), tuple(turns), compare.without, sketch)

    def retrievals(self, shelf: Shelf) -> list[Retrieval]:
        """Answers of the tools that bring originals back; the search index knows where they were called."""
        meter = self.gauge.meter(shelf.info.model)
        made: dict[int, Retrieval] = {}
        for tool in sorted(NAMES):
            for hit in self.store.find(tool, name=shelf.info.name, role="assistant"):
                called = {part.id for part in hit.message.parts if isinstance(part, ToolCall) and part.name == tool}
                if not called:
                    continue
                answers = shelf.read(run(hit.position + 1, ANSWERS).between(0, ANSWERS))
                for found in answers:
                    if _answers(found, called):
                        position = found.place.position or 0
                        made[position] = Retrieval(position, meter.tokens(meter.units(found.message), 1))
        return sorted(made.values())

    def _now(self) -> int:
        return int(self.clock() * 1000)


def _prompt_prices(config: Config, model: str | None) -> Prices | None:
    if believe(model, config).model.input_price is None:
        return None
    return prices_for(model, config.prompt_caching.cache_ttl, config.models)


def _answers(found: Found, called: set[str]) -> bool:
    return any(isinstance(part, ToolResult) and part.call_id in called for part in found.message.parts)


def _with(facts: SessionFacts, found: tuple[object, ...]) -> SessionFacts:
    return msgspec.structs.replace(facts, findings=found)
