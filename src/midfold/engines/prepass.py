"""The cheap pre-pass: old tool results as digests. If that alone lands where a fold should, there is no fold.

Rules of this file:
1. Only messages between head and tail are touched, and of those only tool results over 200 characters, and arguments
   with very long strings.
2. A duplicate refers to a newer copy only if that copy stays whole. Otherwise it gets a digest of its own.
3. Every original keeps a handle.
"""

from __future__ import annotations

from midfold.core.archive import Archive, fold_id, handle_of
from midfold.core.boundary import Plan
from midfold.core.compaction import Outcome
from midfold.core.digest import PLACEHOLDER, back_reference, digest, duplicates, is_digest, shrink_arguments
from midfold.core.message import CALL, RESULT, Media, Message, Part, Text, ToolCall, ToolResult, Transcript
from midfold.core.pairing import Pairing, Place, pair
from midfold.core.report import Digest
from midfold.engines.job import Job

SMALLEST_RESULT = 200
LONG_ARGUMENTS = 2_000
SMALLEST_GAIN = 0.9


def prune(job: Job, plan: Plan) -> Outcome | None:
    """The outcome of digesting alone, or None where a fold is needed."""
    request = job.request
    asked_for_summary = request.keep_last_exchanges is not None or request.focus or request.target_tokens is not None
    if request.options.prune == "off" or asked_for_summary or not _could_suffice(job, plan):
        return None
    work = _Prune(job, plan)
    digested = work.messages()
    messages, repairs = job.sanitized(digested, digested)
    messages, repairs = job.user_first(messages, repairs, fold_id(job.messages))
    new_tokens = job.total(messages)
    if not work.digests or new_tokens > job.landing or new_tokens > job.prompt_tokens * SMALLEST_GAIN:
        return None
    work.originals |= job.missing(messages, ())
    receipt = job.receipt(
        status="pruned",
        reason="digests of old tool results were enough",
        plan=plan,
        new=messages,
        digests=tuple(work.digests),
        repairs=repairs,
        handles=tuple(work.originals),
        persistence="in_place_archive",
    )
    return job.outcome(messages, receipt, job.state, Archive(work.originals))


def _could_suffice(job: Job, plan: Plan) -> bool:
    """Whether removing every result between head and tail would be enough; if not, no digest needs to be made."""
    gain = sum(job.sizes[index] for index in plan.folded() if _is_prunable(job.messages[index]))
    return gain > 0 and job.prompt_tokens - gain <= job.landing


def _is_prunable(message: Message) -> bool:
    return bool(message.kinds & (CALL | RESULT))


class _Prune:
    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        self.plan = plan
        self.digests: list[Digest] = []
        self.originals: dict[str, tuple[Message, ...]] = {}
        self.pairing: Pairing = pair(job.messages)
        self.calls = self.pairing.calls()
        self.folded = frozenset(plan.folded())
        self.copies = duplicates(job.messages, plan.head_end, plan.tail_start)

    def messages(self) -> Transcript:
        out = list(self.job.messages)
        for index in sorted(self.folded):
            message = out[index]
            if _is_prunable(message):
                parts = tuple(
                    self.part(Place(index, number), part, message) for number, part in enumerate(message.parts)
                )
                out[index] = message.with_parts(parts)
        return tuple(out)

    def part(self, place: Place, part: Part, message: Message) -> Part:
        if isinstance(part, ToolResult):
            return self.result(place, part, message)
        if isinstance(part, ToolCall) and len(part.arguments) > LONG_ARGUMENTS:
            short = shrink_arguments(part.arguments, self.job.request.options.argument_characters)
            if len(short) < len(part.arguments):
                self.note(place, "arguments", part.name, len(part.arguments), len(short), message)
                return ToolCall(part.id, part.name, short, wire=part.wire)
        return part

    def result(self, place: Place, result: ToolResult, message: Message) -> ToolResult:
        text = result.text
        has_media = any(isinstance(part, Media) for part in result.parts)
        if (len(text) <= SMALLEST_RESULT and not has_media) or is_digest(text):
            return result
        call_place = self.calls.get(place)
        call = self.job.messages[call_place.message].parts[call_place.part] if call_place else None
        asked = call if isinstance(call, ToolCall) else None
        copy = self.copies.get(place)
        if self.job.request.options.prune == "placeholder":
            kind, short = "placeholder", PLACEHOLDER
        elif copy is not None and copy.message not in self.folded:
            kind, short = (
                "duplicate",
                back_reference(handle_of(self.job.messages[copy.message]), f"message {copy.message}"),
            )
        else:
            kind, short = "digest", digest(asked, result, handle=handle_of(message), redact=self.job.request.redact)
        if len(short) >= len(text) and not has_media:
            return result
        self.note(place, kind, asked.name if asked else result.name or "", len(text), len(short), message)
        return ToolResult(result.call_id, (Text(short),), result.is_error, result.name, wire=result.wire)

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
