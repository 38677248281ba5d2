"""A fold as text for whoever summarises it: raw, in order, each message clipped around its beginning and end.

Reasoning is left out: it is not the conversation, and providers forbid showing it to another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from midfold.core.message import Media, Message, Opaque, Text, ToolCall, ToolResult, Transcript

MOST_CHARACTERS = 400_000
"""Of all turns together; the longer the fold, the less of each message is shown."""
LONGEST, SHORTEST = 6_000, 240
"""What one message may take at most, and what it gets in the longest fold."""
MARGIN = 4_000
"""Texts are redacted this much beyond what is shown: half of a credential is not recognised any more."""


def serialize_turns(messages: Transcript, redact: Callable[[str], str]) -> str:
    """All turns, each redacted before it is cut."""
    room = min(max(MOST_CHARACTERS // max(len(messages), 1), SHORTEST), LONGEST)
    return "\n\n".join(piece for message in messages for piece in _pieces(message, room, redact))


def clip(text: str, room: int, redact: Callable[[str], str]) -> str:
    """The beginning and the end of a text, redacted; the beginning gets three quarters."""
    head, tail = room * 3 // 4, room // 4
    if len(text) <= head + tail + 2 * MARGIN:
        text = redact(text)
        if len(text) <= head + tail:
            return text
        first, last = text[:head], text[-tail:]
    else:
        first, last = redact(text[: head + MARGIN])[:head], redact(text[-tail - MARGIN :])[-tail:]
    return f"{first}\n[… {max(len(text) - head - tail, 0):,} characters left out …]\n{last}"


def _pieces(message: Message, room: int, redact: Callable[[str], str]) -> Iterator[str]:
    who = message.role.upper()
    for part in message.parts:
        match part:
            case Text(text=text) if text.strip():
                yield f"[{who}]: {clip(text, room, redact)}"
            case ToolCall(name=name, arguments=arguments):
                yield f"[{who} CALLS {name}]: {clip(arguments, room // 2, redact)}"
            case ToolResult(is_error=failed):
                yield f"[RESULT{' (failed)' if failed else ''}]: {clip(part.text, room, redact)}"
            case Media(kind=kind) | Opaque(kind=kind):
                yield f"[{who}]: ({kind})"
