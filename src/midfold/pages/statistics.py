"""Statistics of sessions: size, savings, findings.

Results are cached until the session changes. A size does not require reading the whole session: it starts from the
last reported usage or the last compaction, and only later messages are counted, or sampled if there are many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from midfold.api import believe, budget_for, meter_for
from midfold.cache.prices import Prices, prices_for
from midfold.config import Config
from midfold.decide import MOST_STRIKES
from midfold.lru import LRU
from midfold.models import Model
from midfold.pages.api_types import (
    CacheUse,
    CauseFacts,
    ContextPart,
    Finding,
    Level,
    Saved,
    SessionFacts,
    Share,
    Size,
    SizeBasis,
)
from midfold.pages.formatting import client_of, key_of, owner_of, percent
from midfold.pages.messages import MessagePlace, MessageReader, MessageRuns, StoredMessage
from midfold.pages.savings import (
    PriceList,
    Retrieval,
    cache_use,
    cache_use_of_health,
    causes,
    causes_of_health,
    compare,
    usage_of,
)
from midfold.recall import NAMES
from midfold.recall.words import parse_query
from midfold.session.session import memory_of
from midfold.session.sessions import OPENING, Sessions
from midfold.store.intake import values_of
from midfold.store.protocol import CompactionRecord, SessionInfo
from midfold.store.stored_search import StoredSource
from midfold.store.usage import LastRequest, LastRequests, ReportedTurn, Turns
from midfold.transcript.breakdown import by_kind, context_breakdown, fit_sizes
from midfold.transcript.document import tool_of
from midfold.transcript.message import Message, Tool, ToolCall, ToolResult
from midfold.transcript.tokens import Meter

MAX_COUNTED = 400
"""Maximum messages counted per request."""
MAX_MODELS = 256
"""Maximum cached model lookups."""
BLOCK = 40
"""Adjacent messages per block of a sample, to need few queries."""
NEARLY_FULL = 0.95
MIN_REQUESTS = 5
POOR_HIT_RATE = 0.5
MIN_UNEXPECTED, MANY_UNEXPECTED = 3, 0.05
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")
MAX_SESSIONS = 20_000
MAX_KEPT = 200_000
"""Maximum turns, receipts and digests over all cached sessions."""
MIN_QUERY_ROWS = 500
ANSWERS = 8
"""Messages after a call that are searched for its result."""


class SessionStatistics(NamedTuple):
    """Statistics of one session, with each prompt's size without compaction."""

    version: tuple[object, ...]
    facts: SessionFacts
    records: tuple[CompactionRecord, ...]
    turns: tuple[ReportedTurn, ...]
    without: tuple[int, ...]

    @property
    def weight(self) -> int:
        return 1 + len(self.turns) + sum(20 + len(record.receipt.digests) for record in self.records)


class Statistics:
    """Calculator and cache of session statistics."""

    def __init__(self, sessions: Sessions, config: Config, clock: Callable[[], float]) -> None:
        self.sessions, self.clock = sessions, clock
        self.store = sessions.store
        self.sizes = SizeMeter(config)
        self.turns = Turns(self.store)
        self.sketches = LastRequests(self.store.database)
        self.prices = PriceList(lru_cache(maxsize=MAX_MODELS)(partial(_prompt_prices, config)), self.sizes.model)
        self.kept: LRU[int, SessionStatistics] = LRU(MAX_SESSIONS, most_bytes=MAX_KEPT, size=lambda known: known.weight)
        self.titles: LRU[tuple[int, int, int], str] = LRU(MAX_SESSIONS)

    def title(self, info: SessionInfo) -> str:
        """Return a session's title; cached once it has a few messages."""
        if not info.count:
            return ""
        key = (info.id, info.created, min(info.count, OPENING))
        known = self.titles.get(key)
        if known is None:
            known = self.sessions.title(info)
            self.titles.put(key, known)
        return known

    def of(self, infos: Sequence[SessionInfo]) -> list[SessionStatistics]:
        if len(infos) < 2:
            return [self.one(info) for info in infos]
        most = max(2 * len(infos), MIN_QUERY_ROWS)
        newest, sketches = self.turns.newest(most), self.sketches.newest(most)
        return [self._one(info, newest.get(info.id), sketches.get(info.id)) for info in infos]

    def one(self, info: SessionInfo) -> SessionStatistics:
        return self._one(info, None, None)

    def _one(self, info: SessionInfo, newest: int | None, sketch: LastRequest | None) -> SessionStatistics:
        """Return the statistics; `newest` is the id of the newest turn if known, to avoid reading the turns."""
        turns = None if newest is not None else self.turns.of(info)
        last = newest if turns is None else turns[-1].id if turns else 0
        sketch = sketch or self.sketches.of(info.id)
        version = (info.updated, info.count, info.compaction, info.compactions, hash(info.memory), last, sketch)
        kept = self.kept.get(info.id)
        if kept is not None and kept.version == version and kept.facts.name == info.name:
            return self._refresh(kept, info)
        made = self._measure(info, self.turns.of(info) if turns is None else turns, sketch, version)
        self.kept.put(info.id, made)
        return made

    def _refresh(self, known: SessionStatistics, info: SessionInfo) -> SessionStatistics:
        """Update the findings, because cooldowns expire."""
        facts = known.facts
        found = self._findings(info, known.records, facts.size, facts.saved, facts.cache, facts.causes)
        if found == facts.findings:
            return known
        return known._replace(facts=msgspec.structs.replace(facts, findings=found))

    def _measure(
        self, info: SessionInfo, turns: list[ReportedTurn], sketch: LastRequest | None, version: tuple[object, ...]
    ) -> SessionStatistics:
        sent_by = sketch.client if sketch is not None else ""
        reader = MessageReader(self.store, info)
        records = self.store.records(info.name) if info.compactions else []
        size = self.sizes.size(reader, records, turns[-1] if turns else None, sketch)
        retrieved = self.retrievals(reader) if info.compactions and turns else []
        comparison = compare(turns, records, self.prices, window=size.window, retrieved=retrieved, model=info.model)
        cache, why = cache_use(turns, self.prices), causes(turns, self.prices)
        health = memory_of(info).health
        if not turns and health.turns:
            cache, why = cache_use_of_health(health, self.prices.prompts(info.model)), causes_of_health(health)
        facts = SessionFacts(
            key=key_of(info.name),
            name=info.name,
            title=self.title(info),
            client=client_of(info.name, sent_by),
            sent_by=sent_by,
            owner=owner_of(info.name),
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
            saved=comparison.saved,
            cache=cache,
            usage=usage_of(turns, self.prices),
            causes=why,
            findings=self._findings(info, records, size, comparison.saved, cache, why),
        )
        return SessionStatistics(version, facts, tuple(records), tuple(turns), comparison.without)

    def _findings(
        self,
        info: SessionInfo,
        records: Sequence[CompactionRecord],
        size: Size,
        saved: Saved,
        cache: CacheUse,
        causes: Sequence[CauseFacts],
    ) -> tuple[Finding, ...]:
        found = findings(info, records, size, saved, cache, causes, int(self.clock() * 1000))
        return tuple(msgspec.structs.replace(one, title=self.title(info)) for one in found)

    def retrievals(self, reader: MessageReader) -> list[Retrieval]:
        """Return the results of the retrieval tools, located by the search index."""
        meter = self.sizes.meter(reader.info.model)
        made: dict[int, Retrieval] = {}
        for tool in sorted(NAMES):
            past = StoredSource(self.store, reader.info.name, role="assistant")
            having = [set(where.get(reader.info.name, ())) for where in past.places(parse_query(tool).terms)]
            for hit in past.messages({reader.info.name: set.intersection(*having)}):
                called = {part.id for part in hit.message.parts if isinstance(part, ToolCall) and part.name == tool}
                if not called:
                    continue
                first = hit.position + 1
                answers = reader.read(reader.history().between(first, first + ANSWERS))
                for found in answers:
                    if _answers(found, called):
                        position = found.place.position or 0
                        made[position] = Retrieval(position, meter.tokens(meter.units(found.message), 1))
        return sorted(made.values())


def _prompt_prices(config: Config, model: str | None) -> Prices | None:
    if believe(model, config).model.input_price is None:
        return None
    return prices_for(model, config.prompt_caching.cache_ttl, config.models)


def _answers(found: StoredMessage, called: set[str]) -> bool:
    return any(isinstance(part, ToolResult) and part.call_id in called for part in found.message.parts)


def _is_now(count: int, compaction: int, info: SessionInfo) -> bool:
    """Return whether a request with this many messages is at least as new as the stored messages."""
    return count >= info.count and compaction == info.compaction


def in_force(info: SessionInfo, records: Sequence[CompactionRecord]) -> CompactionRecord | None:
    return next((record for record in records if record.seq == info.compaction), None)


class SizeMeter:
    """Size measurement of sessions."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.belief = lru_cache(maxsize=MAX_MODELS)(lambda name: believe(name, config))

    def model(self, name: str | None) -> Model:
        return self.belief(name).model

    def meter(self, model: str | None) -> Meter:
        return meter_for(self.belief(model))

    def size(
        self,
        reader: MessageReader,
        records: Sequence[CompactionRecord],
        newest: ReportedTurn | None = None,
        sketch: LastRequest | None = None,
    ) -> Size:
        """Return the size; a gateway records its last request long before it stores the messages."""
        info = reader.info
        tokens, basis = self._last_request(info, newest, sketch) or self._tokens(reader, records)
        window, threshold = self._limits(info, records)
        if sketch is not None:
            window, threshold = sketch.window, sketch.threshold
        return Size(tokens=tokens, basis=basis, window=window, threshold=threshold, share=round(tokens / window, 4))

    def _last_request(
        self, info: SessionInfo, newest: ReportedTurn | None, sketch: LastRequest | None
    ) -> tuple[int, SizeBasis] | None:
        if sketch is not None and _is_now(sketch.count, sketch.compaction, info):
            return sketch.tokens, "reported" if sketch.reported else "estimated"
        if newest is not None and _is_now(newest.count, newest.compaction, info):
            return newest.usage.prompt_tokens, "reported"
        return None

    def _limits(self, info: SessionInfo, records: Sequence[CompactionRecord]) -> tuple[int, int]:
        """Return window and threshold, from the last receipt if there is one, because a host may know the window
        better.
        """
        if records:
            receipt = records[-1].receipt
            return receipt.context_length, receipt.threshold_tokens
        window = self.model(info.model).context_window
        return window, budget_for(window, self.config.compression.output_reservation, self.config).threshold_tokens

    def _tokens(self, reader: MessageReader, records: Sequence[CompactionRecord]) -> tuple[int, SizeBasis]:
        info, memory, record = reader.info, memory_of(reader.info), in_force(reader.info, records)
        view = reader.now(records)
        start = 0
        basis: SizeBasis = "estimated"
        if memory.anchor is not None and 0 < memory.anchor.count <= len(view):
            known, start, basis = memory.anchor_tokens, memory.anchor.count, "reported"
        elif record is not None:
            known, start = record.receipt.new_tokens, len(view) - (info.count - record.upto)
            basis = "calibrated" if memory.samples else record.receipt.token_basis
        else:
            known = round(sum(self._prompt_kinds(reader).values()) * memory.ratio)
        new = len(view) - start
        if not new:
            return known, basis
        places, scale = sample(view, start)
        meter = self.meter(info.model)
        found = reader.read(places)
        units = sum(meter.units(item.message) for item in found)
        counted = round(meter.tokens(units, len(found)) * scale * memory.ratio)
        after: SizeBasis = "sampled" if scale > 1 else "calibrated" if memory.samples else "estimated"
        return known + counted, after

    def _prompt_kinds(self, reader: MessageReader) -> dict[str, int]:
        """Return the tokens of the system prompt and tools, which reported sizes and receipts include."""
        system, tools = _prompt(reader)
        return by_kind((), self.meter(reader.info.model), system=system, tools=tools)

    def usage(self, reader: MessageReader, records: Sequence[CompactionRecord], size: Size) -> WindowUse:
        """Return where the tokens of the view go, in parts that add up to `size`."""
        places, scale = sample(reader.now(records), 0)
        messages = tuple(item.message for item in reader.read(places))
        meter = self.meter(reader.info.model)
        sizes = Counter(self._prompt_kinds(reader))
        for name, tokens in by_kind(messages, meter).items():
            sizes[name] += round(tokens * scale)
        if not any(sizes.values()):
            return WindowUse((), (), sampled=False)
        fitted = fit_sizes({name: max(tokens, 0) for name, tokens in sizes.items()}, size.tokens)
        kinds = [Share(name=name, tokens=tokens) for name, tokens in fitted.items() if tokens]
        kinds.sort(key=lambda kind: -kind.tokens)
        system, tools = _prompt(reader)
        context = context_breakdown(
            messages,
            meter,
            system=system,
            tools=tools,
            measured_prompt_tokens=size.tokens,
            context_max_tokens=size.window,
            reserved_tokens=self._reserve(size.window, records),
        ).scale_conversation(scale)
        parts = msgspec.convert(
            [share._asdict() | {"share": round(share.share, 4)} for share in context.shares], tuple[ContextPart, ...]
        )
        return WindowUse(tuple(kinds), parts, sampled=scale > 1)

    def _reserve(self, window: int, records: Sequence[CompactionRecord]) -> int:
        """Return the output reservation in tokens."""
        if records:
            receipt = records[-1].receipt
            return receipt.context_length - receipt.effective_input_window
        return budget_for(window, self.config.compression.output_reservation, self.config).output_reservation


class WindowUse(NamedTuple):
    """Token use of a view."""

    kinds: tuple[Share, ...]
    """Tokens by kind, largest first."""
    context: tuple[ContextPart, ...]
    """Parts of the window, in order."""
    sampled: bool


def _prompt(reader: MessageReader) -> tuple[Message | None, tuple[Tool, ...]]:
    """Return the stored system prompt and tools."""
    system, tools = values_of(reader.store.prompt(reader.info))
    return None if system is None else Message.over(system, reader.dialect.read_system), tuple(map(tool_of, tools))


def sample(view: MessageRuns, start: int) -> tuple[list[MessagePlace], float]:
    """Return the places from `start` on, or evenly spaced blocks of them, and the scale factor to the whole."""
    total = len(view) - start
    if total <= MAX_COUNTED:
        return view.between(start, start + total), 1.0
    blocks = MAX_COUNTED // BLOCK
    step = (total - BLOCK) / (blocks - 1)
    starts = [start + round(number * step) for number in range(blocks)]
    chosen = [place for first in starts for place in view.between(first, first + BLOCK)]
    return chosen, total / len(chosen)


def findings(
    info: SessionInfo,
    records: Sequence[CompactionRecord],
    size: Size,
    saved: Saved,
    cache: CacheUse,
    causes: Sequence[CauseFacts],
    now_ms: int,
) -> tuple[Finding, ...]:
    """Return the findings of a session, worst first."""
    found = [*_findings_of_state(info, size, now_ms), *_findings_of_summary(in_force(info, records))]
    uses = cache.read_tokens or cache.written_tokens
    if uses and cache.requests >= MIN_REQUESTS and cache.hit_rate is not None and cache.hit_rate < POOR_HIT_RATE:
        found.append(("warning", f"only {percent(cache.hit_rate)} of its prompt tokens were read from the cache"))
    unexpected = sum(one.requests for one in causes if one.cause == "unexpected")
    if unexpected >= max(MIN_UNEXPECTED, MANY_UNEXPECTED * cache.requests):
        found.append(("warning", f"{unexpected:,} requests missed the cache for an unknown reason"))
    if saved.net is not None and saved.net <= -0.01:
        found.append(("note", f"compaction has cost ${-saved.net:,.2f} more than it saved so far"))
    found.sort(key=lambda item: LEVELS.index(item[0]))
    return tuple(Finding(level=level, what=what, session=info.name) for level, what in found)


def _findings_of_state(info: SessionInfo, size: Size, now_ms: int) -> Iterator[tuple[Level, str]]:
    if info.ended is None and size.share >= NEARLY_FULL:
        yield "problem", f"{percent(size.share)} of its window is full"
    elif info.ended is None and size.tokens >= size.threshold:
        yield "warning", f"{size.tokens:,} tokens, above the compaction threshold of {size.threshold:,}"
    memory = memory_of(info)
    if memory.state.ineffective >= MOST_STRIKES:
        yield "problem", f"compaction was ineffective {memory.state.ineffective} times in a row and has stopped"
    cooling = int(memory.state.cooldown_until * 1000)
    if cooling > now_ms:
        yield "warning", f"summary failed; next attempt in {(cooling - now_ms) // 1000 + 1} s"


def _findings_of_summary(record: CompactionRecord | None) -> Iterator[tuple[Level, str]]:
    if record is None:
        return
    named, summary = f"compaction {record.seq}", record.receipt.summary
    if not record.receipt.recoverable:
        yield "problem", f"{named} cannot be unfolded"
    if summary.facts_lost:
        yield "problem", f"{named} lost {summary.facts_lost:,} facts"
    if summary.failure:
        yield "warning", f"the summary model of {named} failed: {summary.failure}"
    if summary.unverified:
        yield "note", f"{summary.unverified:,} names in the summary of {named} do not occur in the fold"
