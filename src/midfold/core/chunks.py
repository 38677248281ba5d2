"""A fold cut into pieces that a summary model can take, along legal cuts, in order, with nothing left out.

Rules of this file:
1. No piece is longer than it may be; the number of pieces is bounded.
2. The longer the fold, the less of each message is shown. Only when every message is down to a line, and the pieces are
   still too many, are the oldest messages told by what the user said in them; the newest then fill all the pieces.
3. A group of messages that belongs together is split only if it does not fit into a piece of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from midfold.core.laws import legal_cuts
from midfold.core.message import Part, Text, Thinking, ToolCall, ToolResult, Transcript
from midfold.core.turns import LONGEST, SHORTEST, serialize_turns, turn_text

MOST_CHUNKS = 8
ROOMS = (LONGEST, 4_000, 2_500, 1_500, 1_000, 600, 400, 250, 150, 100, SHORTEST)
FRAME = 60
"""What the label of a message and the note on what was left out may take beside its text."""


def chunks(messages: Transcript, redact: Callable[[str], str], characters: int, most: int = MOST_CHUNKS) -> list[str]:
    """The turns as texts of at most `characters` each."""
    lengths = [[_length(part) for part in message.parts] for message in messages]
    room = next((room for room in ROOMS if _total(lengths, room) <= characters * most * 4 // 5), None)
    if room is None:
        return split(serialize_turns(messages, redact, characters * most * 7 // 10), characters)[-most:]
    cuts = legal_cuts(messages)
    pieces: list[str] = []
    current: list[str] = []
    size = 0
    for start, end in pairwise(cuts):
        group = _group(messages[start:end], room, redact, characters)
        if current and size + len(group) + 2 > characters:
            pieces.append("\n\n".join(current))
            current, size = [], 0
        if group:
            current.append(group)
            size += len(group) + 2
    return [*pieces, "\n\n".join(current)] if current else pieces


def split(text: str, characters: int) -> list[str]:
    """A text in pieces of at most so many characters, cut between paragraphs where that can be, else between lines."""
    pieces: list[str] = []
    while len(text) > characters:
        place = max(text.rfind("\n\n", characters // 2, characters), 0) or text.rfind("\n", characters // 2, characters)
        cut = place if place > 0 else characters
        pieces.append(text[:cut])
        text = text[cut:].lstrip("\n")
    return [*pieces, text] if text else pieces


def _group(messages: Transcript, room: int, redact: Callable[[str], str], characters: int) -> str:
    while True:
        text = "\n\n".join(piece for message in messages if (piece := turn_text(message, room, redact)))
        if len(text) <= characters or room <= SHORTEST:
            return text[:characters]
        room = max(room // 2, SHORTEST)


def _total(lengths: list[list[int]], room: int) -> int:
    return sum(min(length, room) + FRAME for message in lengths for length in message if length)


def _length(part: Part) -> int:
    """Characters that a part is shown with, beside its label; none if it is not shown."""
    if isinstance(part, ToolResult):
        return len(part.text) or 1
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.arguments) + len(part.name) or 1
    return 0 if isinstance(part, Thinking) else 1
