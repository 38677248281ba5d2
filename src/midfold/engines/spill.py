"""Results that must stay in the view are shown by their beginning and end; the rest is behind a handle."""

from __future__ import annotations

from midfold.core.archive import handle_of
from midfold.core.message import Message, ToolResult, Transcript
from midfold.core.report import Digest
from midfold.engines.job import Job
from midfold.engines.sizes import smallest, spilled, unread


class Spill:
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
        message, handle = self.messages[index], self.handle(index)
        short = spilled(message, handle, preview)
        self.replace(index, short, _entry(self.place(index), message, size, short, handle))

    def handle(self, index: int) -> str:
        return handle_of(self.original(index))

    def place(self, index: int) -> int:
        """Where the message stands in the old transcript; -1 if it is one of ours."""
        return self.places.get(id(self.messages[index]), -1)

    def replace(self, index: int, short: Message, entry: Digest) -> None:
        self.total -= self.job.size(self.out[index]) - self.job.size(short)
        self.out[index] = short
        self.spilled[index] = entry


def _sizes(messages: Transcript) -> list[tuple[int, int]]:
    """The longest result of each message that has any, and the message."""
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
