"""Track per turn whether the prompt cache worked, from reported usage: a pure fold over turns.

    health = health.observe(usage, seen, at=clock(), prices=prices)
    health.last.kind, health.hit_rate, health.saved

1. Usage belongs to the request it measured: `RequestHashes` identifies its model, tools, system prompt and
   messages.
2. After a request, everything it read and wrote is cached, and the next one should read it. If it does not, the
   reason is the first of these that applies: another model, other tools, another system prompt, a compaction, a
   changed history, an expired lifetime; else it is unexpected.
3. Savings are net: what reading saved, less what writing cost above the base price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.cache.markers import Ttl, strip_markers
from midfold.cache.prices import Prices, prices_for
from midfold.models import ModelOverride
from midfold.transcript import jsonio
from midfold.transcript.document import Document, recording_of
from midfold.transcript.log_lines import mapping_of, seconds_of
from midfold.transcript.message import Usage, read_usage
from midfold.transcript.tokens import Meter, RunningTally, Tally

Kind = Literal[
    "hit",
    "cold_start",
    "expired",
    "compacted",
    "tools_changed",
    "system_changed",
    "model_changed",
    "history_changed",
    "uncached",
    "unexpected",
]
MIN_HIT_SHARE = 0.8
"""Minimum share of the cached tokens that a request must read to count as a hit."""


class RequestHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hashes of the parts of a request."""

    model: str = ""
    tools: str = ""
    system: str = ""
    messages: Tally = Tally()
    compaction: int = 0

    @classmethod
    def of(cls, *, model: str | None, tools: Any, system: Any, messages: Tally, compaction: int = 0) -> RequestHashes:
        return cls(
            model=model or "",
            tools=fingerprint(tools),
            system=fingerprint(system),
            messages=messages,
            compaction=compaction,
        )


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Billed usage of one request, and its cache result."""

    kind: Kind
    prompt_tokens: int = 0
    read: int = 0
    written: int = 0
    expected: int = 0
    """Tokens that should have been read from the cache."""
    saved: float = 0.0
    """Dollars saved compared to no cache; negative if writing cost more than reading saved."""
    at: float = 0.0


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cache statistics of a session, serializable as JSON."""

    turns: int = 0
    kinds: dict[str, int] = {}
    prompt_tokens: int = 0
    read: int = 0
    written: int = 0
    saved_units: float = 0.0
    """Tokens at the base price."""
    saved: float = 0.0
    seen: RequestHashes | None = None
    last: Turn | None = None
    since_fold: int = 0
    """Turns since the last compaction; `since_tokens` are their prompt tokens."""
    since_tokens: int = 0

    def carrying_cost(self, landing_tokens: int, read: float) -> float:
        """Return the cost since the last fold of reading tokens beyond the size a fold would have left."""
        return read * max(self.since_tokens - self.since_fold * landing_tokens, 0)

    @property
    def hit_rate(self) -> float:
        """Return the share of all prompt tokens that came from the cache."""
        return self.read / self.prompt_tokens if self.prompt_tokens else 0.0

    def observe(
        self, usage: Usage, seen: RequestHashes, *, at: float, prices: Prices, continues: bool = True
    ) -> Health:
        """Return the health after another response. `continues`: the request starts with the previous request's
        messages.
        """
        expected = 0 if self.last is None else self.last.read + self.last.written
        units = prices.saved_units(usage)
        same = self.seen is not None and self.seen.compaction == seen.compaction
        turn = Turn(
            kind=self._kind(usage, seen, expected, at, prices, continues),
            prompt_tokens=usage.prompt_tokens,
            read=usage.cache_read_tokens,
            written=usage.cache_write_tokens,
            expected=expected,
            saved=prices.money(units),
            at=at,
        )
        return Health(
            turns=self.turns + 1,
            kinds={**self.kinds, turn.kind: self.kinds.get(turn.kind, 0) + 1},
            prompt_tokens=self.prompt_tokens + turn.prompt_tokens,
            read=self.read + turn.read,
            written=self.written + turn.written,
            saved_units=self.saved_units + units,
            saved=self.saved + turn.saved,
            seen=seen,
            last=turn,
            since_fold=self.since_fold + 1 if same else 1,
            since_tokens=(self.since_tokens if same else 0) + usage.prompt_tokens,
        )

    def _kind(
        self, usage: Usage, seen: RequestHashes, expected: int, at: float, prices: Prices, continues: bool
    ) -> Kind:
        before, last = self.seen, self.last
        if before is None or last is None:
            return "hit" if usage.cache_read_tokens else "cold_start" if usage.cache_write_tokens else "uncached"
        if usage.cache_read_tokens and usage.cache_read_tokens >= expected * MIN_HIT_SHARE:
            return "hit"
        if not expected:
            return "cold_start" if usage.cache_write_tokens else "uncached"
        if seen.model != before.model:
            return "model_changed"
        if seen.tools != before.tools:
            return "tools_changed"
        if seen.system != before.system:
            return "system_changed"
        if seen.compaction != before.compaction:
            return "compacted"
        if not continues:
            return "history_changed"
        return "expired" if at - last.at >= prices.ttl_seconds else "unexpected"


class RecordedTurn(NamedTuple):
    """Response of a recorded conversation: its position, its reported usage, and the health after it."""

    place: int
    usage: Usage
    model: str
    at: float
    health: Health
    prices: Prices

    @property
    def cost(self) -> float:
        """Return the cost of its prompt in dollars."""
        return self.prices.money(self.prices.units(self.usage))


def observe_recording(
    document: Document, overrides: Mapping[str, ModelOverride], ttl: Ttl = "5m", model: str = ""
) -> Iterator[RecordedTurn]:
    """Yield the responses of a recorded conversation that have usage; `model` overrides the recorded one.

    `ttl` is the cache lifetime if the usage does not report one.
    """
    health, tally, folds = Health(), RunningTally(Meter()), 0
    recorded = recording_of(document)
    known = cache(lambda whose, lifetime: prices_for(whose or None, lifetime, overrides))
    for place, message in enumerate(document.messages):
        folds += place in recorded.folds
        turn = recorded.turns.get(place)
        usage = read_usage(turn.usage) if turn is not None and message.role == "assistant" else None
        if turn is not None and usage is not None:
            whose, at = model or turn.model or recorded.model, seconds_of(turn.at) or 0.0
            seen = RequestHashes.of(model=whose, tools=None, system=None, messages=tally.now, compaction=folds)
            prices = known(whose, _lifetime(turn.usage) or ttl)
            health = health.observe(usage, seen, at=at, prices=prices)
            yield RecordedTurn(place, usage, whose, at, health, prices)
        tally.extend([message])


def _lifetime(usage: Mapping[str, Any]) -> Ttl | None:
    """Return the cache lifetime of most tokens written, as Anthropic reports it; None if it is not reported."""
    written = mapping_of(usage.get("cache_creation"))
    short, long = (written.get(f"ephemeral_{ttl}_input_tokens") for ttl in ("5m", "1h"))
    if not isinstance(short, int) or not isinstance(long, int) or not (short or long):
        return None
    return "1h" if long > short else "5m"


def fingerprint(value: Any) -> str:
    """Return a short hash of tools or of a system prompt without markers; empty for no value."""
    if not value:
        return ""
    return blake2b(jsonio.encode(strip_markers(value)), digest_size=8).hexdigest()
