"""The built-in engine: head, fold, tail.

    pressure? -> plan -> old results as digests: enough? -> summary of the raw fold -> assemble -> laws -> outcome

Everything between two yields is pure. A compaction that fails, or would not help, returns the transcript it was given.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import ClassVar

from midfold.core.audit import rejection
from midfold.core.boundary import Plan
from midfold.core.budget import Pressure
from midfold.core.compaction import CompactionRequest, Flow, SummaryAnswer
from midfold.core.failures import KEEPS_HISTORY
from midfold.core.fallback import local_summary
from midfold.engines.assemble import WELL_BELOW, assemble, fits
from midfold.engines.base import ContextEngine
from midfold.engines.job import Job
from midfold.engines.landing import without_fold
from midfold.engines.prepass import prune

MOST_STRIKES = 2
"""After so many compactions in a row that did not help, automatic ones stop."""


class Compressor(ContextEngine):
    name: ClassVar[str] = "compressor"

    def should_compress(self, request: CompactionRequest) -> Pressure:
        if request.state.ineffective >= MOST_STRIKES or not request.options.enabled:
            return Pressure.NONE
        return request.budget.pressure(Job(request).prompt_tokens)

    def compress(self, request: CompactionRequest) -> Flow:
        job = Job(request)
        refusal = _refusal(job)
        if refusal:
            return job.unchanged(refusal)
        plan = job.plan()
        pruned = prune(job, plan)
        if pruned is not None:
            return pruned
        plan = _landing_plan(job, plan)
        new = job.new_turns(plan)
        if not new and (request.target_tokens is not None or job.prompt_tokens >= request.budget.threshold_tokens):
            return without_fold(job, plan)
        if not new:
            return job.unchanged("there is nothing between head and tail to fold", plan)
        ask = job.ask(plan, new)
        answer = yield ask
        failure = answer.failure or rejection(answer.text, ask) if answer.source == "model" else answer.failure
        if answer.source == "model" and failure:
            if failure in KEEPS_HISTORY or not request.options.lossy_fallback:
                job.notices += answer.notes
                return job.aborted(failure, answer, plan)
            text, book = local_summary(ask)
            answer = SummaryAnswer(
                text=text,
                facts=(book.kept, book.recoverable, book.estimate),
                source="local",
                failure=failure,
                retry_after=answer.retry_after,
                pause_left=answer.pause_left,
                calls=answer.calls,
                notes=answer.notes,
            )
        return assemble(job, plan, ask, answer)


def _landing_plan(job: Job, plan: Plan) -> Plan:
    """The tail gives way as far as landing needs it, and no further.

    Where even the shortest one does not land, the longest that is clearly below the threshold stays.
    """
    if job.request.keep_last_exchanges is not None:
        return plan
    goals = (job.landing, job.request.budget.threshold_tokens * WELL_BELOW, job.request.budget.threshold_tokens)
    for goal in goals:
        if fits(job, plan, goal):
            return plan
        if fits(job, job.plan(job.tails[0]), goal):
            return _shorter(job, plan, goal)
    return _shorter(job, plan, job.landing)


def _shorter(job: Job, plan: Plan, goal: float) -> Plan:
    """The plan with the longest tail that fits; the shortest one where none does."""
    place = bisect_left(job.tails, True, key=lambda tail: not fits(job, job.plan(tail), goal))
    shorter = job.plan(job.tails[max(place - 1, 0)])
    if len(shorter.folded()) <= len(plan.folded()):
        return plan
    job.notices.append("the tail is shorter than protect_last_n: with all its messages the view would not have landed")
    return shorter


def _refusal(job: Job) -> str:
    request = job.request
    if request.force or request.target_tokens is not None or request.keep_last_exchanges is not None:
        return "" if request.messages else "the conversation is empty"
    if not request.options.enabled:
        return "compression is disabled"
    if request.state.ineffective >= MOST_STRIKES:
        strikes = request.state.ineffective
        return f"the last {strikes} compactions did not help; a forced one, or another model, tries again"
    if request.budget.pressure(job.prompt_tokens) < Pressure.HARD:
        return f"{job.prompt_tokens:,} tokens are below the threshold of {request.budget.threshold_tokens:,}"
    return ""
