"""Compute token budgets: the threshold of a compaction, the tail and the summary.

The rules follow the specification, and the project's decisions where its documents disagree:

1. The effective input window is the context length minus the output reservation. A reservation that is not a
   positive number, or leaves nothing, is ignored with a notice.
2. The threshold is `ratio` of that window, but at least the minimum-context floor. If the floor reaches the window,
   which would prevent every compaction, the threshold is 85 % of the window.
3. The tail gets `target_ratio` of the threshold. The summary gets a fifth of the newly folded tokens plus the size
   of the previous summary: at least 2,000 tokens, at most 5 % of the context length and at most 12,000. In windows
   below 40,000 tokens, where that maximum is below the minimum, the minimum wins but is capped at a fifth of the
   threshold. In windows below 64,000 (the smallest in the specification) a summary may use the limit of a 64,000
   window if the view has free tokens, up to 30 % of the threshold. It keeps that size later: shrinking a summary
   loses facts.
4. The trigger is inclusive, so a compaction must end below the threshold. Protected messages stay even if they are
   large.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

SMALL_WINDOW_RATIO = 0.85
SUMMARY_RATIO = 0.20
SUMMARY_MINIMUM = 2_000
SUMMARY_MAXIMUM = 12_000
SUMMARY_SHARE_OF_CONTEXT = 0.05
MIN_SUMMARY_SHARE = 0.2
"""Minimum budget of a summary as a share of the threshold, for windows where 2,000 tokens would be too much."""
SPEC_MIN_WINDOW = 64_000
"""Smallest context window in the specification, in tokens."""
MAX_SPARE_SHARE = 0.3
"""Maximum share of the threshold for a summary that uses free tokens of the view."""
KEPT_SHARE = 0.87
"""Share of the previous summary that the next one may always use. The rest may be text added after it was written."""
COMFORTABLE_SHARE = 0.7
"""Maximum share of the threshold for a view that is not due for compaction again soon."""
SOFT_RATIO = 0.8
TAIL_SHARE_OF_TARGET = 0.1
"""Share of an explicit target size for the verbatim tail. A larger tail with a shorter summary kept less of what
later turns of real conversations needed (docs/explanation/retention.md).
"""
SUMMARY_SHARE_OF_TARGET = 0.3


class Pressure(IntEnum):
    """Urgency of a compaction. NONE is falsy."""

    NONE = 0
    SOFT = 1
    """Compaction is near: a host may prepare it or wait for a good moment."""
    HARD = 2
    """Compaction is required before the next request."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Token limits derived from one context window."""

    context_length: int
    output_reservation: int = 0
    effective_input_window: int
    threshold_tokens: int
    tail_tokens: int
    summary_maximum: int
    summary_minimum: int = SUMMARY_MINIMUM
    spare_maximum: int = 0
    """Maximum tokens of a summary if the view has free tokens; from 64,000 tokens on no more than the maximum."""
    notices: tuple[str, ...] = ()

    def summary_tokens(self, folded: int, before: int = 0, free_tokens: int = 0) -> int:
        """Return the summary budget for `folded` new tokens and a previous summary of `before`, with `free_tokens`
        free tokens.
        """
        wanted = before + int(folded * SUMMARY_RATIO)
        spare = min(wanted, self.spare_maximum, max(free_tokens, int(before * KEPT_SHARE)))
        return max(min(wanted, self.summary_maximum), self.summary_minimum, spare)

    @property
    def max_summary_tokens(self) -> int:
        """Upper bound of the summary budget without free tokens."""
        return max(self.summary_maximum, self.summary_minimum)

    def pressure(self, prompt_tokens: int) -> Pressure:
        return pressure_of(prompt_tokens, self.threshold_tokens)

    def for_target(self, target_tokens: int) -> Budget:
        """Return the budget for an explicit target size, shared by the tail and the summary."""
        target = max(1, min(target_tokens, self.effective_input_window))
        return msgspec.structs.replace(
            self,
            tail_tokens=int(target * TAIL_SHARE_OF_TARGET),
            summary_maximum=max(1, int(target * SUMMARY_SHARE_OF_TARGET)),
        )


def pressure_of(prompt_tokens: int, threshold_tokens: int, soft: float = SOFT_RATIO) -> Pressure:
    """Return HARD from the threshold on, SOFT from `soft` of it on, else NONE."""
    if prompt_tokens >= threshold_tokens:
        return Pressure.HARD
    return Pressure.SOFT if prompt_tokens >= threshold_tokens * soft else Pressure.NONE


def pressure_text(prompt_tokens: int, threshold_tokens: int) -> str:
    """Return how near a conversation is to its compaction. For people only: models that read this give up early."""
    share = prompt_tokens * 100 // max(threshold_tokens, 1)
    return f"{share:,} % of the compaction threshold ({prompt_tokens:,}/{threshold_tokens:,})"


def effective_input_window(context_length: int, output_reservation: Any = None) -> int:
    """Return the tokens left for the prompt after the output reservation."""
    return context_length - (_reservation(context_length, output_reservation)[0])


def _reservation(context_length: int, requested: Any) -> tuple[int, str]:
    if requested is None or requested == 0:
        return 0, ""
    if isinstance(requested, bool) or not isinstance(requested, int | float) or not 0 < requested < float("inf"):
        return 0, "Ignored the output reservation: it is not a positive number."
    if requested >= context_length:
        return (
            0,
            f"Ignored the output reservation of {int(requested):,} tokens: the window has only {context_length:,}.",
        )
    return int(requested), ""


def threshold_tokens(effective_window: int, ratio: float = 0.5, minimum_context_floor: int = 0) -> int:
    """Return the number of prompt tokens at which a conversation is compacted."""
    if minimum_context_floor >= effective_window:
        return max(1, int(effective_window * SMALL_WINDOW_RATIO))
    return max(1, int(effective_window * ratio), minimum_context_floor)


def plan_budget(
    context_length: int,
    *,
    output_reservation: Any = None,
    ratio: float = 0.5,
    target_ratio: float = 0.2,
    minimum_context_floor: int = 0,
) -> Budget:
    """Return the budget of one context window."""
    reservation, notice = _reservation(context_length, output_reservation)
    window = context_length - reservation
    threshold = threshold_tokens(window, ratio, minimum_context_floor)
    maximum = max(1, min(int(context_length * SUMMARY_SHARE_OF_CONTEXT), SUMMARY_MAXIMUM))
    minimum = min(SUMMARY_MINIMUM, int(threshold * MIN_SUMMARY_SHARE))
    spare = int(SPEC_MIN_WINDOW * SUMMARY_SHARE_OF_CONTEXT)
    return Budget(
        context_length=context_length,
        output_reservation=reservation,
        effective_input_window=window,
        threshold_tokens=threshold,
        tail_tokens=max(1, int(threshold * target_ratio)),
        summary_maximum=maximum,
        summary_minimum=SUMMARY_MINIMUM if maximum >= SUMMARY_MINIMUM else max(1, minimum),
        spare_maximum=min(spare, int(threshold * MAX_SPARE_SHARE)),
        notices=(notice,) if notice else (),
    )
