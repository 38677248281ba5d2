"""Why a prompt was not read from the cache, as far as reported usage tells.

Rules of this file:
1. What could have been read is the last prompt, or as much of it as this one is long. A request that read most of that
   is a hit; so is one whose prompt is too short to be cached.
2. Of several causes the first that explains it is told: the very first request, a fold, another model, a cache that had
   expired. What none of them explains is `unexpected`: somebody changed the prefix, or the provider dropped it.
3. A session whose provider never reported a cached token has no causes: there is no cache, or nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from midfold.dashboard.facts import CauseFacts, CauseName
from midfold.dashboard.savings import MILLION, Prices, Rates
from midfold.turns import Turn

MOST_OF_IT = 0.8
LEAST_CACHED = 1_024
"""No provider caches shorter prefixes than this, or says so."""
ORDER: tuple[CauseName, ...] = ("hit", "cold start", "compacted", "model changed", "expired", "unexpected")


class Told(NamedTuple):
    """One request: why, and how many tokens were paid anew that could have been read."""

    cause: CauseName
    anew: int


def told(turns: Sequence[Turn], keeps_ms: int) -> list[Told]:
    """A cause for every turn; none at all if nothing was ever cached."""
    if not any(turn.usage.cache_read_tokens or turn.usage.cache_write_tokens for turn in turns):
        return []
    made: list[Told] = []
    before: Turn | None = None
    for turn in turns:
        made.append(_told(turn, before, keeps_ms))
        before = turn
    return made


def _told(turn: Turn, before: Turn | None, keeps_ms: int) -> Told:
    if before is None:
        return Told("cold start" if not turn.usage.cache_read_tokens else "hit", 0)
    readable = min(before.usage.prompt_tokens, turn.usage.prompt_tokens)
    anew = max(readable - turn.usage.cache_read_tokens, 0)
    if readable < LEAST_CACHED or turn.usage.cache_read_tokens >= MOST_OF_IT * readable:
        return Told("hit", 0)
    if turn.compaction != before.compaction:
        return Told("compacted", anew)
    if turn.model != before.model:
        return Told("model changed", anew)
    return Told("expired" if turn.at - before.at > keeps_ms else "unexpected", anew)


def causes(turns: Sequence[Turn], prices: Prices) -> tuple[CauseFacts, ...]:
    """The causes there were, in a fixed order, with what they cost beyond reading."""
    counts: dict[CauseName, int] = {}
    tokens: dict[CauseName, int] = {}
    costs: dict[CauseName, float | None] = {}
    for turn, why in zip(turns, told(turns, prices.keeps_ms), strict=False):
        counts[why.cause] = counts.get(why.cause, 0) + 1
        tokens[why.cause] = tokens.get(why.cause, 0) + why.anew
        so_far, more = costs.get(why.cause, 0.0), _cost(turn, why.anew, prices.rates(turn.model))
        costs[why.cause] = None if so_far is None or more is None else so_far + more
    return tuple(
        CauseFacts(cause=cause, requests=counts[cause], tokens=tokens[cause], cost=costs[cause])
        for cause in ORDER
        if cause in counts
    )


def _cost(turn: Turn, anew: int, rates: Rates | None) -> float | None:
    if rates is None:
        return None
    written = min(turn.usage.cache_write_tokens, anew)
    return (written * rates.written + (anew - written) * rates.plain - anew * rates.read) / MILLION


def together(parts: Iterable[tuple[CauseFacts, ...]]) -> tuple[CauseFacts, ...]:
    """The sums over several sessions; money over those whose prices are known."""
    given = [one for part in parts for one in part]
    made: list[CauseFacts] = []
    for cause in ORDER:
        same = [one for one in given if one.cause == cause]
        known = [one.cost for one in same if one.cost is not None]
        if same:
            made.append(
                CauseFacts(
                    cause=cause,
                    requests=sum(one.requests for one in same),
                    tokens=sum(one.tokens for one in same),
                    cost=sum(known) if known else None,
                )
            )
    return tuple(made)
