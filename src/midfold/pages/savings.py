"""Savings of compactions, cache usage and causes of cache misses, priced by the reported usage.

1. The baseline is the same requests without compaction: each prompt plus what active compactions removed, minus
   what was unfolded again. A prompt that would exceed the window counts as one that exactly fits.
2. The baseline has a cache too. If the real cache was warm, the baseline reads its last prompt and writes the rest;
   if it was cold because a compaction changed the prefix, the baseline is warm unless its cache had expired.
3. A compaction pays for its summary; without an LLM it costs nothing.
4. An unknown price makes the total unknown, not zero.
5. The cause of a cache hit or miss comes from the session's own record, if there is one. For other turns
   `midfold.cache.health` infers it from the model and the active compaction; tools and system prompts are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from midfold.cache.health import Health, Kind, RequestHashes
from midfold.cache.prices import Prices
from midfold.models import Model
from midfold.pages.api_types import CacheUse, CauseFacts, Saved, UsageFacts
from midfold.store.protocol import CompactionRecord
from midfold.store.usage import ReportedTurn

MILLION = 1_000_000
ORDER: tuple[Kind, ...] = (
    "hit",
    "cold_start",
    "compacted",
    "expired",
    "model_changed",
    "tools_changed",
    "system_changed",
    "history_changed",
    "uncached",
    "unexpected",
)
UNPRICED = Prices()


class Retrieval(NamedTuple):
    """Originals that came back into the conversation at a position."""

    position: int
    tokens: int


class PriceList(NamedTuple):
    """Price lookup: prompt prices (None if unknown) and the model's row in the table."""

    prompts: Callable[[str | None], Prices | None]
    model: Callable[[str | None], Model]

    def prompt_cost(self, turn: ReportedTurn) -> float | None:
        """Return the billed cost of the prompt."""
        prices = self.prompts(turn.model)
        return None if prices is None else prices.money(prices.units(turn.usage))

    def cost(self, turn: ReportedTurn) -> float | None:
        """Return the billed cost of prompt and response; None if a price is unknown."""
        prompt, output = self.prompt_cost(turn), self.model(turn.model).output_price
        if prompt is None or output is None:
            return None
        return prompt + turn.usage.completion_tokens * output / MILLION


class Comparison(NamedTuple):
    """Savings, and each prompt's size without compaction."""

    saved: Saved
    without: tuple[int, ...]


def removed_tokens(records: Iterable[CompactionRecord]) -> dict[int, int]:
    """Return the tokens that each compaction removed, including those of the compactions it builds on."""
    total: dict[int, int] = {0: 0}
    for record in records:
        receipt = record.receipt
        total[record.seq] = total.get(record.base, 0) + receipt.old_tokens - receipt.new_tokens
    return total


def compare(
    turns: Sequence[ReportedTurn],
    records: Sequence[CompactionRecord],
    prices: PriceList,
    *,
    window: int,
    retrieved: Sequence[Retrieval] = (),
    model: str | None = None,
) -> Comparison:
    """Compare the turns with the same turns without compaction."""
    out = removed_tokens(records)
    without = tuple(_without(turn, out.get(turn.compaction, 0), window, retrieved) for turn in turns)
    paid, other = 0.0, 0.0
    priced = bool(turns)
    for place, turn in enumerate(turns):
        known, actual = prices.prompts(turn.model), prices.prompt_cost(turn)
        if known is None or actual is None:
            priced = False
            continue
        paid += actual
        if without[place] == turn.usage.prompt_tokens:
            other += actual
            continue
        before = (turns[place - 1], without[place - 1]) if place else None
        other += known.money(_units_without_folds(turn, without[place], before, known))
    summaries = _summaries(records, prices, model)
    sent = sum(turn.usage.prompt_tokens for turn in turns)
    net = other - paid - summaries if priced and summaries is not None else None
    saved = Saved(
        requests=len(turns),
        tokens_sent=sent,
        tokens_not_sent=sum(without) - sent,
        tokens_retrieved=sum(item.tokens for item in retrieved),
        paid=paid if priced else None,
        without_folds=other if priced else None,
        summaries=summaries,
        net=net,
    )
    return Comparison(saved, without)


def _without(turn: ReportedTurn, out: int, window: int, retrieved: Sequence[Retrieval]) -> int:
    prompt = turn.usage.prompt_tokens
    if not out:
        return prompt
    back = sum(item.tokens for item in retrieved if item.position < turn.count)
    return max(min(prompt + out - back, window), 0)


def _units_without_folds(
    turn: ReportedTurn, prompt: int, before: tuple[ReportedTurn, int] | None, prices: Prices
) -> float:
    """Return the cost of the request without compaction, in tokens at the base price."""
    usage = turn.usage
    bills_writes = usage.cache_write_tokens > 0
    if not usage.cache_read_tokens and not bills_writes:
        folded = before is not None and before[0].compaction != turn.compaction
        if not (folded and before is not None and before[0].usage.cache_read_tokens):
            return float(prompt)
    warm = usage.cache_read_tokens > 0
    if before is not None and before[0].compaction != turn.compaction:
        warm = turn.at - before[0].at <= prices.ttl_seconds * 1000
    read = min(before[1], prompt) if warm and before is not None else 0
    rest = prompt - read
    return read * prices.read + rest * (prices.write if bills_writes else 1.0)


def _summaries(records: Sequence[CompactionRecord], prices: PriceList, model: str | None) -> float | None:
    """Return the cost of the summary requests: the fold as input, the summary as output."""
    spent = 0.0
    for record in records:
        receipt = record.receipt
        if receipt.summary.source != "model":
            continue
        known = prices.model(receipt.summary.model or model)
        if known.input_price is None or known.output_price is None:
            return None
        folded = max(receipt.old_tokens - receipt.new_tokens, 0) + receipt.summary.tokens
        spent += (folded * known.input_price + receipt.summary.tokens * known.output_price) / MILLION
    return spent


def usage_of(turns: Sequence[ReportedTurn], prices: PriceList) -> UsageFacts:
    """Return the sum of the reported usage and its price."""
    costs = [prices.cost(turn) for turn in turns]
    known = [cost for cost in costs if cost is not None]
    return UsageFacts(
        requests=len(turns),
        input_tokens=sum(turn.usage.prompt_tokens for turn in turns),
        output_tokens=sum(turn.usage.completion_tokens for turn in turns),
        cache_read_tokens=sum(turn.usage.cache_read_tokens for turn in turns),
        cache_write_tokens=sum(turn.usage.cache_write_tokens for turn in turns),
        cost=sum(known) if known and len(known) == len(costs) else None,
    )


def cache_use(turns: Sequence[ReportedTurn], prices: PriceList) -> CacheUse:
    """Return the cache usage of these turns."""
    prompt = sum(turn.usage.prompt_tokens for turn in turns)
    read = sum(turn.usage.cache_read_tokens for turn in turns)
    paid, uncached = 0.0, 0.0
    priced = bool(turns)
    for turn in turns:
        known, spent = prices.prompts(turn.model), prices.prompt_cost(turn)
        if known is None or spent is None:
            priced = False
            continue
        paid += spent
        uncached += known.money(turn.usage.prompt_tokens)
    return CacheUse(
        requests=len(turns),
        prompt_tokens=prompt,
        read_tokens=read,
        written_tokens=sum(turn.usage.cache_write_tokens for turn in turns),
        hit_rate=round(read / prompt, 4) if prompt else None,
        paid=paid if priced else None,
        uncached=uncached if priced else None,
        net=uncached - paid if priced else None,
    )


def cache_use_of_health(health: Health, prices: Prices | None) -> CacheUse:
    """Return the cache usage of a session without stored turns, from its totals."""
    paid = None if prices is None else prices.money(health.prompt_tokens - health.saved_units)
    return CacheUse(
        requests=health.turns,
        prompt_tokens=health.prompt_tokens,
        read_tokens=health.read,
        written_tokens=health.written,
        hit_rate=round(health.hit_rate, 4) if health.prompt_tokens else None,
        paid=paid,
        uncached=None if prices is None else prices.money(health.prompt_tokens),
        net=None if prices is None else prices.money(health.saved_units),
    )


def sum_savings(parts: Iterable[Saved]) -> Saved:
    """Add savings; money only over sessions with known prices, None if there are none."""
    given = list(parts)
    return Saved(
        requests=sum(part.requests for part in given),
        tokens_sent=sum(part.tokens_sent for part in given),
        tokens_not_sent=sum(part.tokens_not_sent for part in given),
        tokens_retrieved=sum(part.tokens_retrieved for part in given),
        paid=_total(part.paid for part in given if part.net is not None),
        without_folds=_total(part.without_folds for part in given if part.net is not None),
        summaries=_total(part.summaries for part in given if part.net is not None),
        net=_total(part.net for part in given),
    )


def sum_cache_use(parts: Iterable[CacheUse]) -> CacheUse:
    """Add cache usage; money only over sessions with known prices, None if there are none."""
    given = list(parts)
    prompt, read = sum(part.prompt_tokens for part in given), sum(part.read_tokens for part in given)
    return CacheUse(
        requests=sum(part.requests for part in given),
        prompt_tokens=prompt,
        read_tokens=read,
        written_tokens=sum(part.written_tokens for part in given),
        hit_rate=round(read / prompt, 4) if prompt else None,
        paid=_total(part.paid for part in given),
        uncached=_total(part.uncached for part in given),
        net=_total(part.net for part in given),
    )


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class CauseOfTurn(NamedTuple):
    """Cause of a request's cache hit or miss, and the tokens that could have been read but were not."""

    cause: Kind
    anew: int


def explain_turns(turns: Sequence[ReportedTurn], prices: PriceList) -> Iterator[CauseOfTurn]:
    """Yield the cause for every turn."""
    health = Health()
    for turn in turns:
        seen = RequestHashes(model=turn.model or "", compaction=turn.compaction)
        known = prices.prompts(turn.model) or UNPRICED
        health = health.observe(turn.usage, seen, at=turn.at / 1000, prices=known)
        last = health.last
        assert last is not None
        cause = turn.kind or last.kind
        readable = min(last.expected, turn.usage.prompt_tokens)
        yield CauseOfTurn(cause, 0 if cause == "hit" else max(readable - turn.usage.cache_read_tokens, 0))


def causes(turns: Sequence[ReportedTurn], prices: PriceList) -> tuple[CauseFacts, ...]:
    """Return the causes in a fixed order with their extra cost; empty if nothing was ever cached."""
    by_cause: dict[Kind, list[CauseFacts]] = {}
    for turn, why in zip(turns, explain_turns(turns, prices), strict=True):
        one = CauseFacts(cause=why.cause, requests=1, tokens=why.anew, cost=_cost(turn, why.anew, prices))
        by_cause.setdefault(why.cause, []).append(one)
    return () if set(by_cause) <= {"uncached"} else _in_order(by_cause, strict=True)


def causes_of_health(health: Health) -> tuple[CauseFacts, ...]:
    """Return the causes of a session without stored turns, with request counts only."""
    found = {kind: health.kinds.get(kind, 0) for kind in ORDER}
    if not any(number for kind, number in found.items() if kind != "uncached"):
        return ()
    return tuple(
        CauseFacts(cause=kind, requests=number, tokens=0, cost=None) for kind, number in found.items() if number
    )


def sum_causes(parts: Iterable[tuple[CauseFacts, ...]]) -> tuple[CauseFacts, ...]:
    """Add causes over several sessions; money only over those with known prices."""
    by_cause: dict[Kind, list[CauseFacts]] = {}
    for part in parts:
        for one in part:
            by_cause.setdefault(one.cause, []).append(one)
    return _in_order(by_cause, strict=False)


def _in_order(by_cause: dict[Kind, list[CauseFacts]], *, strict: bool) -> tuple[CauseFacts, ...]:
    """Merge by cause in a fixed order; with `strict`, one unknown price makes the total unknown."""
    made: list[CauseFacts] = []
    for cause in ORDER:
        same = by_cause.get(cause, [])
        known = [one.cost for one in same if one.cost is not None]
        priced = len(known) == len(same) if strict else bool(known)
        if same:
            made.append(
                CauseFacts(
                    cause=cause,
                    requests=sum(one.requests for one in same),
                    tokens=sum(one.tokens for one in same),
                    cost=sum(known) if priced else None,
                )
            )
    return tuple(made)


def _cost(turn: ReportedTurn, anew: int, prices: PriceList) -> float | None:
    known = prices.prompts(turn.model)
    if known is None:
        return None
    written = min(turn.usage.cache_write_tokens, anew)
    return known.money(written * known.write + (anew - written) - anew * known.read)
