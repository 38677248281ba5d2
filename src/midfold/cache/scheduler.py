"""The schedule of one conversation: its settings, and what is known before a request, in constant time.

    schedule = Schedule(threshold_tokens=100_000, prices=prices)
    timing = schedule.timing(prompt_tokens=60_000, health=health, now=clock())

A session, a host, the gateway and `midfold replay` all decide by this, so what is replayed is what is done.
"""

from __future__ import annotations

import msgspec

from midfold.cache.health import Health
from midfold.cache.prices import Prices
from midfold.cache.schedule import Moment, landing, pressure, schedule, summary_price
from midfold.core.budget import SUMMARY_MINIMUM
from midfold.core.timing import Timing

UNKNOWN = Health()


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """A model that writes the summaries. `prices` are its own where it is another than the conversation's."""

    prices: Prices | None = None
    reuses_prefix: bool = False
    """Whether it is asked with the prefix that the provider has cached."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When to fold, by price. `soft` and `share` are shares of the threshold: where cheap moments begin to be used, and
    the size to land at. Without a `writer` summaries are made locally and cost nothing."""

    threshold_tokens: int
    prices: Prices
    soft: float = 0.4
    share: float = 0.15
    patience: float = 4.0
    writer: Writer | None = None

    def target(self, prompt_tokens: int) -> int:
        """The size a fold aims at."""
        return landing(prompt_tokens, self.threshold_tokens, self.soft, self.share)

    def timing(
        self,
        *,
        prompt_tokens: int,
        fixed_tokens: int = 0,
        health: Health = UNKNOWN,
        now: float = 0.0,
        switched: bool = False,
        upcoming_idle: float | None = None,
    ) -> Timing:
        """Whether to fold before the next request. `fixed_tokens` stand before the messages and stay cached."""
        idle = 0.0 if health.last is None else max(now - health.last.at, 0.0)
        cold = switched or idle + (upcoming_idle or 0.0) >= self.prices.ttl_seconds
        urgency = pressure(prompt_tokens, self.threshold_tokens, self.soft, cold=cold)
        target = self.target(prompt_tokens) if urgency else prompt_tokens
        moment = Moment(
            pressure=urgency,
            prompt_tokens=prompt_tokens,
            stable_tokens=fixed_tokens if urgency else prompt_tokens,
            landing_tokens=target,
            summary_cost=self._summary(prompt_tokens, fixed_tokens, idle, switched) if urgency else 0.0,
            idle_seconds=idle,
            switched=switched,
            calls_so_far=health.turns,
            carried_cost=health.carried(target, self.prices.read),
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
