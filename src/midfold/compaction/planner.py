"""Plan a compaction, relaxing protections in order until it fits.

1. The tail budget, at least `protect_last_n` messages, and the anchors stay; they are not reduced for a nicer size.
2. If the view would not fall below the threshold, or would hardly be smaller, tail messages beyond `protect_last_n`
   are folded. If it still would not, `protect_last_n` is capped at half of all messages, because a summary of the
   others says more than their ends; then long results are truncated; and only then is the rest of `protect_last_n`
   folded group by group, with a notice. Each step leaves space for some turns: a compaction that ends just below
   the threshold is soon followed by another.
3. A requested compaction of a conversation that fits its tail keeps `protect_last_n` messages, at most half of all.
4. A requested target size overrides `protect_last_n` but not the anchors. Older tail messages are folded before
   newer ones are truncated. If even the truncated ones are too large, the newest answer is folded if it only
   announces calls: the user message and the newest messages stay, and the summary gets the tokens.
"""

from __future__ import annotations

from bisect import bisect_left

from midfold.compaction.boundary import MIN_TAIL_MESSAGES, Plan, split_for_partial_compaction
from midfold.compaction.context import ADDED_FACTOR, FRAME_TOKENS, CompactionContext
from midfold.compaction.previews import EXACT, WHOLE_TEXTS, Ends

MAX_REMAINING_SHARE = 0.9
"""Maximum share of its old size that an effective compaction leaves."""
SUMMARY_TOLERANCE = 1.1
"""Factor on the summary budget above which a summary is truncated."""
ANSWER_FOLDED = "Folded the newest answer too: it only announces tool calls, and the requested size is small."


def plan_whole(job: CompactionContext) -> Plan:
    """Return the plan that keeps everything the settings protect."""
    if job.request.keep_last_exchanges is not None:
        return _partial(job)
    return _whole(job)


def plan_fold(job: CompactionContext) -> Plan:
    """Return the plan that keeps as much of that as fits; notices name the relaxed protections."""
    if job.request.keep_last_exchanges is not None:
        return _partial(job)
    layout, whole = job.layout, _whole(job)
    if job.request.target_tokens is not None:
        return _for_target(job, whole)
    if size_of(job, whole) <= min(job.limit, job.prompt_tokens * MAX_REMAINING_SHARE):
        return whole
    count, floor = len(job.messages), job.request.options.protection.protect_last_n
    is_small = job.prompt_tokens <= job.limit
    last = layout.cut_before(count - (min(floor, count // 2) if is_small else floor))
    protected = _shorten(job, whole.tail_start, last, job.limit)
    if is_small or size_of(job, protected) <= job.limit:
        return protected
    goal = job.comfortable_limit
    half = _shorten(job, protected.tail_start, layout.cut_before(count - min(floor, count // 2)), goal)
    if not _can_fit(job, half, goal):
        half = _relax_tail(job, half, goal)
    return _with_notice(job, half)


def _can_fit(job: CompactionContext, plan: Plan, goal: int) -> bool:
    """Return whether a plan fits `goal` tokens, with long results truncated if necessary."""
    return size_of(job, plan) <= goal or size_of(job, plan, WHOLE_TEXTS) <= goal


def size_of(job: CompactionContext, plan: Plan, ends: Ends = EXACT) -> int:
    """Return the tokens of the view that a plan makes, with a full summary."""
    if not plan.fold():
        return job.staying(plan, ends)
    longest = ADDED_FACTOR if job.request.target_tokens is None else SUMMARY_TOLERANCE
    return job.staying(plan, ends) + int(job.summary_budget(plan) * longest) + FRAME_TOKENS + job.words.tokens(plan)


def _whole(job: CompactionContext) -> Plan:
    layout = job.layout
    if job.request.target_tokens is not None:
        return layout.plan(min(layout.protection.protect_last_n, MIN_TAIL_MESSAGES))
    plan = layout.plan()
    wants_fold = job.request.force and not job.request.ahead and job.prompt_tokens <= job.limit
    return layout.useful_middle() if wants_fold and not job.new_turns(plan) else plan


def _shorten(job: CompactionContext, first: int, last: int, limit: int) -> Plan:
    """Return the plan with the longest tail from `first` to `last` that fits; the one from `last` if none does."""
    layout = job.layout
    cuts = layout.cuts_between(first, last)
    goal = min(limit, job.prompt_tokens * MAX_REMAINING_SHARE)
    place = bisect_left(
        cuts, True, key=lambda cut: size_of(job, layout.plan_from(cut, pin_budget=layout.pin_budget)) <= goal
    )
    return layout.plan_from(cuts[place] if place < len(cuts) else last, pin_budget=layout.pin_budget)


def _relax_tail(job: CompactionContext, protected: Plan, goal: int) -> Plan:
    """Return the plan with as many of the last messages as fit, their long results truncated."""
    layout, count, floor = job.layout, len(job.messages), job.request.options.protection.protect_last_n
    cuts = layout.cuts_between(protected.tail_start, layout.cut_before(count - min(floor, MIN_TAIL_MESSAGES)))

    def spare(cut: int) -> int:
        return -size_of(job, layout.plan_from(cut, pin_budget=layout.pin_budget), WHOLE_TEXTS)

    for limit in (goal, job.limit):
        place = bisect_left(cuts, -limit, key=spare)
        if place < len(cuts):
            return layout.plan_from(cuts[place], pin_budget=layout.pin_budget)
    return layout.plan_from(cuts[-1]) if cuts else protected


def _with_notice(job: CompactionContext, plan: Plan) -> Plan:
    """Return the plan, adding a notice if it keeps fewer than `protect_last_n` messages."""
    floor, kept = job.request.options.protection.protect_last_n, len(job.messages) - plan.tail_start
    if kept < min(floor, len(job.messages) - job.layout.first):
        why = "with" if _can_fit(job, plan, job.limit) else "even without"
        name = "the target size" if job.request.trigger_tokens else "the threshold"
        limit = f"the view would not be below {name} of {job.limit + 1:,} tokens"
        job.notices.append(
            f"Kept the last {kept} messages instead of the {floor} of protect_last_n: {why} the ones before them "
            f"and with a full-length summary {limit}."
        )
    return plan


def _for_target(job: CompactionContext, whole: Plan) -> Plan:
    """Return the plan with the longest tail that fits its share of the target size; the shortest if none does."""
    layout, max_tokens = job.layout, job.words.staying_tokens
    if job.staying(whole) <= max_tokens:
        return whole
    cuts = layout.cuts_between(whole.tail_start, layout.cut_before(len(job.messages) - MIN_TAIL_MESSAGES))
    place = bisect_left(
        cuts, True, key=lambda cut: job.staying(layout.plan_from(cut, pin_budget=layout.pin_budget)) <= max_tokens
    )
    if place < len(cuts):
        return layout.plan_from(cuts[place], pin_budget=layout.pin_budget)
    shortest = layout.plan_from(cuts[-1]) if cuts else whole
    least = layout.plan_from(layout.cut_before(len(job.messages) - MIN_TAIL_MESSAGES), fold_announcement=True)
    sizes = [job.staying(plan, job.words.ladder[-1]) for plan in (least, shortest)]
    if sizes[1] <= max(max_tokens, sizes[0]):
        return shortest
    job.notices.append(ANSWER_FOLDED)
    return least


def _partial(job: CompactionContext) -> Plan:
    """Return the plan that folds everything before the requested last exchanges."""
    layout = job.layout
    head, _ = split_for_partial_compaction(job.messages, job.request.keep_last_exchanges or 1)
    start = max(cut for cut in layout.cuts if cut <= len(head))
    return Plan(start, start) if start < layout.earliest else layout.plan_from(start, pin_budget=layout.pin_budget)
