"""When a request is large enough to be looked at, and when it must be folded.

Rules of this file:
1. Hygiene acts at 85 % of the model's context length, or where the answer that was asked for would not fit any more.
   It is higher than an agent's own threshold on purpose: an agent that manages its context never meets it.
2. `manage` acts at the engine's own threshold, and before it where folds are scheduled.
3. A body with fewer than two bytes for each token of the trigger is not looked at. Text has three to five bytes a
   token; what is denser and overflows all the same is what the recovery is for.
4. A limit that a provider's error names is believed as `learned` says.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from midfold.api import believe, budget_for
from midfold.cache.schedule import CHEAP_FROM, COLD_FROM
from midfold.config import Config
from midfold.fold.request import Redactor
from midfold.gateway.exchange import Exchange
from midfold.gateway.learned import Learned, Whose
from midfold.lru import LRU
from midfold.models import Belief
from midfold.transcript.tokens import Meter

HYGIENE_RATIO = 0.85
LEAST_MESSAGES = 4
BYTES_PER_TOKEN = 2
SHORTEST_MESSAGE = 20
"""Bytes of the shortest message there is; so many messages take at least so many bytes, and a brace each."""
BESIDE_ANSWER = 0.95
"""Of what the answer leaves of the window."""
MOST_REMEMBERED = 1_000
MOST_METERS = 100
MOST_COUNTED = 50_000
"""Messages whose sizes are remembered, at some 300 bytes each."""


class Limits(NamedTuple):
    """The numbers for one model and one length of answers."""

    window: int
    trigger: int
    """Tokens from which a request is folded."""
    reservation: int
    """What the answer takes of the window, where that lowers the trigger."""
    meter: Meter
    looked_at: int = 0
    """Tokens from which a request may be folded at a cheap moment; 0: from the trigger."""

    @property
    def floor(self) -> int:
        """Bytes of a body below which nothing is looked at."""
        return (self.looked_at or self.trigger) * BYTES_PER_TOKEN


def whose(exchange: Exchange) -> Whose:
    """What a limit that is learned from this request holds for."""
    place = exchange.upstream.place if exchange.upstream is not None else ""
    return Whose(exchange.owner.id, place, exchange.peek.name if exchange.peek is not None else None)


def is_scheduled(config: Config) -> bool:
    """Whether requests are folded at cheap moments, too."""
    chosen = config.prompt_caching.schedule == "cheapest"
    return chosen and config.gateway.mode == "manage" and config.compression.enabled


def looked_at_from(config: Config, trigger: int) -> int:
    """Tokens from which a request may have to be folded."""
    if not is_scheduled(config):
        return trigger
    return min(int(trigger * CHEAP_FROM), COLD_FROM)


class Policy:
    """The limits by model."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.mode = config.gateway.mode
        self.most_messages = config.gateway.hygiene_hard_message_limit
        self.redactor: Redactor | None = None
        """What originals go through before they are hashed and stored, where the store asks for it."""
        self.asks_engine = False
        """Whether an engine decides by something else than the size: then every request is looked at in `manage`."""
        self.enabled = config.compression.enabled and self.mode != "passthrough"
        self.engine_config = self._engine_config()
        self._meters: LRU[tuple[float, int], Meter] = LRU(MOST_METERS)
        self._known: LRU[tuple[str | None, int, int], Limits] = LRU(MOST_REMEMBERED)
        self.learned = Learned()

    def _engine_config(self) -> Config:
        """The settings compactions run with: in hygiene mode the trigger is the threshold."""
        if self.mode == "manage":
            return self.config
        compression = msgspec.structs.replace(
            self.config.compression, threshold=HYGIENE_RATIO, minimum_context_floor=0, output_reservation=0
        )
        caching = msgspec.structs.replace(self.config.prompt_caching, schedule="threshold")
        return msgspec.structs.replace(self.config, compression=compression, prompt_caching=caching)

    def limits_of(self, exchange: Exchange) -> Limits:
        """The numbers for a request whose body was peeked into."""
        assert exchange.peek is not None
        learned = self.learned.window(whose(exchange)) if self.learned.is_any else 0
        return self.limits(exchange.peek.name, exchange.peek.output, learned)

    def limits(self, model: str | None, output: int, learned: int = 0) -> Limits:
        """The numbers; `learned` is what is known better than the table, if anything."""
        found = self._known.peek((model, output, learned))
        return found or self._known.made((model, output, learned), lambda: self._limits(model, output, learned))

    def _limits(self, model: str | None, output: int, learned: int) -> Limits:
        belief = believe(model, self.config)
        window = min(learned or belief.model.context_window, belief.model.context_window)
        meter = self.meter(belief)
        if self.mode == "manage":
            reservation = self.config.compression.output_reservation or output
            trigger = budget_for(window, reservation, self.config).threshold_tokens
            looked_at = 1 if self.asks_engine else looked_at_from(self.config, trigger)
            return Limits(window, trigger, reservation, meter, looked_at)
        trigger = int(window * HYGIENE_RATIO)
        beside = int((window - output) * BESIDE_ANSWER) if output < window else trigger
        return Limits(window, min(trigger, beside), output if beside < trigger else 0, meter)

    def meter(self, belief: Belief) -> Meter:
        """What counts for a model; models that count alike share it, and what it remembers."""
        facts = belief.model
        key = (facts.factor, facts.message_overhead)
        return self._meters.made(key, lambda: Meter(factor=key[0], message_overhead=key[1], remember=MOST_COUNTED))

    def may_be_many(self, body: bytes) -> bool:
        """Whether a body can hold as many messages as the hard limit allows."""
        return len(body) >= self.most_messages * SHORTEST_MESSAGE and body.count(b"{") >= self.most_messages
