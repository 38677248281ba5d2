"""The built-in engine: keep head and tail, replace the fold between them by a summary.

    plan -> digest old results: enough? -> summarize the raw fold -> assemble -> check laws -> outcome

Everything between two yields is pure. A compaction that fails, or would not help, returns the original transcript.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from midfold.compaction.archive import Archive, fold_id, handle_of
from midfold.compaction.assemble import assemble, without_fold
from midfold.compaction.boundary import Plan
from midfold.compaction.budget import Pressure
from midfold.compaction.context import CompactionContext
from midfold.compaction.finish import (
    abort,
    ensure_user_opens,
    leave,
    make_legal,
    make_outcome,
    make_receipt,
    media_digests,
    missing_originals,
)
from midfold.compaction.local.digest import PLACEHOLDER, back_reference, digest, duplicates, is_digest, shrink_arguments
from midfold.compaction.local.local_summary import local_summary
from midfold.compaction.planner import MAX_REMAINING_SHARE, plan_fold, plan_whole, size_of
from midfold.compaction.receipt import KEEPS_HISTORY, Digest
from midfold.compaction.redact import redact_arguments
from midfold.compaction.request import CompactionRequest, Flow, Outcome, SummaryAnswer
from midfold.compaction.summary_check import accept, lacking
from midfold.engines.contract import ContextEngine
from midfold.transcript.laws import Pairing, Place, pair
from midfold.transcript.message import CALL, RESULT, Media, Message, Part, Text, ToolCall, ToolResult, Transcript

# Cheap first step: replace old tool results by digests. If that is enough, nothing is folded. Only messages between
# head and tail change: tool results over 200 characters and arguments with very long strings. A duplicate refers to a
# newer copy only if that copy stays whole, else it gets its own digest. Every original keeps a handle. Work stops as
# soon as digests cannot reach the target.


MIN_DIGESTED_CHARACTERS = 200
LONG_ARGUMENT_CHARACTERS = 2_000
ENOUGH_SHARE = 0.5
"""Fraction of the threshold. Digests suffice if they reach this or the size after a compaction, unless that is so
large that the next rewrite of the cached prefix would follow after few turns (`CompactionContext.comfortable_limit`).
"""
MIN_DIGEST_TOKENS = 12
"""Minimum tokens of a digest: its handle and a few words."""
MAX_CHARACTERS_PER_TOKEN = 6
"""Maximum characters per token of a digest, with a margin."""
SIZE_TOLERANCE = 1.1
"""Tolerance for the rough digest sizes before they are built: targets within this factor are tried."""


EMPTY_PLAN = Plan(0, 0)
"""Plan that folds nothing."""


def prune(job: CompactionContext, plan: Plan) -> Outcome | None:
    """Return the outcome of digesting alone, or None if a fold is needed."""
    request = job.request
    needs_summary = request.keep_last_exchanges is not None or request.focus or request.target_tokens is not None
    slack = -1.0 if request.options.prune == "off" or needs_summary else _slack(job, plan)
    if slack < 0:
        return None
    work = _Prune(job, plan, slack)
    shown = work.messages()
    if shown is None:
        return None
    messages, repairs = make_legal(job, shown, shown)
    messages, repairs = ensure_user_opens(messages, repairs, fold_id(job.messages))
    new_tokens = job.total(messages)
    digests = (*media_digests(job), *work.digests)
    if (
        not digests
        or new_tokens > _max_digested_size(job, plan)
        or new_tokens > job.prompt_tokens * MAX_REMAINING_SHARE
    ):
        return None
    work.originals |= missing_originals(job, messages, ())
    receipt = make_receipt(
        job,
        "pruned",
        f"{'digests of old tool results' if work.digests else 'placeholders for old images'} were enough",
        plan,
        new=messages,
        digests=digests,
        repairs=repairs,
        handles=tuple(work.originals),
        persistence="in_place_archive",
    )
    return make_outcome(job, messages, receipt, job.state, Archive(work.originals))


def _max_digested_size(job: CompactionContext, plan: Plan) -> int:
    """Return the maximum size at which digests suffice: the size after a compaction, but some turns away from the next
    rewrite.
    """
    return min(max(int(job.request.budget.threshold_tokens * ENOUGH_SHARE), size_of(job, plan)), job.comfortable_limit)


def _slack(job: CompactionContext, plan: Plan) -> float:
    """Return how many tokens the view would be below the target with minimal digests; negative if above."""
    view, sizes, scale, fold = job.view, job.sizes, job.scale, plan.fold()
    slack = _max_digested_size(job, plan) * SIZE_TOLERANCE - (
        job.staying(EMPTY_PLAN) - sum(map(sizes.__getitem__, fold))
    )
    gain = 0.0
    for index in fold:
        saving = _max_saving(view[index], sizes[index], scale) if _is_prunable(view[index]) else 0.0
        gain += saving
        slack -= sizes[index] - saving
        if slack < 0:
            break
    return slack if gain > 0 or job.media else -1.0


def _max_saving(message: Message, size: int, scale: float) -> float:
    """Return the maximum tokens that digests and shorter arguments can save in a message."""
    results = 0
    for part in message.parts:
        if isinstance(part, ToolCall):
            if len(part.arguments) > LONG_ARGUMENT_CHARACTERS:
                return size
        elif isinstance(part, ToolResult):
            results += _is_long(part)
    return max(size - results * MIN_DIGEST_TOKENS * scale, 0.0) if results else 0.0


def _is_long(result: ToolResult) -> bool:
    return len(result.text) > MIN_DIGESTED_CHARACTERS or any(isinstance(part, Media) for part in result.parts)


def _is_prunable(message: Message) -> bool:
    return bool(message.kinds & (CALL | RESULT))


class _Prune:
    def __init__(self, job: CompactionContext, plan: Plan, slack: float) -> None:
        self.job = job
        self.plan = plan
        self.slack = slack
        self.digests: list[Digest] = []
        self.originals: dict[str, tuple[Message, ...]] = {}
        self.pairing: Pairing = pair(job.messages)
        self.calls = self.pairing.calls()
        self.fold = frozenset(plan.fold())
        self.copies = duplicates(job.messages, plan.head_end, plan.tail_start)

    def messages(self) -> Transcript | None:
        """Return the messages with digests, or None as soon as they cannot reach the target."""
        out = list(self.job.view)
        for index in sorted(self.fold):
            message = out[index]
            if _is_prunable(message):
                original = self.job.messages[index]
                parts = tuple(
                    self.part(Place(index, number), part, original) for number, part in enumerate(message.parts)
                )
                out[index] = message.with_parts(parts)
                if self.slack < 0:
                    return None
        return tuple(out)

    def part(self, place: Place, part: Part, message: Message) -> Part:
        if isinstance(part, ToolResult):
            return self.result(place, part, message)
        if isinstance(part, ToolCall) and len(part.arguments) > LONG_ARGUMENT_CHARACTERS:
            limit = self.job.request.options.argument_characters
            short = self.job.omissions.attempt(
                "tool arguments", lambda: self.arguments(part.arguments, limit), part.arguments
            )
            if len(short) < len(part.arguments):
                self.note(place, "arguments", part.name, len(part.arguments), len(short), message)
                return ToolCall(part.id, part.name, short, wire=part.wire)
        return part

    def result(self, place: Place, result: ToolResult, message: Message) -> ToolResult:
        text = result.text
        has_media = any(isinstance(part, Media) for part in result.parts)
        if not _is_long(result):
            return result
        if is_digest(text):
            self.count(text)
            return result
        call_place = self.calls.get(place)
        call = self.job.messages[call_place.message].parts[call_place.part] if call_place else None
        known_call = call if isinstance(call, ToolCall) else None
        copy = self.copies.get(place)
        if self.job.request.options.prune == "placeholder":
            kind, short = "placeholder", PLACEHOLDER
        elif copy is not None and copy.message not in self.fold:
            kind, short = (
                "duplicate",
                back_reference(handle_of(self.job.messages[copy.message]), f"message {copy.message}"),
            )
        else:
            kind, short = "digest", self.digest(known_call, result, handle_of(message))
        self.count(min(short, text, key=len))
        if len(short) >= len(text) and not has_media:
            return result
        self.note(place, kind, known_call.name if known_call else result.name or "", len(text), len(short), message)
        return ToolResult(result.call_id, (Text(short),), result.is_error, result.name, wire=result.wire)

    def digest(self, call: ToolCall | None, result: ToolResult, handle: str) -> str:
        """Return the digest of a result, or the result's own text if none can be made."""
        redact = self.job.request.redact
        return self.job.omissions.attempt(
            "tool digest", lambda: digest(call, result, handle=handle, redact=redact), result.text or PLACEHOLDER
        )

    def arguments(self, text: str, max_characters: int) -> str:
        """Return shortened arguments, redacted before they are cut, or the same text if nothing is long."""
        if shrink_arguments(text, max_characters) is text:
            return text
        return shrink_arguments(redact_arguments(text, self.job.request.redact), max_characters)

    def count(self, text: str) -> None:
        """Subtract what a shown result exceeds the minimal digest by."""
        more = len(text) // MAX_CHARACTERS_PER_TOKEN - MIN_DIGEST_TOKENS
        self.slack -= max(more, 0) * self.job.scale

    def note(self, place: Place, kind: str, tool: str, before: int, after: int, message: Message) -> None:
        handle = handle_of(message)
        self.originals[handle] = (message,)
        self.digests.append(
            Digest(
                message=place.message,
                kind=kind,  # type: ignore[arg-type]
                tool=tool,
                characters_before=before,
                characters_after=after,
                handle=handle,
            )
        )


class Compressor(ContextEngine):
    """The built-in engine: head, fold, tail. Subclass it to change parts of it."""

    name: ClassVar[str] = "compressor"
    reads_messages: ClassVar[bool] = False

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return request.budget.pressure(CompactionContext(request).prompt_tokens)

    def compress(self, request: CompactionRequest) -> Flow:
        """Compact now; `should_compress` and the host have already decided when."""
        job = CompactionContext(request)
        if not job.messages:
            return leave(job, "the conversation is empty")
        pruned = prune(job, plan_whole(job))
        if pruned is not None:
            return pruned
        plan = plan_fold(job)
        new = job.new_turns(plan)
        if not new and (request.target_tokens is not None or job.prompt_tokens >= request.budget.threshold_tokens):
            return without_fold(job, plan)
        if not new:
            return leave(job, "there is nothing between head and tail to fold", plan)
        ask = job.ask(plan, new)
        answer = yield ask
        check = job.omissions.attempt
        by_model, lossy = answer.source == "model", request.options.lossy_fallback
        missing = ""
        if by_model and answer.strict and not answer.failure:
            missing = check("summary check", lambda: lacking(answer.text, ask), "")
        if missing:
            ask = msgspec.structs.replace(ask, missing=missing)
            answer = yield ask
        failure = answer.failure
        if not failure and by_model:
            failure, doubt = check("summary check", lambda: accept(answer, ask, is_whole=bool(missing)), ("", ""))
            job.notices += filter(None, [doubt])
        elif not failure and not lossy:
            failure = "no_provider"
        if failure and (failure in KEEPS_HISTORY or not lossy):
            job.notices += answer.notes
            return abort(job, failure, answer, plan)
        if failure and by_model:
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


class Noop(ContextEngine):
    """Engine that never compacts, for measurements and for hosts that want everything else."""

    name: ClassVar[str] = "noop"
    reads_messages: ClassVar[bool] = False

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.NONE

    def compress(self, request: CompactionRequest) -> Flow:
        yield from ()
        return leave(CompactionContext(request), "the engine never compacts")
