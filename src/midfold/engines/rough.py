"""Sizes of very many messages: the newest are estimated one by one, older ones by their length.

What is folded is measured only to know how much it is; where the tail starts must be known exactly. A rate per role
is taken from every n-th older message.
"""

from __future__ import annotations

from typing import Any

from midfold.core.message import CALL, OPAQUE, RESULT, TEXT, THINKING, Part, Transcript
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
        *map(meter.units, messages[:OLDEST]),
        *(
            MESSAGE_UNITS + int(characters(message.parts) * rates.get(message.role, USUAL_RATE))
            for message in messages[OLDEST:exact_from]
        ),
        *map(meter.units, messages[exact_from:]),
    ]


def characters(parts: tuple[Part, ...]) -> int:
    """The length of what is counted in a message, pictures by their price."""
    total = 0
    part: Any
    for part in parts:
        bit = part.bit
        if bit == RESULT:
            inner = part.parts
            only = inner[0] if len(inner) == 1 else None
            total += 24 + (len(only.text) if only is not None and only.bit == TEXT else characters(inner))
        elif bit in (TEXT, THINKING):
            total += len(part.text)
        elif bit == CALL:
            total += 48 + len(part.arguments)
        elif bit == OPAQUE:
            total += len(part.body)
        else:
            total += media_units(part) * 4
    return total
