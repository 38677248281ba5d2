"""Assemble head, pinned messages, handoff and tail into a legal transcript.

- The handoff's role and position avoid neighbours of the same role; its role is `user` if no turn precedes it. If
  no position fits, a short generated message separates the neighbours. The handoff is never merged into a tail
  message.
- Kept messages are unchanged except for media older than the newest picture, tool results spilled to a handle to
  get the view below the threshold, and repairs. The receipt lists each of these.
- A result that is not smaller is discarded. So is one that is only slightly smaller, unless the caller requested
  the compaction or the view falls below the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from midfold.compaction.archive import PREFIX, Archive, fold_id, handle_of, rewrite_foreign_handles
from midfold.compaction.boundary import Plan, assented_answer
from midfold.compaction.context import CompactionContext
from midfold.compaction.finish import (
    ensure_user_opens,
    leave,
    make_legal,
    make_outcome,
    make_receipt,
    media_digests,
    missing_originals,
)
from midfold.compaction.handoff import SYSTEM_NOTE, filler, handoff, recognise
from midfold.compaction.local.step_handles import can_unfold, short_handle, with_step_handles
from midfold.compaction.omissions import REDACTION_FAILED
from midfold.compaction.planner import MAX_REMAINING_SHARE, SUMMARY_TOLERANCE
from midfold.compaction.previews import LONG, SHORT, Ends, newest_batch, shorten, spill_results
from midfold.compaction.receipt import Digest, OmittedWords, SummaryFacts, account
from midfold.compaction.request import CompactionState, Outcome, SummaryAnswer, SummaryRequest, max_whole_characters
from midfold.compaction.summary_check import Audit, audit_summary, first_words, local_audit, trust_summary
from midfold.compaction.user_record import without_record
from midfold.transcript.jsonio import whole
from midfold.transcript.message import Message, Role, Text, ToolCall, ToolResult, Transcript, plain
from midfold.transcript.repairs import Repair
from midfold.transcript.tokens import estimate_text

# Spilling: tool results that must stay in the view are reduced to their beginning and end; the rest is behind a handle.


MAX_UNSEEN_WINDOW_SHARE = 0.85
"""Maximum share of the window that one view may use to show the model tool results it has not seen yet."""


class Spill:
    """View being shrunk. A message spilled with a long preview may be spilled again with a short one."""

    def __init__(self, job: CompactionContext, messages: Transcript, view: Transcript) -> None:
        self.job = job
        self.messages = messages
        self.out = list(messages)
        self.total = job.total(messages)
        self.digests: dict[int, Digest] = {}
        self.places = {id(message): place for place, message in enumerate(view)}
        self.newest = newest_batch(messages)
        self.answer = assented_answer(job.messages, job.generated_messages)
        self.sizes = sorted(_sizes(messages), key=lambda item: (-item[0], item[1]))

    def original(self, index: int) -> Message:
        place = self.places.get(id(self.messages[index]), -1)
        return self.job.messages[place] if place >= 0 else self.messages[index]

    def until(self, goal: int, preview: int, *, newest: bool) -> None:
        for size, index in self.sizes:
            if self.total <= goal or size <= max_whole_characters(preview):
                return
            if newest == (index >= self.newest):
                self.spill(index, size, preview)

    def shrink(self, goal: int, preview: int) -> None:
        """Spill results until the view has at most `goal` tokens, the newest batch last.

        Results that the model has not seen yet are spilled only if the view is too large to be sent.
        """
        for newest, end in ((False, goal), (True, max(goal, self._sendable))):
            self.until(end, LONG, newest=newest)
            self.until(end, preview, newest=newest)
        self.restore(goal)

    @property
    def _sendable(self) -> int:
        """Maximum tokens of a view that may be sent so that the model sees its newest tool results once."""
        request, below = self.job.request, self.job.request.trigger_tokens - 1
        is_seen = any(message.role == "assistant" for message in self.messages[self.newest + 1 :])
        if request.target_tokens is not None or request.overflowed or is_seen:
            return below
        return max(below, int(request.budget.effective_input_window * MAX_UNSEEN_WINDOW_SHARE))

    def restore(self, goal: int) -> None:
        """Restore the spilled results that fit after all, smallest first."""
        for _, index in reversed(self.sizes):
            grown = self.total + self.job.size(self.messages[index]) - self.job.size(self.out[index])
            if index in self.digests and grown <= goal:
                self.out[index], self.total = self.messages[index], grown
                del self.digests[index]

    def spill(self, index: int, size: int, preview: int) -> None:
        message, handle = self.messages[index], self.handle(index)
        short = spill_results(message, handle, preview)
        self.replace(index, short, _entry(self.place(index), message, size, short, handle))

    def handle(self, index: int) -> str:
        return handle_of(self.original(index))

    def place(self, index: int) -> int:
        """Return the index of the message in the old transcript; -1 for a generated message."""
        return self.places.get(id(self.messages[index]), -1)

    def replace(self, index: int, short: Message, entry: Digest) -> None:
        self.total -= self.job.size(self.out[index]) - self.job.size(short)
        self.out[index] = short
        self.digests[index] = entry


def _sizes(messages: Transcript) -> list[tuple[int, int]]:
    """Return the length of the longest tool result and the index of each message that has tool results."""
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        size = max((len(part.text) for part in message.parts if isinstance(part, ToolResult)), default=0)
        if size:
            found.append((size, index))
    return found


def _entry(position: int, message: Message, size: int, short: Message, handle: str) -> Digest:
    after = sum(len(part.text) for part in short.parts if isinstance(part, ToolResult))
    names = [part.name for part in message.parts if isinstance(part, ToolResult) and part.name]
    return Digest(
        message=position,
        kind="spill",
        tool=names[0] if names else "",
        characters_before=size,
        characters_after=after,
        handle=handle,
    )


# Last resort for an explicit target size: shorten long texts and arguments that must stay.
#
# Applies only with `target_tokens` when the view is still too large after everything else; largest messages first. Each
# original is behind its handle and listed in the receipt.


TRUNCATED_NOTICE = (
    "The requested size is smaller than the messages that must stay. Truncated some of them; the originals are behind "
    "their handles."
)


def squeeze(work: Spill, goal: int, ends: Ends) -> None:
    """Shorten messages that must stay until the view has at most `goal` tokens or nothing more can be shortened."""
    order = sorted(range(len(work.out)), key=lambda index: (-work.job.size(work.out[index]), index))
    for index in order:
        if work.total <= goal:
            return
        message = work.out[index]
        if recognise(message) is not None:
            continue
        handle = work.handle(index)
        short = shorten(message, handle, ends.of_answer if work.place(index) == work.answer else ends)
        saved = work.job.size(message) - work.job.size(short)
        if saved > 0:
            work.replace(index, short, _short_entry(work, index, message, short, handle))
            work.job.notices.append(TRUNCATED_NOTICE)


def _short_entry(work: Spill, index: int, message: Message, short: Message, handle: str) -> Digest:
    calls = [part.name for part in message.parts if isinstance(part, ToolCall)]
    return Digest(
        message=work.place(index),
        kind="arguments" if calls else "spill",
        tool=calls[0] if calls else "",
        characters_before=_length(message),
        characters_after=_length(short),
        handle=handle,
    )


def _length(message: Message) -> int:
    texts = [len(part.text) for part in message.parts if isinstance(part, Text)]
    return sum(texts) + sum(len(part.arguments) for part in message.parts if isinstance(part, ToolCall))


# Shrink a view that is too large to clearly below the threshold, so that the next turn does not trigger it again.
#
# Order: the largest old results with a long preview, then with a short one, then the newest batch. Results that fit
# afterwards are restored.


def shrink_results(
    job: CompactionContext,
    plan: Plan,
    messages: Transcript,
    view: Transcript,
    originals: dict[str, tuple[Message, ...]],
) -> tuple[Transcript, list[Digest], tuple[str, ...]]:
    """Return a view that fits, its digests, and the reasons if it cannot be made to fit."""
    work = _shrink(job, plan, messages, view)
    originals |= {digest.handle: (work.original(index),) for index, digest in work.digests.items()}
    return tuple(work.out), list(work.digests.values()), _impossible(job, tuple(work.out), work.total)


def _shrink(job: CompactionContext, plan: Plan, messages: Transcript, view: Transcript) -> Spill:
    work = Spill(job, messages, view)
    if job.request.target_tokens is None:
        work.shrink(job.limit if work.total <= job.limit else int(job.limit * MAX_REMAINING_SHARE), SHORT)
        return work
    least, notices = job.ends(plan), list(job.notices)
    for ends in job.words.ladder:
        work = Spill(job, messages, view)
        job.notices = list(notices)
        work.shrink(job.limit, ends.results)
        squeeze(work, job.limit, ends)
        if work.total <= job.limit or ends == least:
            break
    return work


def without_fold(job: CompactionContext, plan: Plan) -> Outcome:
    """Return the outcome for a transcript that is too large but has nothing to fold: long parts are truncated.

    Without an explicit target size only tool results are truncated.
    """
    reason = "there is nothing between head and tail to fold"
    messages, repairs = make_legal(job, job.view, job.view)
    messages, repairs = ensure_user_opens(messages, repairs, fold_id(job.messages))
    originals: dict[str, tuple[Message, ...]] = {}
    messages, spills, impossible = shrink_results(job, plan, messages, job.view, originals)
    media = media_digests(job)
    if not (spills or media) or job.total(messages) >= job.prompt_tokens:
        return leave(job, reason, plan)
    originals |= missing_originals(job, messages, ())
    receipt = make_receipt(
        job,
        "pruned",
        f"{reason}: truncated long parts",
        plan,
        new=messages,
        digests=(*media, *spills),
        repairs=repairs,
        handles=tuple(originals),
        impossible=impossible,
        persistence="in_place_archive",
    )
    return make_outcome(job, messages, receipt, job.state, Archive(originals))


def _impossible(job: CompactionContext, messages: Transcript, total: int) -> tuple[str, ...]:
    if total <= job.limit:
        return ()
    largest = max(range(len(messages)), key=lambda index: job.size(messages[index]), default=None)
    reasons = [f"system prompt and tools take {job.fixed_tokens:,} tokens"] if job.fixed_tokens * 2 > job.limit else []
    if largest is not None:
        message = messages[largest]
        reasons.append(f"messages[{largest}] ({message.role}) has {job.size(message):,} tokens and must stay")
    return tuple(reasons)


MIN_FREE_SHARE = 0.1
"""Minimum share of the threshold that an effective compaction leaves free."""
MAX_OMITTED = 200
"""Maximum number of messages that a receipt lists as omitted."""
NOTICE_SHARE = 0.75
"""Share of the threshold above which the receipt says how many tokens are left until the next compaction."""


def assemble(job: CompactionContext, plan: Plan, request: SummaryRequest, answer: SummaryAnswer) -> Outcome:
    """Return the outcome of a compaction."""
    answer = msgspec.structs.replace(answer, text=without_record(answer.text))
    audit = _audit(job, request, answer)
    summary = without_record(_own(job, request, clip_tokens(audit.text, request.max_answer_tokens)))
    if request.handle_tokens:
        summary = _with_handles(job, plan, request, summary)
    body = ("\n" if request.dense else "\n\n").join(filter(None, [whole(request.words.text), summary]))
    job.notices += answer.notes
    originals: dict[str, tuple[Message, ...]] = {}
    job.new_system, view = _with_note(job)
    messages, repairs = _repair(job, _join(job, view, plan, body, request), view)
    messages, joined = _seat_system(job, _seamless(messages, request), request)
    messages, repairs = ensure_user_opens(messages, (*repairs, *joined), request.fold)
    messages, spills, impossible = shrink_results(job, plan, messages, view, originals)
    new_tokens, threshold = job.total(messages), job.request.budget.threshold_tokens
    is_effective = job.request.is_explicit or new_tokens < job.prompt_tokens * MAX_REMAINING_SHARE
    if new_tokens >= job.prompt_tokens or not (is_effective or new_tokens < threshold):
        reason = f"compacting would leave {new_tokens:,} of {job.prompt_tokens:,} tokens: too little gain"
        return leave(job, reason, plan, strike=not job.request.is_explicit)
    if job.request.target_tokens is None and threshold * NOTICE_SHARE < new_tokens < threshold:
        job.notices.append(f"Only {threshold - new_tokens:,} tokens are left until the next compaction.")
    places = plan.fold()
    fold = tuple(job.messages[index] for index in places)
    originals |= missing_originals(job, messages, fold)
    originals[PREFIX + request.fold] = fold
    receipt = make_receipt(
        job,
        "compacted",
        _why(job),
        plan,
        new=messages,
        summary=_facts(job, answer, audit, summary),
        omitted_words=_omitted_words(job, request),
        fold=PREFIX + request.fold,
        digests=(*media_digests(job, frozenset(places)), *spills),
        repairs=repairs,
        handles=tuple(originals),
        impossible=impossible,
        compaction_count=job.state.count + 1,
        persistence="in_place_archive",
        trail=request.trail,
    )
    lasts = job.request.is_explicit or new_tokens <= threshold * (1 - MIN_FREE_SHARE)
    state = _next_state(job, request, answer, body, is_effective=is_effective and lasts, size=new_tokens)
    return make_outcome(job, messages, receipt, state, Archive(originals), job.new_system)


def _omitted_words(job: CompactionContext, request: SummaryRequest) -> tuple[OmittedWords, ...]:
    """Return the user's words that did not fit, and add a notice. Words carried over are behind the fold's handle."""
    omitted = request.words.omitted
    if omitted:
        tokens = sum(words.tokens for words in omitted)
        job.notices.append(
            f"{tokens:,} tokens of the user's rules, decisions or tasks in {len(omitted):,} message(s) did not fit. "
            "omitted_words has their handles; request a larger size to keep them."
        )
    return tuple(
        msgspec.structs.replace(words, handle=words.handle or PREFIX + request.fold) for words in omitted[:MAX_OMITTED]
    )


def _repair(job: CompactionContext, messages: Transcript, view: Transcript) -> tuple[Transcript, tuple[Repair, ...]]:
    """Return legal messages and the repairs; no result after the handoff answers a call before it."""
    known = {id(message) for message in view}
    end = 1 + next(index for index, message in enumerate(messages) if id(message) not in known and _is_handoff(message))
    item_ids: set[str] = set()
    before, first = make_legal(job, messages[:end], view, item_ids)
    after, then = make_legal(job, messages[end:], view, item_ids)
    return (*before, *after), (*first, *then)


def _audit(job: CompactionContext, request: SummaryRequest, answer: SummaryAnswer) -> Audit:
    """Return the checked summary; if the check fails, the redacted summary, or a placeholder if redaction fails
    too.
    """
    attempt = job.omissions.attempt
    checked = attempt("summary check", _check_of(job, request, answer), None)
    return checked or attempt("redaction", lambda: trust_summary(request, answer.text), Audit(REDACTION_FAILED))


def _check_of(job: CompactionContext, request: SummaryRequest, answer: SummaryAnswer) -> Callable[[], Audit]:
    if answer.source == "local":
        return lambda: local_audit(request, answer)
    if not job.request.options.verify:
        return lambda: trust_summary(request, answer.text)
    return lambda: audit_summary(request, answer.text, strict=answer.strict)


def _own(job: CompactionContext, request: SummaryRequest, body: str) -> str:
    """Return the summary without made-up handles and lone surrogates."""
    return rewrite_foreign_handles(whole(body), lambda handle: handle == PREFIX + request.fold or job.is_handle(handle))


def _with_handles(job: CompactionContext, plan: Plan, request: SummaryRequest, body: str) -> str:
    """Add step handles to the summary.

    A handle is valid if the keeper knows it; without a keeper, if this fold archives its message.
    """
    folded = tuple(job.messages[index] for index in plan.fold() if index not in job.generated_messages)
    archived = {short_handle(message) for message in folded} if job.request.keeper is None else frozenset()
    earlier = job.words.previous_summary

    def is_own(handle: str) -> bool:
        return handle in archived or job.is_handle(handle)

    return job.omissions.attempt(
        "step handles", lambda: with_step_handles(body, request, folded, earlier, is_own), body
    )


def _why(job: CompactionContext) -> str:
    if job.request.keep_last_exchanges is not None:
        kept = job.request.keep_last_exchanges
        last = "the last exchange" if kept == 1 else f"the last {kept} exchanges"
        return f"everything before {last} was folded, as requested"
    if job.request.is_explicit:
        return "the provider refused the request as too large" if job.request.overflowed else "folded, as requested"
    return f"{job.prompt_tokens:,} tokens reached the threshold of {job.request.budget.threshold_tokens:,}"


def _facts(job: CompactionContext, answer: SummaryAnswer, audit: Audit, body: str) -> SummaryFacts:
    kind, retry_after = answer.failure, answer.retry_after
    report = account(kind, kept=False, retry_after=retry_after, left=answer.pause_left)._asdict() if kind else {}
    return SummaryFacts(
        **report,
        model=answer.model,
        calls=answer.calls,
        retry_after=answer.retry_after,
        recovered_from=answer.recovered_from,
        unverified=audit.unverified,
        removed=audit.removed,
        quoted=audit.quoted,
        facts_kept=audit.book.kept,
        facts_recoverable=audit.book.recoverable,
        facts_estimate=audit.book.estimate,
        source=answer.source,
        confidence="lower" if answer.source == "local" else "normal",
        tokens=estimate_text(body),
        failure=answer.failure,
        updated_previous=bool(job.state.summary),
    )


def _next_state(
    job: CompactionContext, request: SummaryRequest, answer: SummaryAnswer, body: str, *, is_effective: bool, size: int
) -> CompactionState:
    state = job.state
    return msgspec.structs.replace(
        state,
        lineage=state.lineage or request.fold,
        count=state.count + 1,
        summary=body,
        folds=(*state.folds, request.fold),
        trail=request.folded_trail,
        ineffective=0 if is_effective else state.ineffective + 1,
        ineffective_tokens=0 if is_effective else size,
        failure=answer.failure,
    )


def _with_note(job: CompactionContext) -> tuple[Message | None, Transcript]:
    """Add the compaction note to the separate system prompt, or else to the first system message."""
    view = job.view
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


def _join(job: CompactionContext, view: Transcript, plan: Plan, body: str, request: SummaryRequest) -> Transcript:
    """Join head, pinned messages, client instructions, handoff and tail with as few generated messages as possible.

    The handoff may precede pinned messages, which are also part of the folded span. Of equal positions the last is
    used.
    """
    kept = {group.start: view[group.start : group.stop] for group in plan.pinned}
    kept |= {place: (job.instructions.stays[place],) for place in plan.partial}
    places = sorted(kept)
    first = 1 + max((number for number, at in enumerate(places, 1) if at in job.instructions.stays), default=0)
    segments = [view[: plan.head_end], *(kept[place] for place in places), view[plan.tail_start :]]
    unfolds = can_unfold(job.request)

    def join_at(at: int) -> Transcript:
        out: list[Message] = []
        for segment in segments[:at]:
            _append(out, segment, request)
        last = next((message.role for message in reversed(out) if message.role != "system"), None)
        role = handoff_role(last, next((segment[0].role for segment in segments[at:] if segment), None))
        _append(out, (handoff(body, request.fold, role, terse=request.dense, unfolds=unfolds),), request)
        for segment in segments[at:]:
            _append(out, segment, request)
        return tuple(out)

    return min((join_at(at) for at in range(len(segments) - 1, first - 1, -1)), key=len)


def _is_handoff(message: Message) -> bool:
    generated = recognise(message)
    return generated is not None and generated.kind == "fold"


def _append(out: list[Message], segment: Transcript, request: SummaryRequest) -> None:
    """Append messages, preceded by a filler if neighbours would share a role or the assistant would speak first."""
    first = segment[0].role if segment else None
    last = next((message.role for message in reversed(out) if message.role != "other"), None)
    if first == last == "user":
        out.append(filler(request.fold, "assistant", terse=request.dense))
    elif first == "assistant" and (last == first or not any(message.role == "user" for message in out)):
        out.append(filler(request.fold, "user", terse=request.dense))
    out.extend(segment)


def _seamless(messages: Transcript, request: SummaryRequest) -> Transcript:
    """Insert or remove fillers so that no generated message has a neighbour of the same role, even after repairs."""
    out: list[Message] = []
    for message in messages:
        generated = recognise(message)
        last = recognise(out[-1]) if out else None
        same = bool(out) and out[-1].role == message.role and message.role in ("user", "assistant")
        if same and generated is not None and generated.kind != "fold":
            continue
        if same and last is not None and last.kind != "fold":
            out.pop()
            same = bool(out) and out[-1].role == message.role
        if same and (generated is not None or last is not None):
            out.append(filler(request.fold, "assistant" if message.role == "user" else "user", terse=request.dense))
        out.append(message)
    return tuple(out)


def _seat_system(
    job: CompactionContext, messages: Transcript, request: SummaryRequest
) -> tuple[Transcript, tuple[Repair, ...]]:
    """Place system messages in the middle legally after their neighbours were folded.

    Anthropic accepts them only directly after a user message, at the end or before an assistant message, and never
    two in a row. Adjacent ones are merged unless one has settings of its own.
    """
    begins_so = bool(job.messages) and job.messages[0].role == "system"
    if job.request.options.result_role != "user" or begins_so:
        return messages, ()
    places = {id(message): index for index, message in enumerate(job.view)}
    out: list[Message] = []
    joined: list[Message] = []
    for message in messages:
        last = out[-1].role if out else None
        if message.role == last == "system" and not (_has_settings(out[-1]) or _has_settings(message)):
            joined += [out[-1], message]
            out[-1] = out[-1].with_parts((*out[-1].parts, *message.parts))
            continue
        if message.role == last == "system":
            out.append(filler(request.fold, "assistant", terse=request.dense))
        if message.role == "system" and last != "user":
            out.append(filler(request.fold, "user", terse=request.dense))
        elif message.role == "user" and last == "system":
            out.append(filler(request.fold, "assistant", terse=request.dense))
        out.append(message)
    found = (places[id(message)] for message in joined if id(message) in places)
    return tuple(out), tuple(Repair(place, "merged adjacent system messages") for place in found)


def _has_settings(message: Message) -> bool:
    """Return whether a message has keys beside role and content, such as cache settings."""
    origin = plain(message.origin)
    return isinstance(origin, Mapping) and not origin.keys() <= {"role", "content"}


def handoff_role(before: Role | None, after: Role | None) -> Role:
    """Return a role that differs from both neighbours if possible; `user` if no turn precedes it."""
    if before is None:
        return "user"
    if before == "user":
        return "assistant"
    return "user" if before == "assistant" or after != "user" else "assistant"


def clip_tokens(text: str, budget: int) -> str:
    """Return a text truncated to its token budget, ending with a line that says so."""
    if estimate_text(text) <= budget * SUMMARY_TOLERANCE:
        return text
    kept: list[str] = []
    left = budget - 12
    for line in text.split("\n"):
        size = estimate_text(line) + 1
        if size > left:
            kept += filter(None, [first_words(line, left)])
            break
        left -= size
        kept.append(line)
    cut = "\n".join(kept) or text[: budget * 2]
    return f"{cut}\n[The rest of this summary did not fit.]"
