"""Giant results that must stay in the view are shown by their beginning and end; the rest is behind a handle.

The largest go first, and the newest batch only if the view would not get below the threshold otherwise.
"""

from __future__ import annotations

from midfold.core.archive import handle_of
from midfold.core.laws import is_human
from midfold.core.message import Message, Part, Text, ToolCall, ToolResult, Transcript
from midfold.core.report import Digest
from midfold.engines.job import Job

PREVIEW = 800
"""Characters kept at each end."""
SMALLEST = 3 * PREVIEW


def spill(
    job: Job, messages: Transcript, view: Transcript, originals: dict[str, tuple[Message, ...]]
) -> tuple[Transcript, list[Digest], tuple[str, ...]]:
    """A view that lands, what was spilled, and what made landing below the threshold impossible."""
    total = job.total(messages)
    limit = max(job.request.budget.threshold_tokens, job.landing) if job.request.target_tokens is None else job.landing
    out = list(messages)
    spilled: list[Digest] = []
    newest = _newest_batch(messages)
    places = {id(message): place for place, message in enumerate(view)}
    candidates = sorted(_candidates(messages), key=lambda item: (-item[0], item[1]))
    for only_old in (True, False):
        for size, index in candidates:
            if total <= (job.landing if only_old else limit):
                break
            if only_old == (index >= newest) or out[index] is not messages[index]:
                continue
            place = places.get(id(messages[index]), -1)
            original = job.messages[place] if place >= 0 else messages[index]
            handle = handle_of(original)
            short = _previewed(messages[index], handle)
            total -= job.size(messages[index]) - job.size(short)
            out[index] = short
            originals[handle] = (original,)
            spilled.append(_entry(place, messages[index], size, short, handle))
    return tuple(out), spilled, _impossible(job, tuple(out), total, limit)


def _newest_batch(messages: Transcript) -> int:
    """Where the newest calls are made; everything from there on has not been worked with yet."""
    for index in range(len(messages) - 1, -1, -1):
        if is_human(messages[index]) or any(isinstance(part, ToolCall) for part in messages[index].parts):
            return index
    return len(messages)


def _candidates(messages: Transcript) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        size = max((len(part.text) for part in message.parts if isinstance(part, ToolResult)), default=0)
        if size > SMALLEST:
            found.append((size, index))
    return found


def _previewed(message: Message, handle: str) -> Message:
    return message.with_parts(tuple(_shown(part, handle) for part in message.parts))


def _shown(part: Part, handle: str) -> Part:
    if not isinstance(part, ToolResult) or len(part.text) <= SMALLEST:
        return part
    others = tuple(item for item in part.parts if not isinstance(item, Text))
    preview = preview_text(part.text, handle)
    return ToolResult(part.call_id, (Text(preview), *others), part.is_error, part.name, wire=part.wire)


def preview_text(text: str, handle: str) -> str:
    left_out = len(text) - 2 * PREVIEW
    gap = f"[… {left_out:,} characters spilled to save context space | unfold {handle} …]"
    return f"{text[:PREVIEW]}\n{gap}\n{text[-PREVIEW:]}"


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


def _impossible(job: Job, messages: Transcript, total: int, limit: int) -> tuple[str, ...]:
    if total <= limit:
        return ()
    largest = max(range(len(messages)), key=lambda index: job.size(messages[index]), default=None)
    reasons = [f"{job.fixed_tokens:,} tokens are system prompt and tools"] if job.fixed_tokens * 2 > limit else []
    if largest is not None:
        message = messages[largest]
        reasons.append(f"messages[{largest}] ({message.role}) alone has {job.size(message):,} tokens and must stay")
    return tuple(reasons)
