"""How small messages can get when they are shown by beginning and end, and which results nobody has read yet."""

from __future__ import annotations

from midfold.core.message import Message, Text, ToolCall, ToolResult, Transcript

LONG, SHORT = 800, 150
"""Characters kept at each end of a spilled result."""


def ends_for(target: int) -> int:
    """Characters kept at each end of a text that must be shortened for a size that was asked for."""
    return max(target // 5, 100)


def longest_for(target: int) -> int:
    """Characters of a text, or of a call's arguments, that are not shortened for it."""
    return min(max(target // 2, 3 * ends_for(target), 360), 1_200)


def preview_for(target: int | None) -> int:
    """Characters kept at each end of a result, at least."""
    return SHORT if target is None else min(max(target // 12, 60), SHORT)


def squeezed_size(message: Message, size: int, target: int) -> int:
    """About how many tokens of a message are left as a last resort."""
    texts = sum(len(part.text) for part in message.parts if isinstance(part, Text))
    calls = sum(len(part.arguments) for part in message.parts if isinstance(part, ToolCall))
    if texts + calls <= longest_for(target) or message.role not in ("user", "assistant"):
        return size
    return min(size, 2 * ends_for(target) // 3 + 30)


def smallest(preview: int) -> int:
    """Results up to this length are not worth spilling with such a preview."""
    return 3 * preview


def spilled_size(message: Message, size: int, preview: int) -> int:
    """About how many tokens of a message are left when its long results are spilled."""
    results = [len(part.text) for part in message.parts if isinstance(part, ToolResult)]
    saved = sum(length - smallest(preview) for length in results if length > smallest(preview))
    return round(size * (1 - saved / max(sum(results), 1))) if saved else size


def unread(messages: Transcript) -> int:
    """From where on nobody has worked with the results yet: the assistant has not spoken since."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            waits = any(isinstance(part, ToolCall) for part in messages[index].parts)
            return index if waits else len(messages)
    return 0
