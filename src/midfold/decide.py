"""Fold now? Because somebody asked? To what size? Who writes the summary? And if not, why not.

    decision = decide(Situation(prompt_tokens=60_000, threshold_tokens=50_000))
    decision.fold, decision.reason

Rules of this file. Whoever holds a conversation gathers the situation and acts; nobody decides elsewhere.
1. Somebody who asks (`force`, `target_tokens`, `keep_last_exchanges`) is obeyed at once, whatever else holds. A focus
   says what matters in a fold, it does not ask for one. What a provider refused as too large is folded at once, too,
   but nobody asked for that: a pause after a failure holds.
2. Otherwise the engine's pressure decides, also far below the threshold. By size, pressure is HARD from the threshold
   on, inclusive, and SOFT from `SOFT_RATIO` of it on. More messages than are allowed are HARD, too.
3. Where folds must leave room, one that would soon be followed by another is made deeper: it aims at a size with room
   for ten requests, or as near to it as can be, and a notice gives the numbers. Where what is fixed leaves hardly any
   room, there is no fold at all: each would be followed by the next.
4. Where folds are scheduled, a cheap moment is used before it is urgent, and every fold lands at or below the size at
   which the schedule aims. The threshold stays the latest moment. An automatic schedule counts only where the provider
   has reported cached tokens. The settings may leave the summaries of such early folds to no model.
5. A fold that came to nothing, or hardly helped, is a strike. Two stop automatic folds; where folds are scheduled two
   stop the early ones and four all of them, until the prompt has grown by `AGAIN` of the threshold. A smaller prompt, a
   fold that helps, or another model begins anew.
6. After a failed summary no automatic fold asks a model before the pause is over. Failures after which the local
   summary may stand in fold all the same; after the others the conversation stays as it was.
7. A fold that was undone stays undone: until somebody asks for one, or the window is `FULL`.
8. A fold that stands is replaced by another one of the same messages only where fewer calls pay for it than there were.
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
"""After so many folds in a row that did not help, automatic ones stop."""
AGAIN = 0.15
"""Of the threshold: when the prompt has grown by so much since, there is something new to fold."""
LEAST_ROOM = 0.1
"""Of the threshold: with less beside what is fixed, folds do not help."""
DEEPEST = 0.3
"""Of what is left of the threshold beside what is fixed: no fold aims lower to make room."""
TIGHT = "the window is small for this"
FULL = 0.95
"""Of the window: from here on the next answer may not fit, so a fold is made although one was undone."""
RELIEF = 0.9
"""Of the threshold: below this earlier strikes say nothing any more."""


UNDONE = "the last fold was undone, and stays undone until one is asked for or the window is nearly full"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision rests on."""

    prompt_tokens: int
    threshold_tokens: int
    asked: bool = False
    """Whether somebody wants a fold, whatever the size."""
    overflowed: bool = False
    """Whether that is because a provider refused the request."""
    empty: bool = False
    enabled: bool = True
    pressure: Pressure | None = None
    """What the engine says; None: the size decides."""
    fault: str = ""
    """Why the engine could not say anything."""
    ahead: bool = False
    """Whether the fold is made before it is time, to be swapped in when it is."""
    crowded: bool = False
    """Whether there are more messages than are allowed."""
    undone: bool = False
    """Whether the newest fold was taken back."""
    window_tokens: int = 0
    """What a prompt may have at most; 0 if that is not known."""
    strikes: int = 0
    struck_tokens: int = 0
    """The size that the last of them left; 0 if that is not known."""
    failure: FailureKind = ""
    pause: float = 0.0
    """Seconds that are left of the pause after `failure`."""
    lossy_fallback: bool = True
    schedule: Schedule | None = None
    """When folds are cheap; None: only where it is urgent."""
    local_early: bool = False
    """Whether early folds are summarised without a model."""
    health: Health = Health()
    now: float = 0.0
    fixed_tokens: int = 0
    leaves_room: bool = False
    """Whether a fold must leave room for the next requests."""
    usual_tokens: int = 0
    """About the size that a fold leaves by itself."""
    growth_tokens: int = 0
    """About what the next ten requests bring."""
    unread_tokens: int = 0
    """Results that the model has not seen yet: no room is made at their cost."""
    late_tokens: int = 0
    """Tools that the fold brings along: they are fixed from then on."""
    recall: RecallCost = RecallCost()
    """What looking back costs: tools that come with the fold are written, and the system prompt with them."""
    model: str | None = None
    upcoming_idle: float | None = None
    """How many seconds nothing will be sent from now on, where somebody knows."""

    @property
    def has_no_room(self) -> bool:
        """Whether what is fixed takes nearly all that there is."""
        return self.leaves_room and self.fixed_tokens > self.threshold_tokens * (1 - LEAST_ROOM)

    @property
    def deep_landing(self) -> int | None:
        """Return the size to land below: the schedule's, else one with space for ten requests; None: the threshold."""
        ahead = self.ahead
        if self.schedule is not None:
            return self.schedule.target(self.prompt_tokens, self.fixed_tokens + self.late_tokens)
        if not self.leaves_room or (self.prompt_tokens < self.threshold_tokens and not ahead):
            return None
        # What is said before a fold that was made ahead is swapped in comes on top of it.
        limit = min(self.prompt_tokens, self.threshold_tokens) if ahead else self.threshold_tokens
        stays = self.fixed_tokens + self.late_tokens + self.unread_tokens
        least = stays + int(max(self.threshold_tokens - stays, 0) * DEEPEST)
        target = min(max(limit - self.growth_tokens, least), limit)
        roomy = self.usual_tokens + self.growth_tokens <= limit
        return target if not roomy and self.fixed_tokens < target < self.usual_tokens else None

    @property
    def tightness(self) -> str:
        """Why folds will follow each other closely, with numbers; nothing where they will not."""
        fixed, begin = f"{self.fixed_tokens:,} tokens are fixed", f"and folds begin at {self.threshold_tokens:,}"
        if self.has_no_room:
            return f"{TIGHT}: {fixed}, {begin}"
        landing = self.deep_landing
        if landing is None or landing + self.growth_tokens <= self.threshold_tokens:
            return ""
        return f"{TIGHT}: {fixed}, ten requests bring about {self.growth_tokens:,}, {begin}"

    def timing(self) -> Timing | None:
        """What the schedule says; None where there is none."""
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
    """What to do, and why. `reason` is a sentence for the receipt; it is empty where the engine finds the words."""

    fold: bool
    reason: str = ""
    pressure: Pressure = Pressure.NONE
    """Under SOFT pressure a fold may be prepared; NONE also where none would be made."""
    asked: bool = False
    notice: str = ""
    """What somebody should know about the fold, or about there being none."""
    forced: bool = False
    """Whether to compact below the threshold: on request, at a cheap moment, or because the engine says so."""
    ahead: bool = False
    """Whether it is made before it is time."""
    threshold_tokens: int = 0
    landing_tokens: int | None = None
    """The size below which a compaction must land, in place of the threshold."""
    local: bool = False
    """Whether the summary is made without a model, by the settings."""
    failure: FailureKind = ""
    pause: float = 0.0
    """Seconds in which no model may be asked; what comes before its end is a local summary, or nothing."""
    timing: Timing | None = None
    fault: str = ""
    """What everybody must be told of the engine."""
    recall: RecallCost = RecallCost()

    def apply(self, request: CompactionRequest) -> CompactionRequest:
        """What the engine is asked for."""
        if self.landing_tokens is not None:
            budget = msgspec.structs.replace(request.budget, threshold_tokens=self.landing_tokens)
            # What a provider refused as too large was measured wrongly: no size but the smaller one is believed.
            trigger = 0 if request.overflowed else self.threshold_tokens
            request = msgspec.structs.replace(request, budget=budget, trigger_tokens=trigger)
        if self.asked or not self.forced:
            return request
        return msgspec.structs.replace(request, force=True, ahead=self.ahead)

    def settle(self, outcome: Outcome) -> Outcome:
        """The outcome with the reason why it came now. One that was forced, by nobody, and came to nothing is a strike:
        of others the engine knows."""
        timing, receipt, state = self.timing, outcome.receipt, outcome.state
        if timing is not None:
            told = timing.fold and outcome.changed
            reason = f"{timing.reason}: {timing.told}" if told else receipt.reason
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
    """The one decision."""
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
        return f"the engine does not ask for a fold at {size:,} tokens; the threshold is {threshold:,}"
    return f"{size:,} tokens are below the threshold of {threshold:,}"


def _occasion(situation: Situation, landing: int | None) -> str:
    """Why there is a fold now, where it is not that the threshold is reached, or not that alone."""
    size, threshold = f"{situation.prompt_tokens:,} tokens", f"the threshold of {situation.threshold_tokens:,}"
    if landing is not None:
        near = situation.prompt_tokens < situation.threshold_tokens
        reached = f"made ahead, at {size}: {threshold} was near" if near else f"{size} reached {threshold}"
        return f"{reached}; below {landing:,} there is room for what comes next"
    if situation.prompt_tokens >= situation.threshold_tokens:
        return f"{size} reached {threshold}" if situation.ahead else ""
    if situation.ahead:
        return f"made ahead, at {size}: {threshold} was near"
    if situation.crowded:
        return "there are more messages than are allowed"
    return f"the engine asked for a compaction at {size}; {threshold} was not reached"


def _strikes(situation: Situation, *, urgent: bool) -> str:
    most = 2 * MOST_STRIKES if situation.schedule is not None and urgent else MOST_STRIKES
    again = situation.struck_tokens + int(situation.threshold_tokens * AGAIN)
    has_grown = situation.struck_tokens > 0 and situation.prompt_tokens >= again
    if situation.strikes < most or has_grown:
        return ""
    later = f"from {again:,} tokens on, " if situation.struck_tokens else ""
    return f"the last {situation.strikes} compactions did not help; {later}a forced one, or another model, tries again"


def _is_kept(situation: Situation) -> bool:
    """Whether the pause leaves the conversation as it is: nothing may stand in for the summary."""
    return situation.pause > 0 and (situation.failure in KEEPS_HISTORY or not situation.lossy_fallback)


def _pause(situation: Situation) -> str:
    return f"{paused_words(situation.failure, situation.pause)}; a forced compaction asks at once"


def paused_words(failure: FailureKind, seconds: float) -> str:
    """What a receipt says where a pause kept a model from being asked."""
    return f"no model was asked: {math.ceil(seconds):,} s of the pause after a failure ({failure}) are left"


def calls_to_replace(
    *, size_tokens: int, new_tokens: int, fixed_tokens: int, idle: float, prices: Prices
) -> float | None:
    """After how many calls it has paid to put another fold in the place of the newest one; None if it never does.

    Its summary is paid for. While the cache is warm all behind what is fixed is written again; after a pause that is
    written anyway.
    """
    removed = size_tokens - new_tokens
    if removed <= 0:
        return None
    rewritten = 0 if idle >= prices.ttl_seconds else max(new_tokens - fixed_tokens, 0)
    return break_even(rewritten=rewritten, removed=removed, read=prices.read, write=prices.write)


def is_relieved(
    prompt_tokens: int, threshold_tokens: int, schedule: Schedule | None, health: Health | None = None
) -> bool:
    """Whether a prompt is so small that earlier strikes say nothing any more."""
    scheduled = schedule is not None and schedule.applies(health or Health())
    return prompt_tokens < threshold_tokens * (schedule.soft if schedule and scheduled else RELIEF)


def situation_of(request: CompactionRequest, prompt_tokens: int, now: float | None = None) -> Situation:
    """What a request alone tells, to which whoever holds the conversation adds what it knows; `now` is its time."""
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
