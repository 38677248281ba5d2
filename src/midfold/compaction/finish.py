"""Build the outcome and receipt of a compaction, and make its messages legal."""

from __future__ import annotations

import msgspec

from midfold.compaction.archive import Archive, handle_of
from midfold.compaction.boundary import Plan
from midfold.compaction.context import CompactionContext
from midfold.compaction.handoff import filler
from midfold.compaction.receipt import (
    FAILURES,
    Boundary,
    Digest,
    OmittedWords,
    PersistenceRecommendation,
    Receipt,
    Status,
    SummaryFacts,
    account,
)
from midfold.compaction.request import CompactionState, Outcome, SummaryAnswer
from midfold.compaction.tracking import Trail
from midfold.errors import FailureKind
from midfold.transcript.laws import first_turn, may_open
from midfold.transcript.message import Message, Transcript
from midfold.transcript.repairs import Repair, sanitize


def make_outcome(
    job: CompactionContext,
    messages: Transcript,
    receipt: Receipt,
    state: CompactionState,
    archive: Archive | None = None,
    system: Message | None = None,
) -> Outcome:
    return Outcome(
        messages=messages,
        system=system or job.request.system,
        receipt=receipt,
        state=state,
        archive=archive or Archive(),
    )


def make_receipt(
    job: CompactionContext,
    status: Status,
    reason: str,
    plan: Plan | None = None,
    *,
    new: Transcript | None = None,
    summary: SummaryFacts | None = None,
    fold: str = "",
    digests: tuple[Digest, ...] = (),
    repairs: tuple[Repair, ...] = (),
    handles: tuple[str, ...] = (),
    impossible: tuple[str, ...] = (),
    compaction_count: int | None = None,
    persistence: PersistenceRecommendation = "no_persistence_change",
    trail: Trail | None = None,
    omitted_words: tuple[OmittedWords, ...] = (),
) -> Receipt:
    """Return the receipt; `new` are the messages of the view if they changed."""
    budget, omitted = job.request.budget, job.omissions.entries
    pinned = tuple(index for group in plan.pinned for index in group) if plan else ()
    return Receipt(
        status=status,
        reason=reason,
        old_messages=len(job.messages),
        new_messages=len(job.messages if new is None else new),
        old_tokens=job.prompt_tokens,
        new_tokens=job.prompt_tokens if new is None else job.total(new),
        token_basis=job.basis,
        estimated_prompt_tokens=job.estimated_tokens,
        threshold_tokens=budget.threshold_tokens,
        effective_input_window=budget.effective_input_window,
        context_length=budget.context_length,
        window_source=job.request.window_source,
        landing_tokens=job.request.target_tokens or budget.threshold_tokens,
        fixed_tokens=job.fixed_tokens,
        compaction_count=job.state.count if compaction_count is None else compaction_count,
        boundary=Boundary(start=plan.head_end, end=plan.tail_start, pinned=pinned) if plan else None,
        summary=summary or SummaryFacts(),
        fold=fold,
        digests=digests,
        repairs=repairs,
        handles=handles,
        impossible=impossible,
        persistence=persistence,
        trail=trail,
        omitted_words=omitted_words,
        omitted=omitted,
        notices=tuple(dict.fromkeys((*job.notices, *(omission.notice for omission in omitted)))),
    )


def leave(job: CompactionContext, reason: str, plan: Plan | None = None, *, strike: bool = False) -> Outcome:
    """Return an outcome that leaves the conversation unchanged."""
    state = job.state
    if strike:
        strikes = state.ineffective + 1
        state = msgspec.structs.replace(state, ineffective=strikes, ineffective_tokens=job.prompt_tokens)
    return make_outcome(job, job.messages, make_receipt(job, "unchanged", reason, plan), state)


def abort(job: CompactionContext, failure: FailureKind, answer: SummaryAnswer, plan: Plan) -> Outcome:
    """Return the outcome of a failed summary for which no fallback is allowed."""
    reason = f"summary failed ({failure}): {FAILURES[failure].description}; the conversation was not changed"
    report = account(failure, kept=True, retry_after=answer.retry_after, left=answer.pause_left)
    summary = SummaryFacts(failure=failure, retry_after=answer.retry_after, calls=answer.calls, **report._asdict())
    receipt = make_receipt(job, "aborted", reason, plan, summary=summary)
    return make_outcome(job, job.messages, receipt, msgspec.structs.replace(job.state, failure=failure))


def fail(job: CompactionContext, reason: str) -> Outcome:
    """Return the outcome of a failed engine.

    This counts as a strike, so there is no further attempt before there is something new to fold.
    """
    left = leave(job, reason, strike=True)
    receipt = msgspec.structs.replace(left.receipt, status="aborted", notices=(reason, *left.receipt.notices))
    return msgspec.structs.replace(left, receipt=receipt)


def make_legal(
    job: CompactionContext, messages: Transcript, view: Transcript, item_ids: set[str] | None = None
) -> tuple[Transcript, tuple[Repair, ...]]:
    """Return legal messages and the repairs, whose indices are those of the old transcript, `view`.

    `item_ids` are the item ids used before these messages.
    """
    options = job.request.options
    clean, repairs = sanitize(
        messages,
        orphan_calls=options.orphan_calls,
        result_role=options.result_role,
        batches_of_items=options.batches_of_items,
        item_ids=item_ids,
    )
    places = {id(message): index for index, message in enumerate(view)} if repairs else {}
    return clean, tuple(Repair(places.get(id(messages[repair.message]), -1), repair.what) for repair in repairs)


def ensure_user_opens(
    messages: Transcript, repairs: tuple[Repair, ...], fold: str
) -> tuple[Transcript, tuple[Repair, ...]]:
    """Insert a short generated user message if no user message follows the system prompt."""
    first = first_turn(messages)
    if first == len(messages) or may_open(messages[first]):
        return messages, repairs
    opened = (*messages[:first], filler(fold, "user"), *messages[first:])
    return opened, (*repairs, Repair(-1, "inserted a user message before the first turn"))


def missing_originals(job: CompactionContext, view: Transcript, fold: Transcript) -> dict[str, tuple[Message, ...]]:
    """Return originals that are neither in the view nor in the fold (repaired, noted or replaced ones), by handle."""
    present = {id(message) for message in (*view, *fold)}
    return {handle_of(message): (message,) for message in job.messages if id(message) not in present}


def media_digests(job: CompactionContext, fold: frozenset[int] = frozenset()) -> list[Digest]:
    """Return a digest for each message of the view that lost older pictures."""
    return [
        Digest(message=index, kind="media", tool="", characters_before=0, characters_after=0, handle=handle)
        for index, handle in job.media.items()
        if index not in fold
    ]
