"""Whether the cache did what it should, turn by turn: a pure fold over reported usage and what was measured.

    health = health.observe(usage, seen, at=clock(), prices=prices)
    health.last.kind, health.hit_rate, health.saved

Rules of this file:
1. Usage is bound to the view it measured: `Seen` says which model, tools, system prompt and messages those were.
2. After a request everything it read and wrote is cached. The next one should read that; if it does not, the reason is
   the first of these that holds: another model, other tools, another system prompt, a compaction, a changed history,
   an expired lifetime. What none of them explains is unexpected.
3. Money is net: what reading saved, less what writing cost on top of the base price.
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
NEARLY_ALL = 0.8
"""Of what was cached: a request that reads less has missed."""


class RequestHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request was made of, as hashes."""

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
    """One request as it was billed, and what became of the cache."""

    kind: Kind
    prompt_tokens: int = 0
    read: int = 0
    written: int = 0
    expected: int = 0
    """What should have been read."""
    saved: float = 0.0
    """Dollars, against a provider without a cache; negative if writing cost more than reading saved."""
    at: float = 0.0


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All turns of a session. Plain JSON."""

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
    """Turns since the last compaction, and the prompt tokens of them all."""
    since_tokens: int = 0

    def carrying_cost(self, landing_tokens: int, read: float) -> float:
        """What was paid since the last fold for reading more than the size a fold would have left."""
        return read * max(self.since_tokens - self.since_fold * landing_tokens, 0)

    @property
    def hit_rate(self) -> float:
        """The share of all prompt tokens that came from the cache."""
        return self.read / self.prompt_tokens if self.prompt_tokens else 0.0

    def observe(
        self, usage: Usage, seen: RequestHashes, *, at: float, prices: Prices, continues: bool = True
    ) -> Health:
        """The health after one more answer. `continues`: the previous request's messages are still the beginning."""
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
        if usage.cache_read_tokens and usage.cache_read_tokens >= expected * NEARLY_ALL:
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
    """An answer of a recorded conversation: which message it is, what was reported, and the health after it."""

    place: int
    usage: Usage
    model: str
    at: float
    health: Health
    prices: Prices

    @property
    def cost(self) -> float:
        """What its prompt cost, in dollars."""
        return self.prices.money(self.prices.units(self.usage))


def observe_recording(
    document: Document, overrides: Mapping[str, ModelOverride], ttl: Ttl = "5m", model: str = ""
) -> Iterator[RecordedTurn]:
    """The answers of a recorded conversation whose usage is known; `model` is whose they are, if not as recorded.

    `ttl` counts where the usage does not say for how long something was written.
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
    """For how long most of what a request wrote is kept, as Anthropic reports it; None where nobody says."""
    written = mapping_of(usage.get("cache_creation"))
    short, long = (written.get(f"ephemeral_{ttl}_input_tokens") for ttl in ("5m", "1h"))
    if not isinstance(short, int) or not isinstance(long, int) or not (short or long):
        return None
    return "1h" if long > short else "5m"


def fingerprint(value: Any) -> str:
    """A short hash of tools or of a system prompt, markers left out; empty for nothing."""
    if not value:
        return ""
    return blake2b(jsonio.encode(strip_markers(value)), digest_size=8).hexdigest()
