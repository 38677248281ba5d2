"""What messages cost, for budgets: tokens of the model midfold assumes when none is named."""

from __future__ import annotations

from collections.abc import Iterable

from midfold.eval.texts import text_of
from midfold.models import look_up
from midfold.transcript.message import Message, Text
from midfold.transcript.tokens import Meter

CHARACTERS_PER_TOKEN = 4
_MODEL = look_up(None).model
_METER = Meter(factor=_MODEL.factor, message_overhead=_MODEL.message_overhead)


def size(message: Message) -> int:
    return _METER.tokens(_METER.units(message), 1)


def total(messages: Iterable[Message]) -> int:
    """Tokens of a transcript, system prompts excluded."""
    return sum(size(message) for message in messages if message.role != "system")


def note(text: str) -> Message:
    """A message that a compaction writes."""
    return Message("user", (Text(text),))


def piece(message: Message, tokens: int, *, end: bool) -> Message | None:
    """The beginning or the end of a message, as a note of at most so many tokens; None if nothing useful fits."""
    text = text_of(message)
    length = min(len(text), tokens * CHARACTERS_PER_TOKEN)
    while length > CHARACTERS_PER_TOKEN:
        made = note(text[-length:] if end else text[:length])
        cost = size(made)
        if cost <= tokens:
            return made
        length = min(length * tokens // cost, length * 9 // 10)
    return None
