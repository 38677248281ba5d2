"""A provider's cache and its bill, message by message.

Rules of this file: a breakpoint finds an entry at most `POSITIONS` blocks back, the longest live one is read and kept
alive, what stands between it and the last breakpoint is written, the rest is sent at the base price. Prefixes below the
minimum are neither read nor written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from midfold.cache.markers import block_count
from midfold.cache.prices import Prices
from midfold.transcript.message import Message, Transcript, Usage
from midfold.transcript.tokens import Meter

POSITIONS = 20


class View:
    """What would be sent now, with running totals: appending costs what is new."""

    def __init__(self, meter: Meter, messages: Iterable[Message] = (), *, fixed_tokens: int = 0) -> None:
        self.meter = meter
        self.messages: list[Message] = []
        self.tokens = [fixed_tokens]
        self.blocks = [1]
        self.chain = [b"fixed"]
        self.extend(messages)

    def extend(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            self.tokens.append(self.tokens[-1] + self.meter.tokens(self.meter.units(message), 1))
            self.blocks.append(self.blocks[-1] + block_count(message))
            self.chain.append(blake2b(self.chain[-1] + message.digest, digest_size=16).digest())

    @property
    def transcript(self) -> Transcript:
        return tuple(self.messages)

    @property
    def prompt_tokens(self) -> int:
        return self.tokens[-1]

    def common(self, other: View) -> int:
        """How many messages two views begin with in common."""
        most = min(len(self.messages), len(other.messages))
        return bisect_left(range(1, most + 1), True, key=lambda count: self.chain[count] != other.chain[count])


class Cache:
    """What one session has cached at the provider."""

    def __init__(self, prices: Prices, minimum: int = 0, positions: int = POSITIONS) -> None:
        self.prices, self.minimum, self.positions = prices, minimum, positions
        self._entries: dict[bytes, float] = {}

    def send(self, view: View, breakpoints: Sequence[int], now: float) -> Usage:
        """One request with breakpoints after these messages (-1: after what is fixed)."""
        places = sorted({index + 1 for index in breakpoints if view.tokens[index + 1] >= self.minimum})
        hit = self._longest(view, places, now)
        last = max([place for place in places if place > hit], default=hit)
        for place in places:
            if place > hit or self._is_live(view.chain[place], now):
                self._entries[view.chain[place]] = now + self.prices.ttl_seconds
        read = view.tokens[hit] if hit >= 0 else 0
        written = view.tokens[last] - read if last >= 0 else 0
        return Usage(prompt_tokens=view.prompt_tokens, cache_read_tokens=read, cache_write_tokens=written)

    def _longest(self, view: View, places: Sequence[int], now: float) -> int:
        best = -1
        for place in places:
            at = place
            while at > best and view.blocks[place] - view.blocks[at] < self.positions:
                if view.tokens[at] >= self.minimum and self._is_live(view.chain[at], now):
                    best = at
                    break
                at -= 1
        if best >= 0:
            self._entries[view.chain[best]] = now + self.prices.ttl_seconds
        return best

    def _is_live(self, key: bytes, now: float) -> bool:
        return self._entries.get(key, -1.0) >= now
