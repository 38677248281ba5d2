"""The last resort for a size that was asked for: long texts and arguments that must stay are shown by their ends.

Only with `target_tokens`, only when everything else was done and the view is still too large, only for long texts,
the largest first. Each is behind its handle, and the receipt lists it.
"""

from __future__ import annotations

from midfold.core.handoff import recognise
from midfold.core.message import Message, Text, ToolCall
from midfold.core.report import Digest
from midfold.engines.sizes import Ends, shortened
from midfold.engines.spill import Spill

NOTICE = "the size asked for is smaller than what must stay: some messages are shown by their beginning and end"


def squeeze(work: Spill, goal: int, ends: Ends) -> None:
    """Shortens what must stay until the view is as small as was asked for, or nothing more can be done."""
    order = sorted(range(len(work.out)), key=lambda index: (-work.job.size(work.out[index]), index))
    for index in order:
        if work.total <= goal:
            return
        message = work.out[index]
        if recognise(message) is not None:
            continue
        handle = work.handle(index)
        short = shortened(message, handle, ends)
        saved = work.job.size(message) - work.job.size(short)
        if saved > 0:
            work.replace(index, short, _entry(work, index, message, short, handle))
            work.job.notices.append(NOTICE)


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
