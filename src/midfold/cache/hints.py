"""The documented placement, provider-neutral: the system prompt, and the last three messages that can be marked."""

from __future__ import annotations

from midfold.core.hint import MOST_MARKERS, SYSTEM, TOOLS, PromptCacheHint
from midfold.core.message import Message, Text, Thinking, Transcript

__all__ = ["MOST_MARKERS", "SYSTEM", "TOOLS", "PromptCacheHint", "system_and_3"]


def system_and_3(messages: Transcript, system: Message | None = None) -> tuple[PromptCacheHint, ...]:
    """At most four hints: one after the system prompt, the others at the end."""
    hints: list[PromptCacheHint] = []
    if system is not None:
        hints.append(PromptCacheHint(message_index=SYSTEM, placement="system", reason="system prompt"))
    elif messages and messages[0].role == "system":
        hints.append(PromptCacheHint(message_index=0, placement="system", reason="system prompt"))
    rolling = [index for index in range(len(messages) - 1, -1, -1) if _can_carry(messages[index])][:3]
    for index in reversed(rolling):
        hints.append(PromptCacheHint(message_index=index, placement="message", reason="rolling window"))
    return tuple(hints[:MOST_MARKERS])


def _can_carry(message: Message) -> bool:
    """Markers are never put on the system prompt twice, on thinking, or on empty text."""
    if message.role == "system" or not message.parts:
        return False
    last = message.parts[-1]
    return not isinstance(last, Thinking) and not (isinstance(last, Text) and not last.text)
