"""Messages of a session as whoever asks wants them: read, as plain values, or as the exact bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from midfold.store.protocol import Item
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Message, Transcript
from midfold.transcript.splice import message_bytes, message_value


class View:
    """Some messages of a session: its history, or what the model sees of it."""

    def __init__(
        self,
        items: tuple[Item, ...],
        dialect: type[Dialect],
        system: Message | None = None,
        tools: Sequence[Any] = (),
    ) -> None:
        self.items = items
        self.dialect = dialect
        self.prompt = system
        self.tools = list(tools)

    @cached_property
    def transcript(self) -> Transcript:
        return tuple(item.message for item in self.items)

    @cached_property
    def messages(self) -> list[Any]:
        """Plain values, ready to be sent."""
        return [message_value(item.message, self.dialect) for item in self.items]

    def json(self) -> bytes:
        """A JSON array of the exact bytes of every message."""
        return b"[" + b",".join(message_bytes(item.message, self.dialect) for item in self.items) + b"]"

    @property
    def system(self) -> Any:
        """The system prompt that belongs beside these messages, in the caller's shape."""
        if self.prompt is None or self.prompt.wire is not None:
            return None if self.prompt is None else self.prompt.wire
        return self.dialect.system_value(self.prompt, self.prompt.origin)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.messages)
