"""Prices of cached tokens, from the dated model table and the configured overrides.

1. Prices are multiples of the base input price, as providers state them.
2. A model without known cache prices gets the usual prices of its family, with `assumed` set.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from midfold.cache.markers import Ttl
from midfold.models import ModelOverride, look_up
from midfold.transcript.message import Usage

TTL_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}
DEFAULT_READ = 0.1
DEFAULT_WRITE = 1.25
DEFAULT_LONG_WRITE = 2.0
AUTOMATIC_TTL_SECONDS = 300.0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a model. `read` and `write` are multiples of `base`; `base` and `output` are dollars per million
    tokens.
    """

    read: float = DEFAULT_READ
    write: float = DEFAULT_WRITE
    base: float = 0.0
    output: float = 0.0
    ttl_seconds: float = 300.0
    as_of: str = ""
    assumed: bool = False

    @property
    def are_known(self) -> bool:
        """Return whether the table or the settings state the model's prices, including those of cached tokens."""
        return self.base > 0 and not self.assumed

    def money(self, tokens: float) -> float:
        """Return the price of tokens at the base price, in dollars."""
        return tokens * self.base / 1_000_000

    def units(self, usage: Usage) -> float:
        """Return the cost of a prompt in tokens at the base price, weighted by cache reads and writes."""
        fresh = max(usage.prompt_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0)
        return fresh + usage.cache_read_tokens * self.read + usage.cache_write_tokens * self.write

    def answer(self, usage: Usage) -> float:
        """Return the price of the response in dollars."""
        return usage.completion_tokens * self.output / 1_000_000

    def saved_units(self, usage: Usage) -> float:
        """Return the net saving of caching on this prompt in tokens at the base price; negative if it cost more."""
        return usage.prompt_tokens - self.units(usage)


def prices_for(model: str | None, ttl: Ttl = "5m", overrides: Mapping[str, ModelOverride] | None = None) -> Prices:
    """Return the prices of a model for a cache lifetime."""
    belief = look_up(model, overrides)
    row = belief.model
    write = row.cache_write_1h if ttl == "1h" else row.cache_write_5m
    charges = row.cache_write_1h is not None or (row.cache_write_5m or 0.0) > 1.0
    usual = (DEFAULT_LONG_WRITE if ttl == "1h" else DEFAULT_WRITE) if charges or not belief.known else 1.0
    return Prices(
        read=DEFAULT_READ if row.cache_read is None else row.cache_read,
        write=usual if write is None else write,
        base=row.input_price or 0.0,
        output=row.output_price or 0.0,
        ttl_seconds=TTL_SECONDS[ttl] if row.tokenizer.startswith("claude") else AUTOMATIC_TTL_SECONDS,
        as_of=row.as_of,
        assumed=row.cache_read is None or write is None,
    )
