"""Cheap moments to fold, for conversations that pass through: `mode: manage` with `prompt_caching.schedule: cheapest`.

Rules of this file:
1. What a provider reported for a conversation is kept in memory, for the newest conversations. After a restart, or at
   another gateway, nothing is known: then a conversation is folded at its threshold, and cheap moments come later.
2. Only requests that were looked at count, so a conversation is believed to have cost less than it has, never more.
"""

from __future__ import annotations

from collections.abc import Callable

from midfold.cache.health import Health, Seen
from midfold.cache.prices import prices_for
from midfold.cache.schedule import CHEAP_FROM, COLD_FROM, Schedule
from midfold.config import Config
from midfold.fold.receipt import Timing
from midfold.lru import LRU
from midfold.providers import summarizer_for
from midfold.scheduling import schedule_for
from midfold.summarize import Summarizer
from midfold.transcript.message import Usage

MOST = 10_000


def is_scheduled(config: Config) -> bool:
    """Whether requests are folded at cheap moments, too."""
    chosen = config.prompt_caching.schedule == "cheapest"
    return chosen and config.gateway.mode == "manage" and config.compression.enabled


def looked_at_from(config: Config, trigger: int) -> int:
    """Tokens from which a request may have to be folded."""
    if not is_scheduled(config):
        return trigger
    return min(int(trigger * CHEAP_FROM), COLD_FROM)


class Moments:
    """What is known about the caches of conversations, by their names."""

    def __init__(self, config: Config, summarizer: Summarizer | None, clock: Callable[[], float]) -> None:
        self.config, self.clock = config, clock
        self.is_on = is_scheduled(config)
        self._summarizer = summarizer
        self._health: LRU[str, Health] = LRU(MOST)
        self._schedules: LRU[tuple[str | None, int], Schedule | None] = LRU(MOST)

    def observe(self, name: str, model: str | None, compaction: int, usage: Usage) -> None:
        """What a provider reported for a request of this conversation."""
        if not self.is_on:
            return
        known = self._health.get(name) or Health()
        prices = prices_for(model, self.config.prompt_caching.cache_ttl, self.config.models)
        seen = Seen(model=model or "", compaction=compaction)
        self._health.put(name, known.observe(usage, seen, at=self.clock(), prices=prices))

    def timing(self, name: str, model: str | None, trigger: int, tokens: int) -> Timing | None:
        """Whether to fold now; None where nothing is scheduled, or nothing is known."""
        health = self._health.get(name)
        if not self.is_on or health is None or health.seen is None:
            return None
        schedule = self._schedule(model, trigger)
        if schedule is None:
            return None
        switched = health.seen.model != (model or "")
        return schedule.timing(prompt_tokens=tokens, health=health, now=self.clock(), switched=switched)

    def _schedule(self, model: str | None, trigger: int) -> Schedule | None:
        def schedule() -> Schedule | None:
            writer = self._summarizer or summarizer_for(self.config, model)
            return schedule_for(trigger, self.config, model, lambda: writer)

        return self._schedules.made((model, trigger), schedule)
