"""A fold cut into pieces that a summary model can take, along legal cuts, in order, with nothing left out.

Rules of this file:
1. No piece is longer than it may be; the number of pieces is bounded.
2. The longer the fold, the less of each message is shown. Only when every message is down to a line, and the pieces are
   still too many, are the oldest messages told by what the user said in them.
3. A group of messages that belongs together is split only if it does not fit into a piece of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from midfold.core.laws import legal_cuts
from midfold.core.message import Opaque, Part, Text, Thinking, ToolCall, ToolResult, Transcript
from midfold.core.turns import LONGEST, SHORTEST, Redact, older_asks, part_texts

MOST_CHUNKS = 8
ROOMS = (LONGEST, 4_000, 2_500, 1_500, 1_000, 600, 400, 250, 150, 100, SHORTEST)
FRAME = 60
"""What the label of a message and the note on what was left out may take beside its text."""
OLDEST_ASK = 400
"""More than the last of the older asks can take beyond what it may."""


class Piece(NamedTuple):
    """A text, and the place of the first message in it."""

    start: int
    text: str


def chunks(messages: Transcript, redact: Redact, characters: int, most: int = MOST_CHUNKS) -> list[str]:
    """The turns as texts of at most `characters` each."""
    lengths = [_length(part) for message in messages for part in message.parts]
    pieces: list[Piece] = []
    for room in ROOMS:
        is_last = room == SHORTEST
        if is_last or (room + 2 * FRAME <= characters and _total(lengths, room) <= characters * most):
            pieces = _packed(_groups(messages, room, redact, characters), characters)
            if len(pieces) <= most:
                return [piece.text for piece in pieces]
    newest = pieces[1 - most :]
    older = older_asks(messages[: newest[0].start], redact, characters - OLDEST_ASK)
    return ["\n\n".join(older)[:characters], *(piece.text for piece in newest)]


def _packed(pieces: Iterator[Piece], characters: int) -> list[Piece]:
    """Neighbours put together as long as they fit."""
    out: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        size += len(piece.text) + 2
        if not out or size > characters + 2:
            out.append([])
            size = len(piece.text) + 2
        out[-1].append(piece)
    return [Piece(group[0].start, "\n\n".join(piece.text for piece in group)) for group in out]


def _groups(messages: Transcript, room: int, redact: Redact, characters: int) -> Iterator[Piece]:
    """The texts of what belongs together; of a group that does not fit into a piece, the texts of its parts."""
    for start, end in pairwise(legal_cuts(messages)):
        parts = [
            Piece(index, text[:characters])
            for index in range(start, end)
            for text in part_texts(messages[index], room, redact)
        ]
        if sum(len(part.text) + 2 for part in parts) - 2 > characters:
            yield from parts
        elif parts:
            yield Piece(start, "\n\n".join(part.text for part in parts))


def _total(lengths: list[int], room: int) -> int:
    return sum(min(length, room) + FRAME for length in lengths)


def _length(part: Part) -> int:
    if isinstance(part, ToolResult):
        return len(part.text)
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.arguments) + len(part.name)
    return 0 if isinstance(part, Thinking | Opaque) else FRAME
