"""Results that must stay in the view are shown by their beginning and end; the rest is behind a handle.

To land, the largest old ones go, with a long preview. Only if the view would not get below the threshold otherwise do
shorter ones go too, with a short preview, and the newest batch, which nobody has worked with yet.
"""

from __future__ import annotations

from midfold.core.archive import handle_of
from midfold.core.message import Message, Part, Text, ToolCall, ToolResult, Transcript
from midfold.core.report import Digest
from midfold.engines.job import Job

LONG, SHORT = 800, 150
"""Characters kept at each end."""


def spill(
    job: Job, messages: Transcript, view: Transcript, originals: dict[str, tuple[Message, ...]]
) -> tuple[Transcript, list[Digest], tuple[str, ...]]:
    """A view that lands, what was spilled, and what made landing below the threshold impossible."""
    limit = max(job.request.budget.threshold_tokens, job.landing) if job.request.target_tokens is None else job.landing
    work = _Spill(job, messages, view)
    work.until(job.landing, LONG, newest=False)
    work.until(limit, SHORT, newest=False)
    work.until(limit, LONG, newest=True)
    work.until(limit, SHORT, newest=True)
    originals |= {digest.handle: (work.original(index),) for index, digest in work.spilled.items()}
    return tuple(work.out), list(work.spilled.values()), _impossible(job, tuple(work.out), work.total, limit)


class _Spill:
    """The view as it shrinks. A message that was spilled with a long preview may be spilled again with a short one."""

    def __init__(self, job: Job, messages: Transcript, view: Transcript) -> None:
        self.job = job
        self.messages = messages
        self.out = list(messages)
        self.total = job.total(messages)
        self.spilled: dict[int, Digest] = {}
        self.places = {id(message): place for place, message in enumerate(view)}
        self.newest = unread(messages)
        self.sizes = sorted(_sizes(messages), key=lambda item: (-item[0], item[1]))

    def original(self, index: int) -> Message:
        place = self.places.get(id(self.messages[index]), -1)
        return self.job.messages[place] if place >= 0 else self.messages[index]

    def until(self, goal: int, preview: int, *, newest: bool) -> None:
        for size, index in self.sizes:
            if self.total <= goal or size <= smallest(preview):
                return
            if newest == (index >= self.newest):
                self.spill(index, size, preview)

    def spill(self, index: int, size: int, preview: int) -> None:
        message, handle = self.messages[index], handle_of(self.original(index))
        short = message.with_parts(tuple(_shown(part, handle, preview) for part in message.parts))
        self.total -= self.job.size(self.out[index]) - self.job.size(short)
        self.out[index] = short
        self.spilled[index] = _entry(self.places.get(id(message), -1), message, size, short, handle)


def smallest(preview: int) -> int:
    """Results up to this length are not worth spilling with such a preview."""
    return 3 * preview


def unread(messages: Transcript) -> int:
    """From where on nobody has worked with the results yet: the assistant has not spoken since."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            waits = any(isinstance(part, ToolCall) for part in messages[index].parts)
            return index if waits else len(messages)
    return 0


def _sizes(messages: Transcript) -> list[tuple[int, int]]:
    """The longest result of each message that has any, and the message."""
    found: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        size = max((len(part.text) for part in message.parts if isinstance(part, ToolResult)), default=0)
        if size:
            found.append((size, index))
    return found


def _shown(part: Part, handle: str, preview: int) -> Part:
    if not isinstance(part, ToolResult) or len(part.text) <= smallest(preview):
        return part
    others = tuple(item for item in part.parts if not isinstance(item, Text))
    text = preview_text(part.text, handle, preview)
    return ToolResult(part.call_id, (Text(text), *others), part.is_error, part.name, wire=part.wire)


def preview_text(text: str, handle: str, preview: int = LONG) -> str:
    gap = f"[… {len(text) - 2 * preview:,} characters spilled to save context space | unfold {handle} …]"
    return f"{text[:preview]}\n{gap}\n{text[-preview:]}"


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
