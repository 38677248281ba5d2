"""Sizes of very many messages: the newest are estimated one by one, older ones by their length.

What is folded is measured only to know how much it is; where the tail starts must be known exactly. A rate per role
is taken from every n-th older message.
"""

from __future__ import annotations

from midfold.core.message import Opaque, Part, Text, Thinking, ToolCall, ToolResult, Transcript
from midfold.core.tokens import MESSAGE_UNITS, Meter, media_units

MANY = 600
NEWEST = 250
EVERY = 5
OLDEST = 8
"""The head is exact too."""
USUAL_RATE = 0.27
"""Units per character, before anything was measured."""


def rough_units(messages: Transcript, meter: Meter) -> list[int]:
    """Units per message."""
    if len(messages) < MANY:
        return [meter.units(message) for message in messages]
    exact_from = len(messages) - NEWEST
    lengths: dict[str, int] = {}
    measured: dict[str, int] = {}
    for message in messages[OLDEST:exact_from:EVERY]:
        role = message.role
        lengths[role] = lengths.get(role, 0) + characters(message.parts)
        measured[role] = measured.get(role, 0) + meter.units(message)
    rates = {role: measured[role] / length for role, length in lengths.items() if length}
    return [
        meter.units(message)
        if not OLDEST <= index < exact_from
        else MESSAGE_UNITS + int(characters(message.parts) * rates.get(message.role, USUAL_RATE))
        for index, message in enumerate(messages)
    ]


def characters(parts: tuple[Part, ...]) -> int:
    """The length of what is counted in a message, pictures by their price."""
    total = 0
    for part in parts:
        if isinstance(part, ToolResult):
            total += 24 + characters(part.parts)
        elif isinstance(part, Text | Thinking):
            total += len(part.text)
        elif isinstance(part, ToolCall):
            total += 48 + len(part.arguments)
        elif isinstance(part, Opaque):
            total += len(part.body)
        else:
            total += media_units(part) * 4  # type: ignore[arg-type]
    return total
