"""How many tokens a conversation may have, when to fold it, and how much of it stays word for word.

Rules of this file (the specification documents, and the project's decisions where they disagree):
1. The effective input window is the context length less the output reservation. A reservation that is no number, not
   positive or leaves nothing is ignored with a notice.
2. The threshold is `ratio` of that window, but at least the minimum-context floor. A floor that reaches the window
   would forbid folding for ever: then the threshold is 85 % of the window.
3. The tail gets `target_ratio` of the threshold. The summary gets a fifth of what it newly stands for, beside what the
   one before it takes, at least 2,000 tokens, at most 5 % of the context length and 12,000. Where that maximum is below
   the minimum, in windows below 40,000 tokens, the minimum beats it, but is no more than a fifth of the threshold.
   In windows below 64,000, the smallest that the documents speak of, a summary may be as long as there where the view
   has room for it, up to 30 % of the threshold. What it has taken it keeps: one that must shrink loses what it told.
4. The trigger is inclusive, so a fold lands below the threshold. What the settings keep is kept, also where that is
   much.
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
MINIMUM_OF_THRESHOLD = 0.2
"""The least budget of a summary, in windows in which 2,000 tokens would leave no room for anything else."""
SMALLEST_WINDOW, MOST_OF_THRESHOLD = 64_000, 0.3
KEPT = 0.87
"""Of a summary: what is sure of its room, whatever the view has to spare. The rest may have been added to it."""
ROOMY = 0.7
"""Of the threshold: a view that leaves the rest free is not folded again at once."""
SOFT_RATIO = 0.8
TAIL_OF_TARGET = 0.1
"""Of a size that was asked for: verbatim messages at the end. More of them, and fewer lines of the whole fold, kept
less of what the future of real conversations needed (docs/explanation/retention.md)."""
LEAST_SUMMARY_OF_TARGET = 0.3


class Pressure(IntEnum):
    """How urgently a conversation must be folded. NONE is falsy."""

    NONE = 0
    SOFT = 1
    """It will soon be time: a host may prepare the fold, or wait for a good moment."""
    HARD = 2
    """It must be folded before the next request."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """All the numbers that follow from one context window."""

    context_length: int
    output_reservation: int = 0
    effective_input_window: int
    threshold_tokens: int
    tail_tokens: int
    summary_maximum: int
    summary_minimum: int = SUMMARY_MINIMUM
    spare_maximum: int = 0
    """How long a summary may be where there is room; from 64,000 tokens on no more than the maximum."""
    notices: tuple[str, ...] = ()

    def summary_tokens(self, folded: int, before: int = 0, room: int = 0) -> int:
        """How long the summary of `folded` tokens may be, in the place of one of `before`, where there is `room`."""
        wanted = before + int(folded * SUMMARY_RATIO)
        spare = min(wanted, self.spare_maximum, max(room, int(before * KEPT)))
        return max(min(wanted, self.summary_maximum), self.summary_minimum, spare)

    @property
    def most_summary_tokens(self) -> int:
        """How long a summary can be at most, whatever it stands for."""
        return max(self.summary_maximum, self.summary_minimum)

    def pressure(self, prompt_tokens: int) -> Pressure:
        return pressure_of(prompt_tokens, self.threshold_tokens)

    def aiming_at(self, target_tokens: int) -> Budget:
        """The same window where a size was asked for: the tail and the summary share it."""
        target = max(1, min(target_tokens, self.effective_input_window))
        return msgspec.structs.replace(
            self,
            tail_tokens=int(target * TAIL_OF_TARGET),
            summary_maximum=max(1, int(target * LEAST_SUMMARY_OF_TARGET)),
        )


def pressure_of(prompt_tokens: int, threshold_tokens: int, soft: float = SOFT_RATIO) -> Pressure:
    """HARD from the threshold on, SOFT from a share of it on."""
    if prompt_tokens >= threshold_tokens:
        return Pressure.HARD
    return Pressure.SOFT if prompt_tokens >= threshold_tokens * soft else Pressure.NONE


def pressure_text(prompt_tokens: int, threshold_tokens: int) -> str:
    """Return how near a conversation is to its compaction. Only for people: models that read this give up early."""
    share = prompt_tokens * 100 // max(threshold_tokens, 1)
    return f"{share:,} % of the compaction threshold ({prompt_tokens:,}/{threshold_tokens:,})"


def effective_input_window(context_length: int, output_reservation: Any = None) -> int:
    """What is left for the prompt when the answer has its place."""
    return context_length - (_reservation(context_length, output_reservation)[0])


def _reservation(context_length: int, asked: Any) -> tuple[int, str]:
    if asked is None or asked == 0:
        return 0, ""
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked < float("inf"):
        return 0, "the output reservation is not a positive number and was ignored"
    if asked >= context_length:
        return 0, f"an output reservation of {int(asked):,} tokens leaves nothing of {context_length:,} and was ignored"
    return int(asked), ""


def threshold_tokens(effective_window: int, ratio: float = 0.5, minimum_context_floor: int = 0) -> int:
    """The number of prompt tokens from which a conversation is folded."""
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
    """The budget of one window."""
    reservation, notice = _reservation(context_length, output_reservation)
    window = context_length - reservation
    threshold = threshold_tokens(window, ratio, minimum_context_floor)
    maximum = max(1, min(int(context_length * SUMMARY_SHARE_OF_CONTEXT), SUMMARY_MAXIMUM))
    least = min(SUMMARY_MINIMUM, int(threshold * MINIMUM_OF_THRESHOLD))
    spare = int(SMALLEST_WINDOW * SUMMARY_SHARE_OF_CONTEXT)
    return Budget(
        context_length=context_length,
        output_reservation=reservation,
        effective_input_window=window,
        threshold_tokens=threshold,
        tail_tokens=max(1, int(threshold * target_ratio)),
        summary_maximum=maximum,
        summary_minimum=SUMMARY_MINIMUM if maximum >= SUMMARY_MINIMUM else max(1, least),
        spare_maximum=min(spare, int(threshold * MOST_OF_THRESHOLD)),
        notices=(notice,) if notice else (),
    )
