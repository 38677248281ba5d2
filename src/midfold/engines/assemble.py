"""Head, handoff, what is pinned, tail: put together so that every law holds.

Rules of this file:
1. The handoff's role avoids neighbours of the same role; it is the user's where nobody has spoken before it. Where no
   role fits, a short generated message stands between. It is never merged into a message of the tail.
2. Kept messages leave as they came, except media older than the newest picture, results spilled to a handle because
   the view would not land otherwise, and repairs; each is in the receipt.
3. A result that is not clearly smaller is thrown away: the transcript stays as it was.
"""

from __future__ import annotations

import msgspec

from midfold.core.archive import PREFIX, Archive, handle_of
from midfold.core.audit import Audit, audited, local_audit, trusted
from midfold.core.boundary import Plan
from midfold.core.compaction import CompactionState, Outcome, SummaryAnswer, SummaryAsk
from midfold.core.estimate import estimate_text
from midfold.core.failures import account
from midfold.core.handles import with_own_handles
from midfold.core.handoff import SYSTEM_NOTE, filler, handoff, recognise
from midfold.core.jsonio import whole
from midfold.core.media import replace_historical_media
from midfold.core.message import Message, Role, Text, Transcript
from midfold.core.report import Digest, SummaryFacts
from midfold.engines.job import FRAME_TOKENS, Job
from midfold.engines.landing import landed

SMALLEST_GAIN = 0.9
LONGEST_SUMMARY = 1.1
"""Times its budget; what is longer is cut."""
WELL_BELOW = 0.75
"""Of the threshold: a view that lands higher would be folded again too soon."""


def fits(job: Job, plan: Plan, goal: float) -> bool:
    """Whether a plan lands at `goal`: what stays, with a full summary and large results spilled, is clearly smaller."""
    total = job.staying(plan) + int(job.summary_budget(plan) * LONGEST_SUMMARY) + FRAME_TOKENS
    return total <= min(goal, job.prompt_tokens * SMALLEST_GAIN)


def assemble(job: Job, plan: Plan, ask: SummaryAsk, answer: SummaryAnswer) -> Outcome:
    """The outcome of a fold."""
    checked = _checked(job, ask, answer)
    body = _own(job, ask, clip_tokens(checked.text, ask.budget_tokens))
    job.notices += answer.notes
    view, originals, digests = _with_placeholders(job)
    system, view = _noted(job, view)
    messages = _joined(view, plan, body, ask)
    messages, repairs = job.sanitized(messages, view)
    messages, repairs = job.user_first(_seamless(messages, ask), repairs, ask.fold)
    messages, spilled, impossible = landed(job, plan, messages, view, originals)
    new_tokens = job.total(messages)
    wanted = job.prompt_tokens if _asked_for(job) else job.prompt_tokens * SMALLEST_GAIN
    if new_tokens >= wanted:
        reason = f"folding would leave {new_tokens:,} of {job.prompt_tokens:,} tokens: too little gain"
        return job.unchanged(reason, plan, strike=not _asked_for(job))
    folded = tuple(job.messages[index] for index in plan.folded())
    originals |= job.missing(messages, folded)
    originals[PREFIX + ask.fold] = folded
    receipt = job.receipt(
        status="compacted",
        reason=_why(job),
        plan=plan,
        new=messages,
        summary=_facts(job, answer, checked, body),
        fold=PREFIX + ask.fold,
        digests=(*digests, *spilled),
        repairs=repairs,
        handles=tuple(originals),
        impossible=impossible,
        compaction_count=job.state.count + 1,
        persistence="in_place_archive",
    )
    return job.outcome(messages, receipt, _next_state(job, ask, answer, body), Archive(originals), system)


def _checked(job: Job, ask: SummaryAsk, answer: SummaryAnswer) -> Audit:
    if answer.source == "local":
        return local_audit(ask, answer)
    return audited(ask, answer.text) if job.request.options.verify else trusted(ask, answer.text)


def _own(job: Job, ask: SummaryAsk, body: str) -> str:
    """The summary without handles that somebody made up, and without halves of characters that clients cut in two."""
    return with_own_handles(whole(body), lambda handle: handle == PREFIX + ask.fold or job.is_handle(handle))


def _asked_for(job: Job) -> bool:
    request = job.request
    return request.force or request.target_tokens is not None or request.keep_last_exchanges is not None


def _why(job: Job) -> str:
    if job.request.keep_last_exchanges is not None:
        kept = job.request.keep_last_exchanges
        last = "the last exchange" if kept == 1 else f"the last {kept} exchanges"
        return f"everything before {last} was folded, as asked"
    if _asked_for(job):
        return "folded, as asked"
    return f"{job.prompt_tokens:,} tokens reached the threshold of {job.request.budget.threshold_tokens:,}"


def _facts(job: Job, answer: SummaryAnswer, checked: Audit, body: str) -> SummaryFacts:
    kind, asked = answer.failure, answer.retry_after
    told = account(kind, kept=False, asked=asked, left=answer.pause_left)._asdict() if kind else {}
    return SummaryFacts(
        **told,
        model=answer.model,
        calls=answer.calls,
        retry_after=answer.retry_after,
        recovered_from=answer.recovered_from,
        unverified=checked.unverified,
        removed=checked.removed,
        quoted=checked.quoted,
        facts_kept=checked.book.kept,
        facts_recoverable=checked.book.recoverable,
        facts_estimate=checked.book.estimate,
        source=answer.source,
        confidence="lower" if answer.source == "local" else "normal",
        tokens=estimate_text(body),
        failure=answer.failure,
        updated_previous=bool(job.state.summary),
    )


def _next_state(job: Job, ask: SummaryAsk, answer: SummaryAnswer, body: str) -> CompactionState:
    state = job.state
    return msgspec.structs.replace(
        state,
        lineage=state.lineage or ask.fold,
        count=state.count + 1,
        summary=body,
        folds=(*state.folds, ask.fold),
        ineffective=0,
        failure=answer.failure,
    )


def _with_placeholders(job: Job) -> tuple[Transcript, dict[str, tuple[Message, ...]], list[Digest]]:
    view, replaced = replace_historical_media(job.messages, handle_of)
    originals: dict[str, tuple[Message, ...]] = {handle: (job.messages[index],) for index, handle in replaced.items()}
    digests = [
        Digest(message=index, kind="media", tool="", characters_before=0, characters_after=0, handle=handle)
        for index, handle in replaced.items()
    ]
    return view, originals, digests


def _noted(job: Job, view: Transcript) -> tuple[Message | None, Transcript]:
    """The note on the first compaction: in the system prompt beside the messages, else in the first system message."""
    if job.request.system is not None:
        return with_note(job.request.system), view
    if view and view[0].role == "system":
        return None, (with_note(view[0]), *view[1:])
    return None, view


def with_note(system: Message) -> Message:
    if SYSTEM_NOTE in system.text:
        return system
    only = system.parts[0] if len(system.parts) == 1 else None
    if isinstance(only, Text) and only.wire is None:
        return system.with_parts((Text(f"{only.text}\n\n{SYSTEM_NOTE}"),))
    return system.with_parts((*system.parts, Text(SYSTEM_NOTE)))


def _joined(view: Transcript, plan: Plan, body: str, ask: SummaryAsk) -> Transcript:
    head = view[: plan.head_end]
    rest = [view[group.start : group.stop] for group in plan.pinned] + [view[plan.tail_start :]]
    rest = [segment for segment in rest if segment]
    before = next((message.role for message in reversed(head) if message.role != "system"), None)
    after = rest[0][0].role if rest else None
    out = [*head, handoff(body, ask.fold, handoff_role(before, after), terse=ask.dense)]
    for segment in rest:
        if not _ends_well(out, segment):
            out.append(filler(ask.fold, "assistant" if out[-1].role == "user" else "user", terse=ask.dense))
        out.extend(segment)
    return tuple(out)


def _ends_well(out: list[Message], segment: Transcript) -> bool:
    return out[-1].role != segment[0].role or out[-1].role not in ("user", "assistant")


def _seamless(messages: Transcript, ask: SummaryAsk) -> Transcript:
    """No neighbour of a message of ours has the same role, also where repairs took something out between them."""
    out: list[Message] = []
    for message in messages:
        ours = recognise(message)
        last = recognise(out[-1]) if out else None
        same = bool(out) and out[-1].role == message.role and message.role in ("user", "assistant")
        if same and ours is not None and ours.kind != "fold":
            continue
        if same and last is not None and last.kind != "fold":
            out.pop()
            same = bool(out) and out[-1].role == message.role
        if same and (ours is not None or last is not None):
            out.append(filler(ask.fold, "assistant" if message.role == "user" else "user", terse=ask.dense))
        out.append(message)
    return tuple(out)


def handoff_role(before: Role | None, after: Role | None) -> Role:
    """The role that differs from both neighbours where there is one; the user's where nobody spoke before."""
    if before is None:
        return "user"
    if before == "user":
        return "assistant"
    return "user" if before == "assistant" or after != "user" else "assistant"


def clip_tokens(text: str, budget: int) -> str:
    """A text cut at a line so that it keeps its budget, with the end saying so."""
    if estimate_text(text) <= budget * LONGEST_SUMMARY:
        return text
    lines = text.split("\n")
    kept: list[str] = []
    used = 12
    for line in lines:
        used += estimate_text(line) + 1
        if used > budget:
            break
        kept.append(line)
    cut = "\n".join(kept) or text[: budget * 2]
    return f"{cut}\n[The rest of this summary did not fit.]"
