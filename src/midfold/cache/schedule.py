"""Find the cheapest moment to compact.

    schedule = Schedule(threshold_tokens=100_000, prices=prices)
    timing = schedule.timing(prompt_tokens=60_000, health=health, now=clock())

1. HARD pressure always compacts; without pressure nothing is compacted.
2. Under SOFT pressure all pending edits are made at once, at the first cheap moment: the cache is cold, is about to
   expire, belongs to another model, or the expected calls pay for the rewrite.
3. The number of future calls is unknown, so a warm rewrite waits until reading the tokens it would remove has cost
   `patience` times as much as the rewrite. It must also pay for itself within as many calls as there were so far,
   or within `expected_calls` if the host knows better.
4. If no further call comes, a warm rewrite is a loss. Its cost is therefore limited to `MAX_REGRET_SHARE` of the
   session's cost so far.
5. A cold moment is used from `COLD_MIN_TOKENS` tokens on even if the window is far from full, because the cost of a
   pause does not depend on the window. Such a compaction removes at most half of the view.
6. An automatic schedule applies only once the provider has reported cached tokens. It aims at the size of tail and
   summary in the settings, so that it keeps what they keep, except for what `protect_last_n` keeps beyond that
   size.
"""

from __future__ import annotations

from math import inf, isinf

import msgspec

from midfold.cache.health import Health
from midfold.cache.prices import Prices
from midfold.compaction.budget import SOFT_RATIO, SUMMARY_MINIMUM, Budget, Pressure, pressure_of
from midfold.compaction.receipt import Timing

# Break-even of rewriting a cached prefix.
#
# R* = ((w - r) * S + C) / (r * K) is the number of calls after which an edit has paid for itself. S: tokens after the
# edit that must be written again instead of read. K: tokens removed from every later call. C: cost of the summary. w,
# r: prices of a written and a read token. With a cold cache everything is written anyway, so an edit costs nothing
# extra.


def break_even(
    *, rewritten: float, removed: float, summary: float = 0.0, read: float = 0.1, write: float = 1.25
) -> float:
    """Return the calls until an edit of a warm prefix pays off; infinite if never. Sizes: tokens at the base price."""
    price = (write - read) * rewritten + summary
    gain = read * removed
    if gain <= 0:
        return 0.0 if price <= 0 and removed > 0 else inf
    return max(price, 0.0) / gain


def cold_gain(*, removed: float, summary: float = 0.0, write: float = 1.25) -> float:
    """Return the immediate saving of an edit on a cold cache: the removed tokens need not be written."""
    return write * removed - summary


EXPIRING_SHARE = 0.9
"""Share of its lifetime after which an idle cache is about to expire."""


MAX_REGRET_SHARE = 0.045
"""Maximum cost of a warm rewrite, as a share of the session's cost so far."""
COLD_MIN_TOKENS = 30_000
"""Minimum prompt tokens of a compaction on a cold cache."""
CHEAP_SOFT_SHARE = 0.4
"""Share of the threshold from which cheap moments are used with `cheapest`."""
AUTO_SOFT_SHARE = SOFT_RATIO
"""Share of the threshold from which cheap moments are used automatically."""
LANDING = 0.15
"""Target of a compaction with `cheapest`, as a share of the threshold less the fixed tokens."""
MIN_TARGET_TOKENS = 6_000
"""Minimum target of a compaction with `cheapest`, in tokens.

Smaller views kept fewer of the facts that recorded sessions needed later (bench/results/schedule.json).
"""
AUTO_MIN_TARGET_TOKENS = 12_000
"""Minimum target of an automatic compaction, in tokens."""
MAX_TARGET_SHARE = 0.7
"""Maximum share of a small threshold that the minimum target may take."""
PATIENCE = 4.0
"""Minimum cost already paid for carrying the fold before a warm rewrite, as a multiple of the rewrite's cost."""


DEFAULT_OUTPUT_RATIO = 5.0
"""Assumed price of a response token relative to a prompt token if no prices are known."""
INSTRUCTION_TOKENS = 600
"""Tokens of a summary model's instructions."""


def summary_price(
    *, folded: float, prompt: float, written: float, prices: Prices, own: Prices | None = None, reused: bool = False
) -> float:
    """Return the price of a summary in tokens at the conversation's base price.

    `prices` are the conversation's, `own` those of a separate summary model. `reused`: the cached request is sent
    again with an instruction, so that the prompt costs the price of cached tokens.
    """
    sent = min(folded, prompt * prices.read) if reused else folded
    writer = own or prices
    rate = writer.output / writer.base if writer.base and writer.output else DEFAULT_OUTPUT_RATIO
    ratio = writer.base / prices.base if writer.base and prices.base else 1.0
    return (sent + INSTRUCTION_TOKENS + written * rate) * ratio


def pressure(prompt_tokens: int, threshold_tokens: int, soft: float, *, cold: bool) -> Pressure:
    """Return HARD from the threshold on, SOFT from a share of it on, or from `COLD_MIN_TOKENS` if the cache is cold."""
    urgency = pressure_of(prompt_tokens, threshold_tokens, soft)
    return Pressure.SOFT if cold and not urgency and prompt_tokens >= COLD_MIN_TOKENS else urgency


class ScheduleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a scheduling decision. Sizes are tokens, `summary_cost` is tokens at the base price."""

    pressure: Pressure
    prompt_tokens: int
    stable_tokens: int
    """Tokens before the first edit, which stay cached."""
    introduced_tokens: int = 0
    """Tokens before the messages if the fold introduces tools; then none of them stay cached."""
    landing_tokens: int
    """Tokens of the prompt after the fold."""
    summary_cost: float = 0.0
    idle_seconds: float | None = None
    """Seconds since the last request; None if nothing is cached."""
    switched: bool = False
    """True if the next request goes to another model."""
    calls_so_far: int = 0
    expected_calls: float | None = None
    carried_cost: float = 0.0
    """Cost since the last fold of reading tokens that a fold would have removed, in tokens at the base price."""
    spent: float | None = None
    """Cost of the session so far in tokens at the base price; None if unknown."""
    upcoming_idle: float | None = None
    """Expected seconds until the next request, if the host knows."""


def schedule(moment: ScheduleFacts, prices: Prices, *, patience: float = 1.0) -> Timing:
    """Decide whether to fold now or wait, and why. A warm rewrite waits until `patience` times its cost was carried."""
    added = max(moment.introduced_tokens - moment.stable_tokens, 0) if moment.introduced_tokens else 0
    removed = max(moment.prompt_tokens - moment.landing_tokens - added, 0)
    rewritten = max(moment.landing_tokens - moment.stable_tokens, 0) + moment.introduced_tokens
    calls = moment.expected_calls if moment.expected_calls is not None else float(moment.calls_so_far)
    even = break_even(
        rewritten=rewritten, removed=removed, summary=moment.summary_cost, read=prices.read, write=prices.write
    )
    is_cold = moment.idle_seconds is None or moment.idle_seconds >= prices.ttl_seconds or moment.switched
    cold = cold_gain(removed=removed, summary=moment.summary_cost, write=prices.write)
    warm = prices.read * removed - (prices.write - prices.read) * rewritten - moment.summary_cost

    def timing(fold: bool, reason: str, explanation: str) -> Timing:
        return Timing(
            fold=fold,
            reason=reason,  # type: ignore[arg-type]
            told=explanation,
            prompt_tokens=moment.prompt_tokens,
            rewritten=rewritten,
            removed=removed,
            summary_cost=round(moment.summary_cost, 1),
            break_even_calls=None if isinf(even) else round(even, 1),
            expected_calls=calls,
            saved_now=round(cold if is_cold else warm, 1),
        )

    if moment.pressure is Pressure.HARD:
        return timing(True, "hard", "the prompt has reached the compaction threshold")
    if moment.pressure is Pressure.NONE:
        return timing(False, "below", "there is no pressure to compact")
    if is_cold and cold > 0:
        if moment.switched:
            return timing(True, "switch", "the new model has nothing cached; everything is written anyway")
        return timing(True, "cold", "nothing is cached; everything is written anyway")
    if _is_expiring(moment, prices) and cold > 0:
        return timing(True, "expiring", "the cache will have expired at the next request")
    price = (prices.write - prices.read) * rewritten + moment.summary_cost
    is_affordable = moment.spent is None or price <= moment.spent * MAX_REGRET_SHARE
    if not is_cold and removed and is_affordable and moment.carried_cost >= price * patience and calls >= even:
        costs = f"reading the fold has cost {moment.carried_cost:,.0f}, compacting costs {price:,.0f}"
        return timing(True, "pays", f"{costs}: pays off after {even:.1f} calls, {calls:.0f} are expected")
    return timing(False, "waiting", "a cheaper moment may come: a pause, another model, or the threshold")


def _is_expiring(moment: ScheduleFacts, prices: Prices) -> bool:
    idle = (moment.idle_seconds or 0.0) + (moment.upcoming_idle or 0.0)
    return moment.upcoming_idle is not None and idle >= prices.ttl_seconds * EXPIRING_SHARE


UNKNOWN = Health()


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """Model that writes the summaries. `prices` are set if it is not the conversation's model."""

    prices: Prices | None = None
    reuses_prefix: bool = False
    """True if its request reuses the prefix that the provider has cached."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the moment of a compaction, by price.

    `soft` is the share of the threshold from which cheap moments are used, `share` the target size as a share of
    it. Without a `writer` summaries are local and free.
    """

    automatic: bool = False
    """True if the schedule applies only after the provider has reported cached tokens."""

    threshold_tokens: int
    prices: Prices
    soft: float = CHEAP_SOFT_SHARE
    share: float = LANDING
    least_tokens: int = MIN_TARGET_TOKENS
    patience: float = PATIENCE
    writer: Writer | None = None

    @classmethod
    def automatic_for(cls, budget: Budget, prices: Prices, writer: Writer | None = None) -> Schedule:
        """Return the schedule of the default settings, which aims at the size of tail and summary."""
        usual = (budget.tail_tokens + budget.max_summary_tokens) / max(budget.threshold_tokens, 1)
        return cls(
            threshold_tokens=budget.threshold_tokens,
            prices=prices,
            automatic=True,
            soft=AUTO_SOFT_SHARE,
            share=min(usual, 1.0),
            least_tokens=AUTO_MIN_TARGET_TOKENS,
            writer=writer,
        )

    def applies(self, health: Health) -> bool:
        """Return whether to schedule: always if the settings ask for it, else once the provider has reported cached
        tokens.
        """
        return not self.automatic or health.read + health.written > 0

    def target(self, prompt_tokens: int, fixed_tokens: int = 0) -> int:
        """Return the target size of a compaction in tokens.

        Far below the threshold it removes at most half of the prompt, and at least a quarter.
        """
        beside = max(self.threshold_tokens - fixed_tokens, 0)
        size = int(max(beside * self.share, min(self.least_tokens, beside * MAX_TARGET_SHARE)))
        aimed = min(fixed_tokens + size, self.threshold_tokens)
        if prompt_tokens < self.threshold_tokens * self.soft:
            aimed = min(max(aimed, prompt_tokens // 2), prompt_tokens * 3 // 4)
        return max(aimed, 1)

    def timing(
        self,
        *,
        prompt_tokens: int,
        fixed_tokens: int = 0,
        introduced_tokens: int = 0,
        health: Health = UNKNOWN,
        now: float = 0.0,
        switched: bool = False,
        upcoming_idle: float | None = None,
    ) -> Timing:
        """Decide whether to fold before the next request.

        `fixed_tokens` precede the messages and stay cached. If the fold introduces tools, `introduced_tokens`
        precede them afterwards, all of them new.
        """
        idle = 0.0 if health.last is None else max(now - health.last.at, 0.0)
        cold = switched or idle + (upcoming_idle or 0.0) >= self.prices.ttl_seconds
        urgency = pressure(prompt_tokens, self.threshold_tokens, self.soft, cold=cold)
        target = self.target(prompt_tokens, fixed_tokens) if urgency else prompt_tokens
        moment = ScheduleFacts(
            pressure=urgency,
            prompt_tokens=prompt_tokens,
            stable_tokens=fixed_tokens if urgency else prompt_tokens,
            introduced_tokens=introduced_tokens if urgency else 0,
            landing_tokens=target,
            summary_cost=self._summary(prompt_tokens, fixed_tokens, idle, switched) if urgency else 0.0,
            idle_seconds=idle,
            switched=switched,
            calls_so_far=health.turns,
            carried_cost=health.carrying_cost(target, self.prices.read),
            spent=health.prompt_tokens - health.saved_units,
            upcoming_idle=upcoming_idle,
        )
        return schedule(moment, self.prices, patience=self.patience)

    def _summary(self, prompt_tokens: int, fixed_tokens: int, idle: float, switched: bool) -> float:
        if self.writer is None:
            return 0.0
        is_warm = idle < self.prices.ttl_seconds and not switched
        return summary_price(
            folded=max(prompt_tokens - fixed_tokens, 0),
            prompt=prompt_tokens,
            written=SUMMARY_MINIMUM,
            prices=self.prices,
            own=self.writer.prices,
            reused=self.writer.reuses_prefix and is_warm,
        )
