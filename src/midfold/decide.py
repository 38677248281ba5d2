"""Decide whether to compact now, why, to what size, and who writes the summary.

    decision = decide(Situation(prompt_tokens=60_000, threshold_tokens=50_000))
    decision.fold, decision.reason

The owner of a conversation gathers the situation and carries out the decision; nothing else decides. Rules:
1. An explicit request (`force`, `target_tokens`, `keep_last_exchanges`) is carried out at once. A focus alone is not
   a request. A prompt that the provider refused as too large is compacted at once, too, but a cooldown still applies.
2. Otherwise the engine's pressure decides, also far below the threshold. By size, pressure is HARD from the threshold
   on (inclusive) and SOFT from `SOFT_RATIO` of it. More messages than allowed are HARD, too.
3. Where compactions must leave space, one that would soon be followed by another lands lower, with space for ten
   requests if possible, and a notice gives the numbers. If the fixed part leaves hardly any space, there is no
   compaction: each would be followed by the next.
4. With a schedule, a cheap moment before the threshold is used, and every compaction lands at or below the scheduled
   size. The threshold stays the latest moment. An automatic schedule applies only if the provider has reported cached
   tokens. The settings may have early summaries written without a model.
5. A compaction that fails or hardly helps is a strike. Two strikes stop automatic compactions; with a schedule, two
   stop early ones and four all of them, until the prompt has grown by `AGAIN` of the threshold. A smaller prompt, a
   compaction that helps, or another model resets the count.
6. After a failed summary, no automatic compaction asks a model before the cooldown ends. Some failures allow a local
   summary meanwhile; after the others the conversation stays unchanged.
7. An undone compaction stays undone until one is requested or the window is `FULL`.
8. A compaction is replaced by another of the same messages only if fewer calls pay for it than have been made.
"""

from __future__ import annotations

import math

import msgspec

from midfold.cache.health import Health
from midfold.cache.prices import Prices
from midfold.cache.schedule import Schedule, break_even
from midfold.compaction.budget import Pressure, pressure_of
from midfold.compaction.receipt import KEEPS_HISTORY, RecallCost, Timing
from midfold.compaction.request import CompactionRequest, Outcome
from midfold.errors import FailureKind

MOST_STRIKES = 2
"""Ineffective compactions in a row after which automatic ones stop."""
AGAIN = 0.15
"""Share of the threshold by which the prompt must grow before another attempt."""
LEAST_ROOM = 0.1
"""Smallest share of the threshold beside the fixed part with which compactions still help."""
DEEPEST = 0.3
"""Lowest landing size, as a share of the threshold beside the fixed part."""
TIGHT = "the window is small for this conversation"
FULL = 0.95
"""Share of the window from which on a compaction is made although one was undone: the next response may not fit."""
RELIEF = 0.9
"""Share of the threshold below which earlier strikes are forgotten."""


UNDONE = "the last compaction was undone; the next one is made on request or when the window is nearly full"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a decision depends on."""

    prompt_tokens: int
    threshold_tokens: int
    asked: bool = False
    """Whether a compaction was requested, whatever the size."""
    overflowed: bool = False
    """Whether the reason is that a provider refused the request."""
    empty: bool = False
    enabled: bool = True
    pressure: Pressure | None = None
    """Pressure reported by the engine; None: the size decides."""
    fault: str = ""
    """Why the engine could not report a pressure."""
    ahead: bool = False
    """Whether the compaction is prepared early, to be swapped in later."""
    crowded: bool = False
    """Whether there are more messages than allowed."""
    undone: bool = False
    """Whether the newest compaction was undone."""
    window_tokens: int = 0
    """Largest prompt in tokens; 0 if unknown."""
    strikes: int = 0
    struck_tokens: int = 0
    """Size that the last ineffective compaction left; 0 if unknown."""
    failure: FailureKind = ""
    pause: float = 0.0
    """Seconds left of the cooldown after `failure`."""
    lossy_fallback: bool = True
    schedule: Schedule | None = None
    """Schedule of cheap moments; None: compact only when urgent."""
    local_early: bool = False
    """Whether early compactions are summarized without a model."""
    health: Health = Health()
    now: float = 0.0
    fixed_tokens: int = 0
    leaves_room: bool = False
    """Whether a compaction must leave space for the next requests."""
    usual_tokens: int = 0
    """Approximate size that a compaction usually leaves."""
    growth_tokens: int = 0
    """Approximate growth over the next ten requests."""
    unread_tokens: int = 0
    """Tokens of results that the model has not seen yet; no space is made at their expense."""
    late_tokens: int = 0
    """Tokens of tools that the compaction introduces; fixed from then on."""
    recall: RecallCost = RecallCost()
    """Cost of recall: tools that come with the compaction are written to the cache together with the system prompt."""
    model: str | None = None
    upcoming_idle: float | None = None
    """Seconds until the next request, where known."""

    @property
    def has_no_room(self) -> bool:
        """Return whether the fixed part takes nearly all space."""
        return self.leaves_room and self.fixed_tokens > self.threshold_tokens * (1 - LEAST_ROOM)

    @property
    def deep_landing(self) -> int | None:
        """Return the size to land below: the schedule's, else one with space for ten requests; None: the threshold."""
        ahead = self.ahead
        if self.schedule is not None:
            return self.schedule.target(self.prompt_tokens, self.fixed_tokens + self.late_tokens)
        if not self.leaves_room or (self.prompt_tokens < self.threshold_tokens and not ahead):
            return None
        # Messages that arrive before an early compaction is swapped in come on top.
        limit = min(self.prompt_tokens, self.threshold_tokens) if ahead else self.threshold_tokens
        stays = self.fixed_tokens + self.late_tokens + self.unread_tokens
        least = stays + int(max(self.threshold_tokens - stays, 0) * DEEPEST)
        target = min(max(limit - self.growth_tokens, least), limit)
        roomy = self.usual_tokens + self.growth_tokens <= limit
        return target if not roomy and self.fixed_tokens < target < self.usual_tokens else None

    @property
    def tightness(self) -> str:
        """Return why compactions will follow each other closely, with numbers; empty if they will not."""
        fixed, begin = f"{self.fixed_tokens:,} tokens are fixed", f"and compaction starts at {self.threshold_tokens:,}"
        if self.has_no_room:
            return f"{TIGHT}: {fixed}, {begin}"
        landing = self.deep_landing
        if landing is None or landing + self.growth_tokens <= self.threshold_tokens:
            return ""
        return f"{TIGHT}: {fixed}, ten requests add about {self.growth_tokens:,}, {begin}"

    def timing(self) -> Timing | None:
        """Return the schedule's timing; None without a schedule."""
        if self.schedule is None:
            return None
        seen = self.health.seen
        return self.schedule.timing(
            prompt_tokens=self.prompt_tokens,
            fixed_tokens=self.fixed_tokens,
            introduced_tokens=self.recall.introduced_tokens,
            health=self.health,
            now=self.now,
            switched=seen is not None and seen.model != (self.model or ""),
            upcoming_idle=self.upcoming_idle,
        )


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision and its reason. `reason` is a sentence for the receipt; empty where the engine words it."""

    fold: bool
    reason: str = ""
    pressure: Pressure = Pressure.NONE
    """Under SOFT pressure a compaction may be prepared; NONE also where none would be made."""
    asked: bool = False
    notice: str = ""
    """Notice about the compaction, or about there being none."""
    forced: bool = False
    """Whether to compact below the threshold: on request, at a cheap moment, or because the engine says so."""
    ahead: bool = False
    """Whether it is made early."""
    threshold_tokens: int = 0
    landing_tokens: int | None = None
    """Size below which the compaction must land, in place of the threshold."""
    local: bool = False
    """Whether the settings ask for a summary without a model."""
    failure: FailureKind = ""
    pause: float = 0.0
    """Seconds in which no model may be asked; until then there is a local summary or no compaction."""
    timing: Timing | None = None
    fault: str = ""
    """Problem of the engine that every receipt must report."""
    recall: RecallCost = RecallCost()

    def apply(self, request: CompactionRequest) -> CompactionRequest:
        """Return the request to pass to the engine."""
        if self.landing_tokens is not None:
            budget = msgspec.structs.replace(request.budget, threshold_tokens=self.landing_tokens)
            # A prompt that the provider refused was measured too small: believe the smaller limit only.
            trigger = 0 if request.overflowed else self.threshold_tokens
            request = msgspec.structs.replace(request, budget=budget, trigger_tokens=trigger)
        if self.asked or not self.forced:
            return request
        return msgspec.structs.replace(request, force=True, ahead=self.ahead)

    def settle(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the reason for its timing; an automatic forced one that failed counts as a strike."""
        timing, receipt, state = self.timing, outcome.receipt, outcome.state
        if timing is not None:
            is_timed = timing.fold and outcome.changed
            reason = f"{timing.reason}: {timing.told}" if is_timed else receipt.reason
            receipt = msgspec.structs.replace(receipt, timing=timing, reason=reason)
        if self.landing_tokens is not None:
            notices = (*receipt.notices, *filter(None, [self.notice]))
            receipt = msgspec.structs.replace(receipt, threshold_tokens=self.threshold_tokens, notices=notices)
        is_told = receipt.status == "compacted" or (outcome.changed and self.landing_tokens is not None)
        if self.reason and is_told and (timing is None or not timing.fold):
            receipt = msgspec.structs.replace(receipt, reason=self.reason)
        if self.fault:
            receipt = msgspec.structs.replace(receipt, notices=(self.fault, *receipt.notices))
        if outcome.changed and self.recall != RecallCost():
            receipt = msgspec.structs.replace(receipt, recall=self.recall)
        if self.fold and self.forced and not self.asked and receipt.status == "unchanged":
            strikes = state.ineffective + 1
            state = msgspec.structs.replace(state, ineffective=strikes, ineffective_tokens=receipt.new_tokens)
        return msgspec.structs.replace(outcome, receipt=receipt, state=state)


def decide(situation: Situation) -> Decision:
    """Return the decision for a situation."""
    schedule = situation.schedule
    if schedule is not None and not schedule.applies(situation.health):
        situation = msgspec.structs.replace(situation, schedule=None)
    return msgspec.structs.replace(_decision(situation), recall=situation.recall, fault=situation.fault)


def _decision(situation: Situation) -> Decision:
    urgency = _pressure(situation)
    if situation.asked:
        reason = "the conversation is empty" if situation.empty else ""
        asked = Decision(fold=not situation.empty, asked=True, forced=True, pressure=urgency, reason=reason)
        if situation.overflowed and situation.pause:
            return msgspec.structs.replace(asked, failure=situation.failure, pause=situation.pause)
        return asked
    if not situation.enabled:
        return Decision(fold=False, reason="compression is disabled")
    if situation.undone and not _is_full(situation):
        return Decision(fold=False, reason=UNDONE)
    timing = None if situation.ahead else situation.timing()
    urgent = urgency is Pressure.HARD or situation.ahead
    early = not urgent and timing is not None and timing.fold and timing.reason != "hard"
    stopped = _strikes(situation, urgent=urgent)
    paused = situation.pause > 0
    refused = "" if stopped or not _is_kept(situation) else _pause(situation)
    if not urgent and not early:
        pressure = Pressure.NONE if stopped or refused else urgency
        return Decision(fold=False, pressure=pressure, reason=_room(situation), timing=None if stopped else timing)
    if stopped:
        return Decision(fold=False, reason=stopped)
    if situation.has_no_room and not situation.crowded:
        return Decision(fold=False, reason=situation.tightness, notice=situation.tightness)
    schedule, local = situation.schedule, early and situation.local_early and situation.lossy_fallback
    if refused and not local:
        return Decision(fold=False, reason=refused, failure=situation.failure, pause=situation.pause)
    size, threshold = situation.prompt_tokens, situation.threshold_tokens
    small, landing = size < threshold, situation.deep_landing
    return Decision(
        fold=True,
        pressure=urgency,
        reason=_occasion(situation, landing),
        notice=situation.tightness,
        landing_tokens=landing,
        threshold_tokens=threshold,
        ahead=situation.ahead,
        forced=schedule is not None or situation.ahead or small,
        local=local,
        failure=situation.failure if paused and not local else "",
        pause=0.0 if local else max(situation.pause, 0.0),
        timing=timing,
    )


def _pressure(situation: Situation) -> Pressure:
    if situation.crowded:
        return Pressure.HARD
    if situation.pressure is not None:
        return situation.pressure
    return pressure_of(situation.prompt_tokens, situation.threshold_tokens)


def _is_full(situation: Situation) -> bool:
    return situation.crowded or 0 < situation.window_tokens * FULL <= situation.prompt_tokens


def _room(situation: Situation) -> str:
    size, threshold = situation.prompt_tokens, situation.threshold_tokens
    if size >= threshold:
        return f"the engine did not request a compaction at {size:,} tokens; the threshold is {threshold:,}"
    return f"{size:,} tokens are below the threshold of {threshold:,}"


def _occasion(situation: Situation, landing: int | None) -> str:
    """Return why there is a compaction now, if the threshold alone is not the reason."""
    size, threshold = f"{situation.prompt_tokens:,} tokens", f"the threshold of {situation.threshold_tokens:,}"
    if landing is not None:
        near = situation.prompt_tokens < situation.threshold_tokens
        reached = f"prepared ahead at {size}, near {threshold}" if near else f"{size} reached {threshold}"
        return f"{reached}; compacted to about {landing:,} to leave space for the next requests"
    if situation.prompt_tokens >= situation.threshold_tokens:
        return f"{size} reached {threshold}" if situation.ahead else ""
    if situation.ahead:
        return f"prepared ahead at {size}, near {threshold}"
    if situation.crowded:
        return "the limit on the number of messages was reached"
    return f"the engine requested a compaction at {size}, below {threshold}"


def _strikes(situation: Situation, *, urgent: bool) -> str:
    most = 2 * MOST_STRIKES if situation.schedule is not None and urgent else MOST_STRIKES
    again = situation.struck_tokens + int(situation.threshold_tokens * AGAIN)
    has_grown = situation.struck_tokens > 0 and situation.prompt_tokens >= again
    if situation.strikes < most or has_grown:
        return ""
    later = f"at {again:,} tokens, " if situation.struck_tokens else ""
    return (
        f"the last {situation.strikes} compactions did not help; next attempt {later}if forced, or with another model"
    )


def _is_kept(situation: Situation) -> bool:
    """Return whether the cooldown keeps the conversation unchanged because no local summary may be used."""
    return situation.pause > 0 and (situation.failure in KEEPS_HISTORY or not situation.lossy_fallback)


def _pause(situation: Situation) -> str:
    return f"{paused_words(situation.failure, situation.pause)}; a forced compaction retries at once"


def paused_words(failure: FailureKind, seconds: float) -> str:
    """Return the receipt's text for a cooldown that kept a model from being asked."""
    return f"summary model not called: {math.ceil(seconds):,} s of the cooldown after a failure ({failure}) are left"


def calls_to_replace(
    *, size_tokens: int, new_tokens: int, fixed_tokens: int, idle: float, prices: Prices
) -> float | None:
    """Return after how many calls replacing the newest compaction has paid off; None if it never does.

    Its summary is paid for already. While the cache is warm, everything behind the fixed part is written again; after
    a pause it is written anyway.
    """
    removed = size_tokens - new_tokens
    if removed <= 0:
        return None
    rewritten = 0 if idle >= prices.ttl_seconds else max(new_tokens - fixed_tokens, 0)
    return break_even(rewritten=rewritten, removed=removed, read=prices.read, write=prices.write)


def is_relieved(
    prompt_tokens: int, threshold_tokens: int, schedule: Schedule | None, health: Health | None = None
) -> bool:
    """Return whether a prompt is small enough to forget earlier strikes."""
    scheduled = schedule is not None and schedule.applies(health or Health())
    return prompt_tokens < threshold_tokens * (schedule.soft if schedule and scheduled else RELIEF)


def situation_of(request: CompactionRequest, prompt_tokens: int, now: float | None = None) -> Situation:
    """Return the situation that follows from a request alone; the owner of the conversation adds what it knows."""
    state = request.state
    return Situation(
        prompt_tokens=prompt_tokens,
        threshold_tokens=request.budget.threshold_tokens,
        window_tokens=request.budget.effective_input_window,
        asked=request.is_explicit,
        overflowed=request.overflowed,
        empty=not request.messages,
        enabled=request.options.enabled,
        strikes=state.ineffective,
        struck_tokens=state.ineffective_tokens,
        failure=state.failure,
        pause=0.0 if now is None or not state.failure else max(state.cooldown_until - now, 0.0),
        lossy_fallback=request.options.lossy_fallback,
        now=now or 0.0,
    )
