"""What a reader of a message sees, as one text.

Rules of this file:
1. Tool arguments are read as `key: value` lines, so that an escaped line break never glues itself to a name. Names of
   tools and of their arguments are known from the tools' definitions: they are read, but nobody *writes* them.
2. Thinking is not text: providers drop old thinking, and no compaction is asked to keep it.
3. Texts of neighbouring messages are joined so far apart that nothing in one is near anything in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from midfold.transcript import jsonio
from midfold.transcript.message import Message, Opaque, Text, ToolCall, ToolResult

NEAR = 140
"""Characters: how far from a fact the words stand that say what it is."""
APART = "\n" * (NEAR + 1)
DEEPEST = 20
MESSAGES_REMEMBERED = 4_096


@lru_cache(maxsize=MESSAGES_REMEMBERED)
def text_of(message: Message) -> str:
    """Everything a reader sees in a message: what is said, called and answered."""
    pieces = (said(message), called(message))
    return "\n".join(piece for piece in pieces if piece)


def said(message: Message) -> str:
    """Text and tool results."""
    return "\n".join(_readable(message))


def _readable(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            yield part.text
        elif isinstance(part, Opaque):
            yield part.body


def called(message: Message) -> str:
    """The tool calls: a name, and the arguments as lines."""
    calls = (part for part in message.parts if isinstance(part, ToolCall))
    return "\n".join(f"{call.name}\n{_arguments(call.arguments)}" for call in calls)


def given(message: Message) -> str:
    """The values of the arguments of the tool calls."""
    calls = (part for part in message.parts if isinstance(part, ToolCall))
    return "\n".join(value for call in calls for _, value in _leaves(_decoded(call.arguments), "", 0))


def _arguments(text: str) -> str:
    leaves = _leaves(_decoded(text), "", 0)
    return "\n".join(f"{key}: {value}" if key else value for key, value in leaves)


def _decoded(text: str) -> Any:
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


def joined(messages: Iterable[Message]) -> str:
    """The texts of messages, far enough apart."""
    return APART.join(map(text_of, messages))
