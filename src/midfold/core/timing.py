"""When to fold, and the numbers behind that: a part of the receipt."""

from __future__ import annotations

from typing import Literal

import msgspec

Reason = Literal["hard", "cold", "expiring", "switch", "pays", "waiting", "below"]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to fold now or to wait. Sizes are tokens, costs are tokens at the base price."""

    fold: bool
    reason: Reason
    told: str
    prompt_tokens: int = 0
    rewritten: int = 0
    """What would have to be written again."""
    removed: int = 0
    """What every later call would no longer send."""
    summary_cost: float = 0.0
    break_even_calls: float | None = None
    """None where it never pays."""
    expected_calls: float = 0.0
    saved_now: float = 0.0
    """What folding saves at this very call; negative while the prefix is warm."""
