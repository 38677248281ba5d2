"""Running totals: what is new costs, what was counted does not; and what providers report corrects the estimate.

Rules of this file:
1. A `Tally` is a frozen total over the first `count` messages, bound to their bytes by a hash chain.
2. `RunningTally` grows by what is appended. Asking whether an older tally is still a prefix is one comparison.
3. A report is an anchor: it is exact for the messages it measured, and the estimate is only used for what came after.
   A report for messages that are no longer a prefix says nothing about the size now, only about the model's factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from midfold.core.message import DIGEST_SIZE, Message
from midfold.core.tokens import Count, Meter

SMALLEST_SAMPLE = 500
"""Below this many tokens, a report says more about fixed framing than about the model's vocabulary."""
LOWEST_RATIO, HIGHEST_RATIO = 0.25, 4.0
LOWEST_BELIEVED, HIGHEST_BELIEVED = 0.1, 10.0
MOST_UNSEEN = 200_000
"""A report further off than this, beyond a prompt the host cannot see, measured something else; it is not believed."""
WEIGHT_OF_NEWEST = 0.3


class Tally(msgspec.Struct, frozen=True):
    """The first `count` messages of a conversation: their units, and a hash of their bytes."""

    count: int = 0
    units: int = 0
    chain: bytes = b""


class RunningTally:
    """The tally of a conversation that grows, kept by its host."""

    def __init__(self, meter: Meter, messages: Iterable[Message] = ()) -> None:
        self.meter = meter
        self._marks: list[Tally] = [Tally()]
        self.extend(messages)

    def extend(self, messages: Iterable[Message]) -> Tally:
        """Adds messages; costs as much as they do."""
        mark = self._marks[-1]
        for message in messages:
            chain = blake2b(mark.chain + message.digest, digest_size=DIGEST_SIZE).digest()
            mark = Tally(mark.count + 1, mark.units + self.meter.units(message), chain)
            self._marks.append(mark)
        return mark

    def truncate(self, count: int) -> Tally:
        """Forgets everything after the first `count` messages."""
        del self._marks[max(count, 0) + 1 :]
        return self._marks[-1]

    @property
    def now(self) -> Tally:
        return self._marks[-1]

    def at(self, count: int) -> Tally:
        return self._marks[count]

    def starts_with(self, tally: Tally) -> bool:
        """Whether these very messages are still the beginning of the conversation."""
        return tally.count < len(self._marks) and self._marks[tally.count].chain == tally.chain


class Calibration(msgspec.Struct, frozen=True):
    """What reported usage has taught about one session."""

    ratio: float = 1.0
    """Reported tokens against estimated ones."""
    samples: int = 0
    anchor: Tally | None = None
    anchor_tokens: int = 0
    anchor_fixed: int = 0

    def observe(self, measured: Tally, prompt_tokens: int, *, fixed_units: int, meter: Meter) -> Calibration:
        """A provider counted `prompt_tokens` for these messages and `fixed_units` of system prompt and tools."""
        estimate = meter.tokens(measured.units + fixed_units, measured.count)
        if prompt_tokens <= 0:
            return self
        if not LOWEST_BELIEVED * estimate <= prompt_tokens <= HIGHEST_BELIEVED * estimate + MOST_UNSEEN:
            return self
        ratio, samples = self.ratio, self.samples
        seen = self._ratio_of(measured, prompt_tokens, estimate, fixed_units, meter)
        if seen is not None:
            ratio = seen if not samples else ratio + WEIGHT_OF_NEWEST * (seen - ratio)
            samples += 1
        return Calibration(ratio, samples, measured, prompt_tokens, fixed_units)

    def _ratio_of(
        self, measured: Tally, prompt_tokens: int, estimate: int, fixed_units: int, meter: Meter
    ) -> float | None:
        """Reported against estimated growth since the last report; against the whole prompt for the first one."""
        last = self.anchor
        if last is not None and measured.count > last.count and fixed_units == self.anchor_fixed:
            estimate = meter.tokens(measured.units - last.units, measured.count - last.count)
            prompt_tokens -= self.anchor_tokens
        if min(estimate, prompt_tokens) < SMALLEST_SAMPLE:
            return None
        return min(max(prompt_tokens / estimate, LOWEST_RATIO), HIGHEST_RATIO)

    def predict(self, running: RunningTally, *, fixed_units: int) -> Count:
        """The size of the next request: the last report plus what came after it, else the corrected estimate."""
        meter, now, anchor = running.meter, running.now, self.anchor
        if anchor is not None and running.starts_with(anchor):
            new = meter.tokens(now.units - anchor.units + fixed_units - self.anchor_fixed, now.count - anchor.count)
            if new == 0 and now.count == anchor.count:
                return Count(self.anchor_tokens, "reported")
            return Count(max(self.anchor_tokens + round(new * self.ratio), 0), "calibrated")
        estimate = meter.tokens(now.units + fixed_units, now.count)
        if not self.samples:
            return Count(estimate, "estimated")
        return Count(round(estimate * self.ratio), "calibrated")

    def without_anchor(self) -> Calibration:
        """After a compaction or a model switch: the size is unknown again until the next report."""
        return Calibration(self.ratio, self.samples)
