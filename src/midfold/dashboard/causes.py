"""Why prompts were read from the cache, or not: the session's own account where there is one, else inferred.

`midfold.cache.health` knows the rules. Whoever records a turn and saw its prompt says what it was; for the others the
model and the compaction in force are known, and nothing of tools and system prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from midfold.cache.health import Health, Kind, Seen
from midfold.cache.prices import Prices
from midfold.dashboard.facts import CauseFacts
from midfold.dashboard.savings import PriceList
from midfold.store.usage import ReportedTurn

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


class Told(NamedTuple):
    """One request: why, and how many tokens were paid anew that could have been read."""

    cause: Kind
    anew: int


def told(turns: Sequence[ReportedTurn], prices: PriceList) -> Iterator[Told]:
    """A cause for every turn."""
    health = Health()
    for turn in turns:
        seen = Seen(model=turn.model or "", compaction=turn.compaction)
        known = prices.prompts(turn.model) or UNPRICED
        health = health.observe(turn.usage, seen, at=turn.at / 1000, prices=known)
        last = health.last
        assert last is not None
        cause = turn.kind or last.kind
        readable = min(last.expected, turn.usage.prompt_tokens)
        yield Told(cause, 0 if cause == "hit" else max(readable - turn.usage.cache_read_tokens, 0))


def causes(turns: Sequence[ReportedTurn], prices: PriceList) -> tuple[CauseFacts, ...]:
    """The causes there were, in a fixed order, with what they cost beyond reading; none if nothing was ever cached."""
    by_cause: dict[Kind, list[CauseFacts]] = {}
    for turn, why in zip(turns, told(turns, prices), strict=True):
        one = CauseFacts(cause=why.cause, requests=1, tokens=why.anew, cost=_cost(turn, why.anew, prices))
        by_cause.setdefault(why.cause, []).append(one)
    return () if set(by_cause) <= {"uncached"} else _ordered(by_cause, strict=True)


def counted(health: Health) -> tuple[CauseFacts, ...]:
    """The same for a session that kept no turns: how often, and no more."""
    found = {kind: health.kinds.get(kind, 0) for kind in ORDER}
    if not any(number for kind, number in found.items() if kind != "uncached"):
        return ()
    return tuple(
        CauseFacts(cause=kind, requests=number, tokens=0, cost=None) for kind, number in found.items() if number
    )


def together(parts: Iterable[tuple[CauseFacts, ...]]) -> tuple[CauseFacts, ...]:
    """The sums over several sessions; money over those whose prices are known."""
    by_cause: dict[Kind, list[CauseFacts]] = {}
    for part in parts:
        for one in part:
            by_cause.setdefault(one.cause, []).append(one)
    return _ordered(by_cause, strict=False)


def _ordered(by_cause: dict[Kind, list[CauseFacts]], *, strict: bool) -> tuple[CauseFacts, ...]:
    """`strict`: one price that is not known makes the sum unknown."""
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
