"""A fold as text for whoever summarises it: raw, in order, each message clipped around its beginning and end.

Reasoning is left out: it is not the conversation, and providers forbid showing it to another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from midfold.core.message import Media, Message, Opaque, Text, ToolCall, ToolResult, Transcript

HEAD, TAIL = 4_000, 1_500


def serialize_turns(messages: Transcript, redact: Callable[[str], str]) -> str:
    """All turns, each redacted before it is cut."""
    return "\n\n".join(piece for message in messages for piece in _pieces(message, redact))


def clip(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    if len(text) <= head + tail:
        return text
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


def _pieces(message: Message, redact: Callable[[str], str]) -> Iterator[str]:
    who = message.role.upper()
    for part in message.parts:
        match part:
            case Text(text=text) if text.strip():
                yield f"[{who}]: {clip(redact(text))}"
            case ToolCall(name=name, arguments=arguments):
                yield f"[{who} CALLS {name}]: {clip(redact(arguments), 1_500, 300)}"
            case ToolResult(is_error=failed):
                yield f"[RESULT{' (failed)' if failed else ''}]: {clip(redact(part.text))}"
            case Media(kind=kind) | Opaque(kind=kind):
                yield f"[{who}]: ({kind})"
