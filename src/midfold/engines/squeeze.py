"""The last resort for a size that was asked for: long texts and arguments that must stay are shown by their ends.

Only with `target_tokens`, only when everything else was done and the view is still too large, only for long texts,
the largest first. Each is behind its handle, and the receipt lists it.
"""

from __future__ import annotations

from midfold.core.digest import shrink_arguments
from midfold.core.handoff import recognise
from midfold.core.message import Message, Part, Text, ToolCall
from midfold.core.report import Digest
from midfold.engines.sizes import ends_for, longest_for
from midfold.engines.spill import Spill, preview_text

LEAF = 160
"""Characters of a string in a call's arguments that stay."""
NOTICE = "the size asked for is smaller than what must stay: some messages are shown by their beginning and end"


def squeeze(work: Spill, goal: int) -> None:
    """Shortens what must stay until the view is as small as was asked for, or nothing more can be done."""
    order = sorted(range(len(work.out)), key=lambda index: (-work.job.size(work.out[index]), index))
    for index in order:
        if work.total <= goal:
            return
        message = work.out[index]
        if message.role not in ("user", "assistant") or recognise(message) is not None:
            continue
        handle = work.handle(index)
        short = message.with_parts(tuple(_shown(part, handle, goal) for part in message.parts))
        saved = work.job.size(message) - work.job.size(short)
        if saved > 0:
            work.replace(index, short, _entry(work, index, message, short, handle))
            work.job.notices.append(NOTICE)


def _shown(part: Part, handle: str, goal: int) -> Part:
    if isinstance(part, Text) and len(part.text) > longest_for(goal):
        return Text(preview_text(part.text, handle, ends_for(goal)), wire=None)
    if isinstance(part, ToolCall) and len(part.arguments) > longest_for(goal):
        return ToolCall(part.id, part.name, shrink_arguments(part.arguments, LEAF), wire=part.wire)
    return part


def _entry(work: Spill, index: int, message: Message, short: Message, handle: str) -> Digest:
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
