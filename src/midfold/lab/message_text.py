"""Text and token cost of a message as a reader sees it.

Tool arguments are rendered as `key: value` lines, so that an escaped line break is never joined to a name. Names of
tools and arguments come from the tools' definitions: they are read, but not counted as *written*. Thinking is not text:
providers drop it, and no compaction has to keep it. Costs are tokens of the model that midfold assumes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import is_
from typing import Any

from midfold.models import look_up
from midfold.transcript import jsonio
from midfold.transcript.message import Message, Opaque, Part, Text, ToolCall, ToolResult
from midfold.transcript.tokens import Meter

NEAR = 140
"""Maximum characters between a fact and the words that explain it."""
APART = "\n" * (NEAR + 1)
DEEPEST = 20
MESSAGES_REMEMBERED = 4_096


@lru_cache(maxsize=MESSAGES_REMEMBERED)
def text_of(message: Message) -> str:
    """Return all readable text of a message: text, calls and results."""
    pieces = (spoken_text(message), call_text(message))
    return "\n".join(piece for piece in pieces if piece)


def spoken_text(message: Message) -> str:
    """Return text and tool results."""
    return "\n".join(_readable(message))


def _readable(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            yield part.text
        elif isinstance(part, Opaque):
            yield part.body


def call_text(message: Message) -> str:
    """Render the tool calls: a name, and the arguments as lines."""
    calls = (part for part in message.parts if isinstance(part, ToolCall))
    return "\n".join(f"{call.name}\n{_arguments(call.arguments)}" for call in calls)


def argument_text(message: Message) -> str:
    """Return the argument values of the tool calls."""
    calls = (part for part in message.parts if isinstance(part, ToolCall))
    return "\n".join(value for call in calls for _, value in _leaves(_decode(call.arguments), "", 0))


def _arguments(text: str) -> str:
    leaves = _leaves(_decode(text), "", 0)
    return "\n".join(f"{key}: {value}" if key else value for key, value in leaves)


def _decode(text: str) -> Any:
    try:
        return jsonio.decode(text.encode("utf-8", "surrogatepass"))
    except jsonio.NotJSON:
        return text


def _leaves(value: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < DEEPEST:
        for name, inner in value.items():
            yield from _leaves(inner, str(name), depth + 1)
    elif isinstance(value, list) and depth < DEEPEST:
        for inner in value:
            yield from _leaves(inner, key, depth + 1)
    else:
        yield key, str(value)


def join_texts(messages: Iterable[Message]) -> str:
    """Join the texts of messages with enough distance between them."""
    return APART.join(map(text_of, messages))


CHARACTERS_PER_TOKEN = 4
_MODEL = look_up(None).model
_METER = Meter(factor=_MODEL.factor, message_overhead=_MODEL.message_overhead)


def size(message: Message) -> int:
    return _METER.tokens(_METER.units(message), 1)


def total(messages: Iterable[Message]) -> int:
    """Return the tokens of a transcript, excluding system prompts."""
    return sum(size(message) for message in messages if message.role != "system")


def change_results(message: Message, change: Callable[[str], str]) -> Message:
    """Apply `change` to the texts of a message's tool results; return the same message if nothing changes."""
    parts = tuple(_change_part(part, change) for part in message.parts)
    return message if all(map(is_, parts, message.parts)) else message.with_parts(parts)


def _change_part(part: Part, change: Callable[[str], str]) -> Part:
    if not isinstance(part, ToolResult) or (text := change(part.text)) == part.text:
        return part
    return ToolResult(part.call_id, (Text(text),), part.is_error, part.name, wire=part.wire)


def note(text: str) -> Message:
    """Return a message as written by a compaction."""
    return Message("user", (Text(text),))


def piece(message: Message, tokens: int, *, end: bool) -> Message | None:
    """Return the start or end of a message as a note of at most `tokens`, or None if nothing useful fits."""
    text = text_of(message)
    length = min(len(text), tokens * CHARACTERS_PER_TOKEN)
    while length > CHARACTERS_PER_TOKEN:
        made = note(text[-length:] if end else text[:length])
        cost = size(made)
        if cost <= tokens:
            return made
        length = min(length * tokens // cost, length * 9 // 10)
    return None
